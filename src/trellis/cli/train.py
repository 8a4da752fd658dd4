"""`trellis train`: from a configuration to a model."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import DataDir, Json, Threads, chief, figure, report, say
from trellis.errors import TrellisError
from trellis.progress import short_number, short_time

if TYPE_CHECKING:
    from trellis.config import RunConfig
    from trellis.distillation import Distilled
    from trellis.models.model import Model, ModelConfig
    from trellis.text import IdFile
    from trellis.text.sources import Texts
    from trellis.training import Trained

EXAMPLE = (
    "Examples:\n\ntrellis train configs/pydocs.yaml training.lr=0.1 model.states=256\n\n"
    "trellis train runs/pydocs-256 --resume\n\n"
    "torchrun --nproc-per-node 2 -m trellis train configs/pydocs.yaml"
)
STOPPED = 3


def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG KEY=VALUE",
            help="A YAML file or a run's folder, and settings on top of it. (default: every setting's default)",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    json: Json = False,
    threads: Threads = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="The same as training.device=NAME.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Train a model. The run's folder gets its settings, checkpoints, metrics and the best model.

    Set first: data.corpus (a file or a name), model.states, training.epochs, training.lr, out. `trellis settings`
    explains these and all others.

    Ctrl-C or SIGTERM stops after the current update, with a checkpoint, and exit code 3; --resume goes on.
    """
    from trellis import train
    from trellis.config import save
    from trellis.models.registry import model_class
    from trellis.models.storage import RUN_FILE
    from trellis.text.sources import prepare_texts
    from trellis.training import Stopped
    from trellis.training.device import choose_device
    from trellis.training.precision import check_precision

    config = configure([*(settings or []), *([f"training.device={device}"] if device else [])], data_dir)
    check_precision(config.training.precision, choose_device(config.training.device))
    _check_distillation(config)
    ours = _check_folder(config, resume)
    texts = prepare_texts(config.data, quiet=not chief())
    shape = config.with_vocabulary(texts.tokenizer.vocab_size)

    def make_model(seed: int) -> Model:
        return model_class(shape.kind).for_text(shape, texts.train, texts.tokenizer, seed, config.data.data_dir)

    if chief():
        if ours:
            save(config, config.folder / RUN_FILE)
        _announce(config, texts)
    try:
        taught = distilled(config, shape, texts) if config.training.init == "distill" else None
        trained = train(
            make_model, texts.tokenizer, texts.train, texts.valid, config.training, config.folder, resume=resume,
            labels=texts.labels, distilled=taught,
        )  # fmt: skip
    except Stopped as stopped:
        if chief():
            say(str(stopped))
        raise typer.Exit(STOPPED) from None
    if chief():
        _report(config, trained, json)


def configure(arguments: list[str], data_dir: str | None) -> RunConfig:
    """Tell the config file from the overrides, and build the configuration."""
    from trellis.config import load
    from trellis.models.storage import RUN_FILE

    files = [argument for argument in arguments if "=" not in argument or Path(argument).is_file()]
    overrides = [argument for argument in arguments if argument not in files]
    if len(files) > 1:
        raise TrellisError(f"'{files[0]}' and '{files[1]}' cannot both be the config: write overrides as key=value.")
    path = Path(files[0]) if files else None
    if path and not path.exists() and path.suffix not in (".yaml", ".yml"):
        raise TrellisError(f"'{path}' is neither a config file nor an override such as training.lr=0.1.")
    if path and path.is_dir():
        overrides = [f"out={path}", *overrides]  # a run that was moved goes on where it is
        path = path / RUN_FILE
    config = load(path, overrides)
    if data_dir is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, data_dir=data_dir))
    return config


def _check_folder(config: RunConfig, resume: bool) -> bool:
    """Refuse, before any slow work, a folder that holds another run; whether it is sure to hold none but this one."""
    from trellis.config import differences, load
    from trellis.models.storage import RUN_FILE
    from trellis.training import checkpoints

    folder = config.folder
    begun = checkpoints.begun(folder)
    if begun and not resume:
        raise TrellisError(f"{folder} holds a run already: go on with --resume, or choose another folder with out=….")
    known = (folder / RUN_FILE).exists()
    if begun and known:
        for name, there, here in differences(load(folder / RUN_FILE), config):
            raise TrellisError(
                f"{folder} holds another run, with {name}={there} and not {here}: choose another folder with out=…."
            )
    if resume and not begun and chief():
        say(f"nothing to resume in {folder}: starting from the beginning")
    return known or not begun


