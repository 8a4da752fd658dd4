"""`trellis train`: from a configuration to a model."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trellis.cli.teaching import check_teachers, distilled, learnt_from
from trellis.cli.terminal import DataDir, Json, Threads, chief, figure, report, say
from trellis.errors import TrellisError
from trellis.progress import counted, roughly, short_number, short_time
from trellis.torchrun import restarts

if TYPE_CHECKING:
    from trellis.config import RunConfig
    from trellis.distillation import DistillSettings
    from trellis.models.model import Model, ModelConfig
    from trellis.text import IdFile
    from trellis.text.sources import Texts
    from trellis.training import Trained

# Written out, because reading them from where they are defined takes PyTorch's seconds; a test compares.
SETTINGS = {
    "data": "corpus valid test data_dir tokenizer vocab_size min_count max_tokens valid_tokens labels",
    "model": "kind states support blocks unclustered start transition emission encoder width parameters shared "
    "monolithic layers skip relu norm heads network inputs bias memory memory_dropout memory_words ngrams "
    "cache dropout init_scale",
    "training": "method batching batch_size length shuffle accumulate epochs seed lr network_lr betas weight_decay "
    "clip schedule warmup final patience factor full_batch step_size tolerance smoothing objective init restarts "
    "restart_steps validations checkpoint_every keep precision device",
    "distill": "teacher any_text layer pca points iterations restarts seed tokens lr counts centroids head frozen",
    "sampled": "teacher tokens copies seed precision any_text",
}
EXAMPLE = (
    "Settings, by group; `trellis settings lr` explains one, `trellis settings` all:\n\n"
    + "\n\n".join(f"{group}. {names}" for group, names in SETTINGS.items())
    + "\n\nExamples:\n\ntrellis train novel.txt\n\ntrellis train pydocs model.states=256 training.epochs=10\n\n"
    "trellis train runs/pydocs-256 --resume\n\ntrellis train ptb-low-rank --data-dir data\n\n"
    "torchrun --nproc-per-node 2 --max-restarts 3 -m trellis train novel.txt"
)
STOPPED = 3
YAML = (".yaml", ".yml")


def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT or CONFIG, KEY=VALUE",
            help="Files of text or a corpus's name; or a YAML file, a shipped configuration's name or a run's folder; "
            "and settings on top. (default: pydocs, the prose of Python's own documentation)",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    json: Json = False,
    threads: Threads = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="The same as training.device=NAME.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Train a model. The run's folder gets its settings, checkpoints, metrics and the best model.

    What is not set is chosen for the text, and said. Set first: model.states (how many), training.epochs (passes over
    the text), training.lr (the learning rate), out (the run's folder).

    Ctrl-C or SIGTERM stops after the current update, with a checkpoint, and exit code 3; --resume goes on.
    """
    from trellis import train
    from trellis.config import completed, save
    from trellis.models.registry import model_class
    from trellis.models.storage import RUN_FILE
    from trellis.text.sources import prepare_texts
    from trellis.training import Stopped
    from trellis.training.device import choose_device
    from trellis.training.distributed import world
    from trellis.training.precision import check_precision
    from trellis.training.run_folder import claimed, restarted

    asked, told = configure([*(settings or []), *([f"training.device={device}"] if device else [])], data_dir)
    where = choose_device(asked.training.device)
    check_precision(asked.training.precision, where)
    check_teachers(asked)
    _check_restarts(asked)
    _check_memory(asked)
    resume = resume or restarted(asked.folder)
    asked, ours = _check_folder(asked, told, resume)
    world(where)  # before the slow work, so that a loss is noticed then too
    texts = prepare_texts(asked.data, quiet=not chief())
    config = completed(asked, told, texts.train)
    shape = config.with_vocabulary(texts.tokenizer.vocab_size)
    _check_model(config, shape)

    def make_model(seed: int) -> Model:
        return model_class(shape.kind).for_text(shape, texts.train, texts.tokenizer, seed, config.data.data_dir)

    try:
        with claimed(config.folder) if chief() else nullcontext():
            if chief():
                if ours:
                    save(config, config.folder / RUN_FILE)
                if not restarts().made:
                    _announce(config, texts)
                if not restarts().made and (chosen := choices(asked, told, config)):
                    say(f"chosen for a text of this size, to take a minute or two (set what you like): {chosen}")
            taught = distilled(config, shape, texts) if config.training.init == "distill" else None
            trained = train(
                make_model, texts.tokenizer, learnt_from(config, texts), texts.valid, config.training, config.folder,
                resume=resume, labels=texts.labels, distilled=taught,
            )  # fmt: skip
    except Stopped as stopped:
        if chief():
            say(f"{stopped}; --resume goes on from there.")
        raise typer.Exit(STOPPED) from None
    if chief():
        _report(config, trained, json)


