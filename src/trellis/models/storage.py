"""Models on disk: `config.json`, `model.safetensors` and the tokenizer's files. No pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from trellis.errors import TrellisError
from trellis.folders import BEST, places, whole_folder
from trellis.json_files import read_object, write_json
from trellis.manifests import check_listed
from trellis.models.tensor_files import Shape, numbers_in, read_tensors, write_tensors
from trellis.settings import build

if TYPE_CHECKING:
    from trellis.models.model import Model, ModelConfig

FORMAT = 2  # HMMs of format 1 had other parts; a model of any other kind is the same in both
RUN_FILE = "config.yaml"  # a run's settings, in its folder; the run's best model so far lies beside it in `best`
OURS = "trellis_"  # begins the model_type of every kind of model here, and the kind's name ends it
RANDOM = "random:"  # before a model's name: one of its shape with fresh weights
WEIGHTS = "model.safetensors"
CHECKSUM = (
    "sha256"  # of the weights, in folders of versions that wrote no manifest: in their config.json, or place.json
)
SIZES = ("vocab_size", "states", "blocks", "width", "hidden", "layers", "heads", "order", "memory")
SMALL = 1 << 12  # a size that does no harm, whether or not the model makes use of it
NESTED = "trellis"  # holds what Trellis knows of a model whose config.json is otherwise that of another library

Config = TypeVar("Config", bound="ModelConfig")


class Savable(Protocol):
    """A tokenizer, as far as a model on disk cares."""

    def save(self, folder: str | PathLike[str]) -> None:
        """Write its files into the folder."""

    def fingerprint(self) -> str:
        """Hash of all that decides the ids."""


def save(
    model: Model, folder: str | PathLike[str], tokenizer: Savable | None, beside: Mapping[str, Any] | None = None
) -> None:
    """Write the model and its tokenizer as one folder, all or nothing; an older model there makes way.

    What is to lie `beside` them is written as JSON, into files of these names.
    """
    _refuse_other_contents(Path(folder))
    with whole_folder(folder) as temporary:
        write(model, temporary, tokenizer)
        for name, value in (beside or {}).items():
            write_json(temporary / name, value)


def _refuse_other_contents(folder: Path) -> None:
    """Only a model may be replaced by a model: whatever else stands in the folder would be lost."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        ours = str(read_about(folder).get("model_type")).startswith(OURS)
    except TrellisError:
        ours = False
    if not ours:
        raise TrellisError(f"{folder} holds something other than a Trellis model; choose another folder.")


def write(model: Model, folder: Path, tokenizer: Savable | None) -> None:
    """Write the files of a model into a folder that somebody else makes whole."""
    own: dict[str, Any] = {"model_type": OURS + model.config.kind, "format": FORMAT}
    own |= dataclasses.asdict(model.config)
    if tokenizer is not None:
        tokenizer.save(folder)
        own["tokenizer"] = tokenizer.fingerprint()
    theirs = model.transformers_config()
    about = theirs | {NESTED: own} if theirs else own
    write_tensors(folder / WEIGHTS, tensors_of(model))
    write_json(folder / "config.json", about)


def read_json(path: Path, *, infinite: bool = False) -> dict[str, Any]:
    """Read a JSON object of a model's folder, refusing a file that is missing, damaged, or not as it was written."""
    check_listed(path)
    if not path.is_file():
        raise TrellisError(f"there is no {path.name} in {path.parent}: give the folder of a trained model.")
    return read_object(path, infinite=infinite)


def read_about(folder: Path) -> dict[str, Any]:
    """What Trellis wrote of a model in its `config.json`."""
    about = read_json(folder / "config.json")
    nested = about.get(NESTED)
    return nested if isinstance(nested, dict) else about


def find_model(name: str, what: str, setting: str, data_dir: str | None = None) -> Path:
    """The folder or file of a teacher or network: as it is named, or so named in the data folder."""
    looked_at = places(name, data_dir)
    path = next((place for place in looked_at if place.exists()), None)
    if path is None:
        looked = " and ".join(map(str, looked_at))
        raise TrellisError(
            f"there is no {what} '{name}', looked at {looked}: set {setting} to the folder of a causal model."
        )
    return model_folder(path)


