"""An HMM of a language model in one command: text sampled from it, labels by its states, a run that learns both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trellis.cli import train
from trellis.cli.terminal import say
from trellis.errors import TrellisError
from trellis.progress import counted, roughly

if TYPE_CHECKING:
    from trellis.config import RunConfig
    from trellis.distillation.sampling import SampleSettings
    from trellis.text import IdFile

LABELLED = 10  # one token in so many is learnt from with its label first, where distill.tokens says nothing
MEASURED = 20  # for so many tokens to learn from, one to measure on
MOST_MEASURED = 100_000


def run_from(folder: str, settings: list[str], sampling: SampleSettings, json: bool, data_dir: str | None) -> None:
    """Sample, distil and train; each goes on where an earlier call with the same arguments came to."""
    from trellis.distillation.sampling import sample_text
    from trellis.training import checkpoints

    _check(settings, sampling, data_dir)
    measured = replace(sampling, tokens=max(1, min(sampling.tokens // MEASURED, MOST_MEASURED)))
    valid = sample_text(folder, measured, "valid", data_dir=data_dir)
    text = sample_text(folder, sampling, "train", data_dir=data_dir)
    say(f"sampled {roughly(len(text), 'token')} of {folder}, and {roughly(len(valid), 'token')} to measure on")
    told = _overrides(folder, settings, text, valid)
    config, _ = train.configure(told, data_dir)
    train.run(told, resume=checkpoints.begun(config.folder), json=json, data_dir=data_dir)


def _check(settings: list[str], sampling: SampleSettings, data_dir: str | None) -> None:
    """Refuse, before any slow work, what could not be trained."""
    from trellis.models.hmm_config import HMMConfig

    config, told = train.configure(settings, data_dir)
    if not isinstance(config.model, HMMConfig):
        raise TrellisError(f"only an HMM has states to label, a model of kind {config.model.kind} has none: leave it.")
    if "states" in told and sampling.tokens < config.model.states:
        raise TrellisError(
            f"{counted(sampling.tokens, 'token')} cannot tell {counted(config.model.states, 'state')} apart: raise "
            "--tokens, or lower model.states."
        )
    _check_chosen(config)


def _check_chosen(config: RunConfig) -> None:
    """Refuse settings that the sampled text and its model decide."""
    from trellis.config import RunConfig

    left = RunConfig()
    for name in ("corpus", "valid", "tokenizer", "labels"):
        if getattr(config.data, name) != getattr(left.data, name):
            raise TrellisError(f"--from-llm samples its own text: leave out data.{name}.")
    if config.distill.teacher is not None:
        raise TrellisError("--from-llm names the teacher: leave out distill.teacher.")
    if config.training.init not in (left.training.init, "distill"):
        raise TrellisError(f"--from-llm begins from labels: leave out training.init={config.training.init}.")


def _overrides(folder: str, settings: list[str], text: IdFile, valid: IdFile) -> list[str]:
    """The settings of a run on the sampled text; what people set themselves comes last, and so counts."""
    return [
        f"data.corpus={text.folder}",
        f"data.valid={valid.folder}",
        f"data.tokenizer={text.folder}",
        f"distill.teacher={folder}",
        "distill.any_text=true",  # the text is the teacher's own
        f"distill.tokens={max(1, len(text) // LABELLED)}",
        "training.init=distill",
        *settings,
    ]