def configure(arguments: list[str], data_dir: str | None) -> tuple[RunConfig, Mapping[str, Any]]:
    """Tell texts and config files from overrides, and build the configuration; and what was said of the model."""
    from trellis.config import load_told
    from trellis.models.storage import RUN_FILE

    named = [argument for argument in arguments if "=" not in argument or _is_file(argument)]
    overrides = [argument for argument in arguments if argument not in named]
    path, texts = _config_and_texts(named)
    if texts:
        overrides = [f"data.corpus={json.dumps(texts[0] if len(texts) == 1 else texts)}", *overrides]
    if path and path.is_dir():
        overrides = [f"out={path}", *overrides]  # a run that was moved goes on where it is
        path = path / RUN_FILE
    config, told = load_told(path, overrides)
    if data_dir is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, data_dir=data_dir))
    if config.out is None and "states" not in told and hasattr(config.model, "states"):
        config = dataclasses.replace(config, out=str(config.folder).removesuffix(f"-{config.model.states}"))
    return config, told


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # too long for a name, as a list of files in a setting may be
        return False


def _config_and_texts(named: list[str]) -> tuple[Path | None, list[str]]:
    """Which of the arguments is a configuration, and which are texts or the name of a corpus."""
    from trellis.configs import shipped
    from trellis.text.corpora import NAMES
    from trellis.text.prepared import is_prepared

    configs: list[Path] = []
    texts: list[str] = []
    for name in named:
        path = Path(name)
        is_file = path.exists() and not path.is_dir() and path.suffix not in YAML
        if name in NAMES or name == "-" or is_file or is_prepared(path):
            texts.append(name)
        elif found := shipped(name):
            configs.append(found)
        elif path.exists() or path.suffix in YAML:
            configs.append(path)
        else:
            raise TrellisError(_unknown(name))
    if len(configs) > 1:
        raise TrellisError(f"'{named[0]}' and '{named[1]}' cannot both be the config: write overrides as key=value.")
    return (configs[0] if configs else None), texts


def _unknown(name: str) -> str:
    from trellis.configs import names
    from trellis.settings import closest
    from trellis.text.corpora import NAMES

    near = closest(name, [*NAMES, *names()], at_least=0.7)
    hint = "or write a setting as training.lr=0.1." if near is None else f"or did you mean '{near}'?"
    return f"there is no text or config file '{name}': check the path, {hint}"


def _check_restarts(config: RunConfig) -> None:
    """Refuse, before any slow work, restarts that nothing could choose between."""
    from trellis.text.sources import open_split

    if config.training.init == "restarts" and open_split(config.data, "valid") is None:
        raise TrellisError("training.init=restarts chooses by validation text: set data.valid, or init=random.")


def _check_memory(config: RunConfig) -> None:
    """Refuse, before any slow work, windows in which a memory or a cache of words is never full."""
    length = config.training.length
    for name, extra in (("memory", 0), ("ngrams", 1), ("cache", 0)):
        words = getattr(config.model, name, 0) - extra  # of an n-gram one is the word itself
        if config.training.batching == "windows" and length is not None and 0 < words >= length:
            raise TrellisError(
                f"model.{name}={words + extra} is longer than windows of {length} can show: set training.length above "
                "it, or training.batching=streams."
            )


def _check_model(config: RunConfig, shape: ModelConfig) -> None:
    """Refuse, before anything is announced or written, too small a budget, or a rate of networks without a network."""
    from trellis.models.budgets import check_budget
    from trellis.models.hmm_config import HMMConfig
    from trellis.models.networked import placed
    from trellis.training.learners import NO_NETWORKS

    networks = isinstance(shape, HMMConfig) and shape.encoder != "table" and shape.roles()
    if config.training.network_lr is not None and not networks:
        raise TrellisError(NO_NETWORKS)
    if isinstance(shape, HMMConfig):
        check_budget(placed(shape, config.data.data_dir))


def _check_folder(config: RunConfig, told: Mapping[str, Any], resume: bool) -> tuple[RunConfig, bool]:
    """Refuse, before any slow work, a folder that holds another run.

    What was left open is as an earlier part of the run has it. Also whether the folder is sure to hold none but this.
    """
    from trellis.config import continued, differences, load
    from trellis.models.storage import RUN_FILE
    from trellis.training import checkpoints
    from trellis.training.run_folder import check_folder

    folder = config.folder
    check_folder(folder)
    begun = checkpoints.begun(folder)
    if begun and not resume:
        raise TrellisError(f"{folder} holds a run already: go on with --resume, or choose another folder with out=….")
    known = (folder / RUN_FILE).exists()
    if begun and known:
        earlier = load(folder / RUN_FILE)
        config = continued(config, told, earlier)
        for name, there, here in differences(earlier, config):
            raise TrellisError(
                f"{folder} holds another run, with {name}={there} and not {here}: choose another folder with out=…."
            )
    if resume and not begun and chief() and not restarts().made:
        say(f"nothing to resume in {folder}: starting from the beginning")
    return config, known or not begun


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def choices(asked: RunConfig, told: Mapping[str, Any], config: RunConfig) -> str:
    """What was chosen and not told, as settings that could have been."""
    from trellis.config import scalar
    from trellis.training.defaults import CHOSEN, model_for

    open_ = (name for name in model_for(1, 1, told, scalar=scalar(config)) if name not in told)
    shape = [name for name in open_ if getattr(config.model, name)]  # no memory is nothing to speak of
    training = [name for name in CHOSEN if getattr(asked.training, name) is None]
    if config.training.method == "baum_welch":
        training = [name for name in training if name != "lr"]
    return " ".join(
        [f"model.{name}={getattr(config.model, name)}" for name in shape]
        + [f"training.{name}={_short(getattr(config.training, name))}" for name in training]
    )