def _check_distillation(config: RunConfig) -> None:
    """Refuse, before any slow work, distillation without a teacher, or a teacher without distillation."""
    from trellis.distillation import DistillSettings
    from trellis.models.hmm_config import HMMConfig

    if config.training.init != "distill":
        for field in dataclasses.fields(DistillSettings):
            if (value := getattr(config.distill, field.name)) != field.default:
                raise TrellisError(
                    f"distill.{field.name}={value} is for distillation: set training.init=distill, or leave it out."
                )
        return
    if config.distill.teacher is None:
        raise TrellisError("training.init=distill needs a teacher: set distill.teacher to a model's folder.")
    if not isinstance(config.model, HMMConfig):
        raise TrellisError(
            f"distillation is for models with hidden states, not {config.model.kind}: set training.init=random."
        )
    if config.data.labels is not None:
        raise TrellisError("training.init=distill learns from labels of its own: leave out data.labels.")


def distilled(config: RunConfig, shape: ModelConfig, texts: Texts) -> Distilled:
    """What the teacher says of the training text; found once and kept."""
    from trellis.distillation import distill
    from trellis.models.hmm_config import HMMConfig
    from trellis.models.supports import support_of

    assert isinstance(shape, HMMConfig)
    support = support_of(shape, texts.train, texts.tokenizer, config.training.seed)
    return distill(
        config.distill, texts.train, texts.tokenizer, shape.states, support, data_dir=config.data.data_dir,
        quiet=not chief(),
    )  # fmt: skip


def _announce(config: RunConfig, texts: Texts) -> None:
    say(f"learning from {_about(texts.train)}, {texts.tokenizer.vocab_size:,} types")
    none = "validation text: none, so the last model counts as the best"
    say(f"validating on {_about(texts.valid)}" if texts.valid else none)
    states = getattr(config.model, "states", None)
    say(f"{config.model.kind if states is None else f'{states:,} states'}, into {config.folder}")
    if config.training.init == "distill":
        labelled = short_number(min(config.distill.tokens, texts.train.meta.tokens))
        say(f"the first {labelled} tokens with the labels of {config.distill.teacher}, then without labels")


def _about(ids: IdFile) -> str:
    """A text in a few words."""
    meta = ids.meta
    return f"{meta.corpus}: {short_number(meta.tokens)} tokens in {short_number(meta.documents)} documents"


def _next(config: RunConfig) -> list[str]:
    """Commands that this run's model can answer."""
    from trellis.models.hmm import LARGEST_DENSE
    from trellis.models.registry import model_class
    from trellis.text.corpora import NAMES

    answers, folder = model_class(config.model.kind), config.folder
    has_test = config.data.test is not None or config.data.corpus in NAMES
    files = [config.data.corpus] if isinstance(config.data.corpus, str) else config.data.corpus
    too_large = getattr(config.model, "states", 0) > LARGEST_DENSE  # for a long run of its own
    measured_on = "".join(f" --corpus {shlex.quote(file)}" for file in files) if too_large else ""
    return [
        *([f"trellis inspect {folder}{measured_on}"] if hasattr(answers, "tables") else []),
        *([f"trellis sample {folder}"] if hasattr(answers, "sample") else []),
        *([f"trellis evaluate {folder}"] if has_test else []),
    ]


def _report(config: RunConfig, trained: Trained, json: bool) -> None:
    rate = trained.tokens / trained.seconds if trained.seconds else 0.0
    values = {
        "run": str(config.folder),
        "model": str(trained.best),
        "valid_perplexity": trained.perplexity,
        "tokens": trained.tokens,
        "seconds": trained.seconds,
        "tokens_per_second": rate,
    }
    perplexity = "no validation text" if trained.perplexity is None else figure(trained.perplexity)
    learnt = f"{short_number(trained.tokens)} tokens in {short_time(trained.seconds)}, {short_number(rate)} a second"
    report(
        json,
        values,
        ("best validation perplexity", perplexity),
        ("learnt from", learnt),
        ("model", str(trained.best)),
        *zip(("next", "", ""), _next(config), strict=False),
    )
