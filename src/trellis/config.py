"""A run's configuration: a YAML file, overrides such as training.lr=0.1 on top, defaults below."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trellis.distillation.settings import DistillSettings, SampledSettings
from trellis.errors import TrellisError
from trellis.folders import disk_trouble, write_atomically
from trellis.models.hmm_config import HMMConfig
from trellis.models.model import ModelConfig
from trellis.models.registry import DEFAULT, config_class
from trellis.models.storage import RUN_FILE
from trellis.settings import build, likeness
from trellis.text.ids import IdFile
from trellis.text.sources import DataSettings
from trellis.training.defaults import CHOSEN, model_for, training_for
from trellis.training.run_folder import HEAD
from trellis.training.settings import TrainingSettings

# Stands in for the vocabulary until the tokenizer is known, so that all else is checked at once: no limit is above it.
ANY_VOCABULARY = 2**31 - 1
LARGEST = 1 << 20  # bytes of a file of settings
FOUND = {"vocab_size", "architecture"}  # what a model's shape has that no settings say
# A run may go on with another value of these: they do not touch what it learns.
FREE = ("out", "data.data_dir", "training.keep", "training.checkpoint_every", "training.device")

# Settings of HMMs in the layout of version 0.1.0, and what says the same now.
OLD = {
    "model.kind=blocked": "model.kind=hmm with support=brown, start=low_rank, transition=hierarchical, "
    "emission=low_rank, encoder=residual, bias=true, width=256 and, if it was not set, states=8192",
    "model.transition=flat": "model.transition=low_rank (or scalar)",
    "model.rank": "model.width",
    "model.clusters": "model.support",
    "model.parameters": "model.encoder with model.start, model.transition and model.emission",
    "model.embeddings": "model.encoder (residual or factored)",
    "model.start_scale": "model.init_scale",
}


@dataclass(frozen=True)
class RunConfig:
    """All that decides a training run."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelConfig = field(default_factory=lambda: HMMConfig(ANY_VOCABULARY))  # of any kind
    training: TrainingSettings = field(default_factory=TrainingSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    sampled: SampledSettings = field(default_factory=SampledSettings)
    out: str | None = None  # the run's folder; by default runs/<corpus>-<kind, unless it is hmm>-<states, if any>

    @property
    def folder(self) -> Path:
        """Where the run goes."""
        if self.out:
            return Path(self.out)
        kind = [] if self.model.kind == DEFAULT else [self.model.kind]
        states = [str(self.model.states)] if hasattr(self.model, "states") else []
        return Path("runs") / "-".join([_short_name(self.data.corpus), *kind, *states])

    def with_vocabulary(self, size: int) -> ModelConfig:
        """The model's whole shape, once the tokenizer is known."""
        return dataclasses.replace(self.model, vocab_size=size)


def _short_name(corpus: str | list[str]) -> str:
    first = corpus if isinstance(corpus, str) else corpus[0]
    return "stdin" if first == "-" else Path(first).name.split(".")[0] or "text"


def load(path: Path | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """Build the configuration from a file, if any, and overrides such as `model.states=256`."""
    return load_told(path, overrides)[0]


def load_told(path: Path | None, overrides: Sequence[str]) -> tuple[RunConfig, Mapping[str, Any]]:
    """The configuration, and what was said of the model: the rest of it may be chosen for the text."""
    values = read(path) if path else {}
    if path and path.name == RUN_FILE and _old(values.get("model")):
        raise TrellisError(
            f"{path.parent} was begun by an older layout of Trellis: start a new run, or go on with version 0.1.0."
        )
    for override in overrides:
        _set(values, override)
    # A group whose entries are all commented out reads as nothing.
    values = {name: value for name, value in values.items() if value is not None}
    model = values.pop("model", {})
    if not isinstance(model, Mapping):
        raise TrellisError(f"'model' must be a group of settings, not {model!r}.")
    for old, now in _old(model):
        raise TrellisError(f"{old} is of an older layout of Trellis: write {now}.")
    shape = config_class(model.get("kind", DEFAULT))
    _check_names({**values, "model": model}, list(_known(shape)))
    told = {name: value for name, value in model.items() if name != "kind"}
    parts = model_for(1, 1, model) if told.get("memory") else {}  # it goes with the parts that will be chosen alone
    shaped = build(shape, {**parts, **told, "vocab_size": ANY_VOCABULARY}, "model.")
    return dataclasses.replace(build(RunConfig, values), model=shaped), model


def completed(config: RunConfig, told: Mapping[str, Any], text: IdFile) -> RunConfig:
    """The configuration with all that was left open chosen for the text; `told` is what was said of the model."""
    model = dataclasses.replace(config.model, **model_for(len(text), text.meta.vocab_size, told, scalar=scalar(config)))
    return dataclasses.replace(config, model=model, training=training_for(config.training, text, model))


def scalar(config: RunConfig) -> bool:
    """Whether the run sets probabilities one by one, which only a model without vectors has."""
    return config.training.method == "baum_welch" or config.training.init == "counts" or config.distill.counts


def continued(config: RunConfig, told: Mapping[str, Any], earlier: RunConfig) -> RunConfig:
    """The configuration with what was left open as an earlier run has it."""
    shape = model_for(1, 1, told, scalar=scalar(config)) if config.model.kind == earlier.model.kind else {}
    left = {name: getattr(earlier.model, name) for name in shape if name not in told}
    open_ones = [name for name in CHOSEN if getattr(config.training, name) is None]
    training = {name: getattr(earlier.training, name) for name in open_ones}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **left),
        training=dataclasses.replace(config.training, **training),
    )


