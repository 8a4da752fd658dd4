"""Models on disk: `config.json`, `model.safetensors` and the tokenizer's files. No pickle."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.folders import whole_folder
from trellis.models.parameters import HMMConfig
from trellis.settings import build

if TYPE_CHECKING:
    from trellis.models.hmm import HMM

FORMAT = 1
MODEL_TYPE = "trellis_hmm"


class Savable(Protocol):
    """A tokenizer, as far as a model on disk cares."""

    def save(self, folder: str | PathLike[str]) -> None:
        """Write its files into the folder."""

    def fingerprint(self) -> str:
        """Hash of all that decides the ids."""


def save(model: HMM, folder: str | PathLike[str], tokenizer: Savable | None) -> None:
    """Write the model and its tokenizer as one folder, all or nothing; an older model there makes way."""
    _refuse_other_contents(Path(folder))
    with whole_folder(folder) as temporary:
        write(model, temporary, tokenizer)


def _refuse_other_contents(folder: Path) -> None:
    """Only a model may be replaced by a model: whatever else stands in the folder would be lost."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        ours = read_json(folder / "config.json").get("model_type") == MODEL_TYPE
    except TrellisError:
        ours = False
    if not ours:
        raise TrellisError(f"{folder} holds something other than a Trellis model; choose another folder.")


def write(model: HMM, folder: Path, tokenizer: Savable | None) -> None:
    """Write the files of a model into a folder that somebody else makes whole."""
    about: dict[str, Any] = {"model_type": MODEL_TYPE, "format": FORMAT, **dataclasses.asdict(model.config)}
    if tokenizer is not None:
        tokenizer.save(folder)
        about["tokenizer"] = tokenizer.fingerprint()
    (folder / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    write_tensors(folder / "model.safetensors", dict(model.named_parameters()))


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as safetensors, with the operating system's own error if the disk is full."""
    try:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:  # it wraps every error of the disk in a type of its own
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors, refusing a file that is missing or cut short."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise TrellisError(f"{path.parent} has no {path.name}: it is not a whole model or checkpoint.") from None
    except (SafetensorError, OSError, ValueError):
        raise TrellisError(f"{path} is cut short or damaged: restore it or use an older checkpoint.") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, refusing a file that is missing or cut short."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise TrellisError(f"there is no {path.name} in {path.parent}: give the folder of a trained model.") from None
    except (ValueError, OSError):
        raise TrellisError(f"{path} is cut short or damaged: restore it or use an older checkpoint.") from None
    if not isinstance(found, dict):
        raise TrellisError(f"{path} does not hold a JSON object: it was not written by Trellis.")
    return found


def load(folder: str | PathLike[str]) -> tuple[HMMConfig, dict[str, Tensor]]:
    """The configuration and parameters of a saved model."""
    about = read_json(Path(folder) / "config.json")
    if about.pop("model_type", None) != MODEL_TYPE:
        raise TrellisError(f"{folder} holds a model of another kind: Trellis reads only its own HMMs.")
    if about.pop("format", None) != FORMAT:
        raise TrellisError(f"{folder} was written by another version of Trellis: save it again with that version.")
    about.pop("tokenizer", None)
    return build(HMMConfig, about), read_tensors(Path(folder) / "model.safetensors")


def restore(module: nn.Module, tensors: dict[str, Tensor], where: str | PathLike[str]) -> None:
    """Copy tensors into the parameters of the same names and shapes, all of them or none."""
    wanted = {name: p.shape for name, p in module.named_parameters()}
    found = {name: t.shape for name, t in tensors.items()}
    if wanted != found:
        names = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        raise TrellisError(
            f"the weights in {where} do not fit this model ({names[0]} is {_shape(found.get(names[0]))}, "
            f"not {_shape(wanted.get(names[0]))}): it was trained with another vocabulary or configuration."
        )
    module.to(next(iter(tensors.values())).dtype)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensors[name])


def _shape(shape: torch.Size | None) -> str:
    return "absent" if shape is None else "×".join(map(str, shape))