def _announce(config: RunConfig, texts: Texts) -> None:
    say(f"learning from {_about(texts.train)}, {counted(texts.tokenizer.vocab_size, 'type')}")
    none = "validation text: none, so the last model counts as the best"
    say(f"validating on {_about(texts.valid)}" if texts.valid else none)
    states = getattr(config.model, "states", None)
    say(f"{config.model.kind if states is None else counted(states, 'state')}, into {config.folder}")
    if config.training.init == "distill":
        say(_labelled(config.distill, texts.train.meta.tokens * (config.training.epochs or 1.0)))
    if config.sampled.teacher is not None:
        say(f"and {short_number(config.sampled.tokens)} tokens sampled from {config.sampled.teacher}")


def _labelled(distill: DistillSettings, tokens: float) -> str:
    """What is learnt with labels, of a run that reads so many tokens."""
    if distill.tokens < tokens:
        return (
            f"the first {short_number(distill.tokens)} tokens with the labels of {distill.teacher}, then without labels"
        )
    return (
        f"all {short_number(tokens)} tokens with the labels of {distill.teacher}: distill.tokens={round(tokens / 4)} "
        "would go on without labels after a quarter, which is usually better"
    )


def _about(ids: IdFile) -> str:
    """A text in a few words."""
    meta = ids.meta
    return f"{meta.corpus}: {roughly(meta.tokens, 'token')} in {roughly(meta.documents, 'document')}"


def _next(config: RunConfig, protocol: str) -> list[str]:
    """Commands that this run's model can answer."""
    from trellis.models.hmm import LARGEST_DENSE
    from trellis.models.registry import model_class
    from trellis.text.corpora import NAMES

    answers, folder = model_class(config.model.kind), config.folder
    has_test = config.data.test is not None or config.data.corpus in NAMES
    files = [config.data.corpus] if isinstance(config.data.corpus, str) else config.data.corpus
    # Too many states for all pairs of them, or what follows one depends on more words than can be summed over.
    on_text = getattr(config.model, "states", 0) > LARGEST_DENSE or getattr(config.model, "memory", 0) > 1
    measured_on = "".join(f" --corpus {shlex.quote(file)}" for file in files) if on_text else ""
    return [
        *([f"trellis inspect {folder}{measured_on}"] if hasattr(answers, "tables") else []),
        *([f"trellis sample {folder}"] if hasattr(answers, "sample") else []),
        *([f"trellis evaluate {folder} --protocol {protocol}"] if has_test else []),
    ]


def _report(config: RunConfig, trained: Trained, json: bool) -> None:
    from trellis.evaluation import PROTOCOLS

    rate = trained.tokens / trained.seconds if trained.seconds else 0.0
    values = {
        "run": str(config.folder),
        "model": str(trained.best),
        "valid_perplexity": trained.perplexity,
        "unigram_perplexity": trained.unigram,
        "protocol": trained.protocol,
        "tokens": trained.tokens,
        "seconds": trained.seconds,
        "validation_seconds": trained.validating,
        "tokens_per_second": rate,
    }
    cut = PROTOCOLS[trained.protocol][0].format(rows=PROTOCOLS[trained.protocol][2])
    perplexity = "no validation text" if trained.perplexity is None else f"{figure(trained.perplexity)} ({cut})"
    unigram = [] if trained.unigram is None else [("a unigram's", figure(trained.unigram))]
    spent = f"{short_time(trained.seconds)} learning, {short_number(rate)} tokens a second"
    if trained.perplexity is not None:
        spent = (
            f"{short_time(trained.seconds + trained.validating)}: {spent}; {short_time(trained.validating)} validating"
        )
    report(
        json,
        values,
        ("best validation perplexity", perplexity),
        *unigram,
        ("learnt from", roughly(trained.tokens, "token")),
        ("time", spent),
        ("model", str(trained.best)),
        *zip(("next", "", ""), _next(config, trained.protocol), strict=False),
    )