def _old(model: object) -> list[tuple[str, str]]:
    """Settings of an HMM that are of an older layout, and what to write now."""
    if not isinstance(model, Mapping) or model.get("kind", DEFAULT) not in (DEFAULT, "blocked"):
        return []
    # model.parameters is a number now, and was a word
    entries = {key: value for key, value in model.items() if key != "parameters" or _is_word(value)}
    said = [name for key, value in entries.items() for name in (f"model.{key}", f"model.{key}={value}")]
    return [(name, OLD[name]) for name in said if name in OLD]


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value[:1].isalpha()


def run_of(model: Path) -> RunConfig:
    """The configuration of the run that a model's folder lies in."""
    path = model.parent / RUN_FILE
    if not path.exists():
        raise TrellisError(f"{model} does not lie in a run that says its text: name a corpus or files.")
    return load(path)


def read(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds groups of settings."""
    try:
        with path.open("rb") as file:  # which may be a pipe, and one without end
            content = file.read(LARGEST + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise TrellisError(f"there is no config file {path}: check the path.") from None
    except UnicodeDecodeError as error:
        raise TrellisError(f"{path} is not UTF-8 at byte {error.start}: convert it.") from None
    except OSError as error:
        raise TrellisError(f"{path} cannot be read ({error.strerror}): name a YAML file.") from None
    if len(content) > LARGEST:
        raise TrellisError(f"{path} is larger than any file of settings ({LARGEST:,} bytes): name a YAML file.")
    found = _parse(text, str(path))
    if not isinstance(found, dict | None):
        raise TrellisError(f"{path} must hold groups of settings such as 'training:', not {found!r:.40}.")
    return found or {}


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # a safe loader, and stricter
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark and text.count("\n") else ""
        raise TrellisError(f"{where}{line} is not sound YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise TrellisError(f"{where} is not sound YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise TrellisError(f"{where} is nested deeper than any settings: give groups of settings.") from None
    except ValueError:  # a number of more digits than Python reads
        raise TrellisError(f"{where} holds a number of too many digits: give a smaller one.") from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without what no settings need: dates, and aliases, a few of which can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not read, write the value out", mark)
        return super().compose_node(parent, index)

    def whole_number(self, node: yaml.ScalarNode) -> int:
        """A whole number of any base, if it is one that Python can spell."""
        number = self.construct_yaml_int(node)
        str(number)  # ValueError
        return number

    def text(self, node: yaml.ScalarNode) -> str:
        """A date as it is written."""
        return str(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.text)


def _set(values: dict[str, Any], override: str) -> None:
    """Put `group.name=value` into nested mappings."""
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise TrellisError(f"'{override}' is not an override: write it as training.lr=0.1.")
    group = values
    for depth, part in enumerate(parts[:-1], start=1):
        if group.get(part) is None:  # not in the file, or without entries there
            group[part] = {}
        group = group[part]
        if not isinstance(group, dict):
            raise TrellisError(f"'{override}' does not fit: {'.'.join(parts[:depth])} is one value, not a group.")
    # YAML would take a dash for a list of nothing; here it is standard input.
    group[parts[-1]] = text if text == "-" else _parse(text, f"the value of '{override}'")


def _known(shape: type[ModelConfig]) -> Iterator[str]:
    """Every setting's dotted name, and those of the groups, for a run with this kind of model."""
    yield from (one.name for one in dataclasses.fields(RunConfig))
    yield from (f"data.{one.name}" for one in dataclasses.fields(DataSettings))
    yield from (f"model.{one.name}" for one in dataclasses.fields(shape) if one.name not in FOUND)
    yield "model.kind"
    yield from (f"training.{one.name}" for one in dataclasses.fields(TrainingSettings))
    yield from (f"distill.{one.name}" for one in dataclasses.fields(DistillSettings))
    yield from (f"sampled.{one.name}" for one in dataclasses.fields(SampledSettings))


def _check_names(values: Mapping[Any, Any], known: list[str], prefix: str = "") -> None:
    """Refuse a setting that does not exist, naming the nearest one in full."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name == "model.vocab_size":
            raise TrellisError("model.vocab_size comes from the tokenizer: set data.vocab_size.")
        if name == "model.architecture":
            raise TrellisError("model.architecture is found in the network's folder: set model.network.")
        if name not in known:
            raise TrellisError(f"unknown setting '{name}': {_nearest(name, known)}")
        if isinstance(value, Mapping):
            _check_names(value, known, f"{name}.")


def _nearest(name: str, known: list[str]) -> str:
    """The known name whose last part is most like this one's, in the same group or the very same in another."""
    group, _, word = name.rpartition(".")
    near = [other for other in known if other.startswith(f"{group}.") or other.endswith(f".{word}")]

    def rank(other: str) -> tuple[float, bool]:
        home, _, last = other.rpartition(".")
        return round(likeness(word, last), 2) + 0.1 * (home == group), home == group

    best = max((near if group else []) or known, key=rank)
    if rank(best)[0] >= 0.5:
        return f"did you mean '{best}'?"
    return f"choose from {', '.join(other for other in known if other.rpartition('.')[0] == group) or 'data, model'}."


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration with every default filled in, as YAML and JSON take it."""
    values = asdict(dataclasses.replace(config, out=str(config.folder)))
    for name in FOUND & values["model"].keys():
        del values["model"][name]
    values["model"] = {"kind": config.model.kind, **values["model"]}
    plain: dict[str, Any] = json.loads(json.dumps(values))  # which makes lists of tuples
    return plain


def save(config: RunConfig, path: Path) -> None:
    """Write the resolved configuration, whole or not at all."""
    head = f"{HEAD} Go on with it: trellis train {config.folder} --resume\n"
    with disk_trouble(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, head + yaml.safe_dump(as_dict(config), sort_keys=False, allow_unicode=True))


def differences(a: RunConfig, b: RunConfig) -> list[tuple[str, Any, Any]]:
    """Settings that differ and matter: the dotted name and both values."""
    left, right = dict(_flat(as_dict(a))), dict(_flat(as_dict(b)))
    return [(name, left[name], right.get(name)) for name in left if name not in FREE and left[name] != right.get(name)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