def model_folder(name: str | PathLike[str]) -> Path:
    """The folder of a saved model or a checkpoint as it is; of a run, that of its best model so far."""
    if not isinstance(name, str | PathLike):
        raise TrellisError(f"a model is named by its folder and not by a {type(name).__name__}: give a path.")
    folder = Path(name)
    if not folder.exists():
        raise TrellisError(f"there is no model {folder}: give the folder of a run or of a saved model.")
    if (folder / "config.json").exists() or not folder.is_dir():
        return folder
    if (folder / BEST).is_dir():
        return folder / BEST
    if (folder / RUN_FILE).exists():
        raise TrellisError(f"{folder} is a run without a model yet: train it further, or name a checkpoint.")
    return folder


def kind_of(folder: Path) -> str:
    """The kind of a saved model; an HMM of an older layout is refused."""
    about = read_about(folder)
    model_type = str(about.get("model_type"))
    if not model_type.startswith(OURS):
        raise TrellisError(f"{folder} holds a model of another kind: Trellis reads only its own.")
    kind = model_type.removeprefix(OURS)
    if about.get("format") == 1 and kind in ("hmm", "blocked"):
        raise TrellisError(
            f"{folder} was saved by an older layout of Trellis: train it again, or use it with the version that wrote "
            "it (0.1.0)."
        )
    return kind


def load(folder: str | PathLike[str], config: type[Config]) -> tuple[Config, dict[str, Tensor]]:
    """The configuration and tensors of a model of the kind that `config` describes: saved, a checkpoint, or a run's."""
    folder = model_folder(folder)
    kind = kind_of(folder)
    if kind != config.kind:
        raise TrellisError(f"{folder} holds a model of another kind, {kind} and not {config.kind}: use load_model.")
    about = read_about(folder)
    if about.pop("format", None) not in (1, FORMAT):
        raise TrellisError(f"{folder} was written by another version of Trellis: save it again with that version.")
    known = {name: value for name, value in about.items() if name not in ("model_type", "tokenizer", CHECKSUM)}
    built = build(config, known)
    _check_sizes(built, numbers_in(folder / WEIGHTS), folder)
    return built, read_tensors(folder / WEIGHTS, about.get(CHECKSUM))


def _check_sizes(config: ModelConfig, numbers: int, folder: Path) -> None:
    """Refuse a shape that the numbers on disk cannot fill, before even an empty model of it is made."""
    for name in SIZES:
        size = getattr(config, name, None)
        if isinstance(size, int) and size > max(numbers, SMALL):
            raise TrellisError(
                f"the {numbers:,} weights in {folder} do not fit its config.json, where {name} is {size:,}: restore "
                "both."
            )


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; one that several parts share goes by its first name alone."""
    firsts: dict[int, str] = {}
    everything = module.state_dict(keep_vars=True)
    for name, tensor in everything.items():
        firsts.setdefault(id(tensor), name)
    return {name: everything[name] for name in firsts.values()}


def check_fits(module: nn.Module, tensors: dict[str, Tensor], where: str | PathLike[str]) -> None:
    """Refuse tensors of other names, shapes or kinds than the module's, which may be one that has no memory yet."""
    wanted, found = ({name: Shape.of(t) for name, t in these.items()} for these in (tensors_of(module), tensors))
    if wanted != found:
        name = min(name for name in wanted | found if wanted.get(name) != found.get(name))
        raise TrellisError(
            f"the weights in {where} do not fit this model ({name} is {found.get(name, 'absent')}, "
            f"not {wanted.get(name, 'absent')}): it was trained with another vocabulary or configuration."
        )


def restore(module: Model, tensors: dict[str, Tensor], where: str | PathLike[str]) -> None:
    """Copy tensors into those of the same names and shapes, all of them or none; they bring their own precision."""
    check_fits(module, tensors, where)
    module.check_tensors(tensors, where)
    with torch.no_grad():
        for name, tensor in tensors_of(module).items():
            tensor.data = tensor.data.to(tensors[name].dtype).copy_(tensors[name])
            increment_version(tensor)  # which setting `data` does not, and what is kept of a model goes by
