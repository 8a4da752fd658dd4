"""HMMs in the layout of Ctrl-G (Zhang et al. 2024): read from its folders, and written as such.

A folder has `config.json` with hidden_states, vocab_size and eos_token_id, and `model.safetensors` with the transition
matrix as probabilities (`alpha_exp`), emissions as logarithms (`beta`) and the start as logits (`gamma`). Which tensor
is a logarithm is told by its name: names that end with `_exp` are probabilities.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from trellis.errors import TrellisError
from trellis.folders import whole_folder
from trellis.json_files import write_json
from trellis.manifests import MANIFEST
from trellis.models.hmm import HMM
from trellis.models.hmm_config import HMMConfig
from trellis.models.storage import WEIGHTS, read_json
from trellis.models.tensor_files import numbers_in, read_tensors, write_tensors

CONFIG_FILE = "config.json"
PARTS = {"alpha": "transition", "beta": "emission", "gamma": "start"}
AS_PROBABILITIES = "_exp"
TOLERANCE = 1e-3  # how far from one a row's sum may be: numbers may have been stored in half precision
SOME = 1 << 24  # numbers that are checked together
OTHER_FILE = "pytorch_model.bin"


class Imported(NamedTuple):
    """A model of Ctrl-G's as one of ours, and the token that ends its texts, if the folder says."""

    model: HMM
    eos_id: int | None


def read_ctrl_g(folder: str | PathLike[str]) -> Imported:
    """The HMM in a folder of Ctrl-G's, with the same scores; what does not fit together is refused.

    Ctrl-G takes the softmax of `gamma`, so that needs no sum; rows of the others must sum to one.
    """
    path = Path(folder)
    if not (path / WEIGHTS).exists() and (path / OTHER_FILE).exists():
        raise TrellisError(f"{path} holds pickled weights, which are not opened: save it anew as {WEIGHTS}.")
    config = read_json(path / CONFIG_FILE) if (path / CONFIG_FILE).exists() else {}
    names = _names(path / WEIGHTS)
    states, vocab_size = _sizes(path, config, names)
    tensors = read_tensors(path / WEIGHTS)
    found = {part: _logarithms(path, tensors.pop(name), name) for part, name in names.items()}
    model = HMM(HMMConfig(vocab_size, states), seed=0)
    model.take_logits(found["gamma"].reshape(-1), found["alpha"], found["beta"].T)
    return Imported(model.eval(), _whole(path, config, "eos_token_id", 0, vocab_size))


def _names(path: Path) -> dict[str, str]:
    """The name under which each part is stored."""
    numbers_in(path)  # refuses what is no such file
    with safe_open(path, "pt") as file:
        there = set(file.keys())
    found = {}
    for part, what in PARTS.items():
        known = [name for name in (part, part + AS_PROBABILITIES) if name in there]
        if len(known) != 1:
            named = " and ".join(known) if known else f"neither {part} nor {part}{AS_PROBABILITIES}"
            raise TrellisError(f"{path} has {named} for its {what}: give a file of Ctrl-G's with one of them.")
        found[part] = known[0]
    return found


def _sizes(path: Path, config: dict[str, Any], names: dict[str, str]) -> tuple[int, int]:
    """States and words, which all shapes and the configuration agree on, before anything large is read."""
    with safe_open(path / WEIGHTS, "pt") as file:
        shapes = {part: tuple(file.get_slice(name).get_shape()) for part, name in names.items()}
    if len(shapes["beta"]) != 2 or 0 in shapes["beta"]:
        raise TrellisError(f"{names['beta']} in {path} has the shape {shapes['beta']}, not states × words: mend it.")
    states, vocab_size = shapes["beta"]
    gammas = ((states,), (1, states), (states, 1))
    if shapes["alpha"] != (states, states) or shapes["gamma"] not in gammas:
        wrong = "gamma" if shapes["alpha"] == (states, states) else "alpha"
        raise TrellisError(
            f"{names[wrong]} in {path} has the shape {shapes[wrong]}, but {names['beta']} is of {states:,} states: "
            "restore the file."
        )
    for name, size in (("hidden_states", states), ("vocab_size", vocab_size)):
        if (told := _whole(path, config, name, 1, None)) not in (None, size):
            raise TrellisError(f"{path / CONFIG_FILE} has {name} {told:,}, but the tensors have {size:,}: mend it.")
    return states, vocab_size


def _whole(path: Path, config: dict[str, Any], name: str, least: int, below: int | None) -> int | None:
    """A whole number of the configuration; None if it does not say."""
    value = config.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least or (below is not None and value >= below):
        raise TrellisError(f"{path / CONFIG_FILE} has {name} {value!r}, which cannot be: mend it.")
    return value


def _logarithms(path: Path, tensor: Tensor, name: str) -> Tensor:
    """A tensor as logarithms, float32 or wider, its rows checked; `gamma` alone may have any sum."""
    if not tensor.is_floating_point():
        raise TrellisError(f"{name} in {path} holds whole numbers: give probabilities or their logarithms.")
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    rows = wide.reshape(1, -1) if name.startswith("gamma") else wide
    given = name.endswith(AS_PROBABILITIES)
    for begin in range(0, len(rows), at_once := max(1, SOME // rows.shape[1])):
        some = rows[begin : begin + at_once].double()
        if bool(some.isnan().any()) or bool((some == torch.inf).any()) or (given and bool((some < 0).any())):
            raise TrellisError(f"{name} in {path} holds what is no {'probability' if given else 'logarithm'}: mend it.")
        sums = some.sum(-1) if given else some.logsumexp(-1).exp()
        off = (sums - 1).abs() if name != "gamma" else torch.where(sums > 0, 0.0, 1.0)
        if not bool((off < TOLERANCE).all()):
            row = int(off.argmax())
            raise TrellisError(
                f"row {begin + row} of {name} in {path} sums to {float(sums[row]):.6g}, not to one: mend it."
            )
    return wide.log() if given else wide


def write_ctrl_g(model: HMM, folder: str | PathLike[str], eos_id: int) -> None:
    """Write the model's distributions in Ctrl-G's layout, all or nothing; `eos_id` ends its texts."""
    config = model.config
    if not 0 <= eos_id < config.vocab_size:
        raise TrellisError(f"token {eos_id} is none of the {config.vocab_size:,} words: name the one that ends a text.")
    _refuse_other_contents(Path(folder))
    tables = model.tables()
    dense = model.support is None
    with torch.no_grad():
        beta_SV = model.log_emission().T if dense else tables.emission_SV.log()
        tensors = {"alpha_exp": tables.transition_SS, "beta": beta_SV, "gamma": model.log_start()}
    with whole_folder(folder) as partial:
        write_tensors(partial / WEIGHTS, {name: tensor.float().cpu() for name, tensor in tensors.items()})
        told = {"hidden_states": config.states, "vocab_size": config.vocab_size, "eos_token_id": eos_id}
        write_json(partial / CONFIG_FILE, told)


def _refuse_other_contents(folder: Path) -> None:
    """Only such a folder may be replaced: whatever else stands there would be lost."""
    if folder.is_dir() and any(entry.name not in (WEIGHTS, CONFIG_FILE, MANIFEST) for entry in folder.iterdir()):
        raise TrellisError(f"{folder} holds other files, which would be lost: choose another folder.")
