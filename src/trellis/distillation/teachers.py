"""Teachers: where one lies, which one it is, and the states that it has of tokens.

A teacher is named by its folder, by `random:<folder or config.json>` for one of that shape that has learnt nothing, or
by a GGUF file. It is found and hashed without being loaded, so that what was made of it before is found without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import storage
from trellis.text import Tokenizer

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_OF_NO_WEIGHT = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")  # config entries that move nothing


@dataclass(frozen=True)
class Teacher:
    """A teacher, loaded, at one of its layers.

    states     of a batch of its tokens, B×T → B×T×R: each has seen the tokens up to its own
    head_VR    its output vector of each token, if it has such vectors as wide as the states
    tokenizer  None: a shape without one, whose tokens may be any
    begin      id that its texts begin with, if they do
    longest    tokens it can read at once; None: any number
    """

    name: str
    states: Callable[[Tensor], Tensor]
    width: int
    head_VR: Tensor | None
    vocab_size: int
    tokenizer: Tokenizer | None
    begin: int | None
    longest: int | None


@dataclass(frozen=True)
class Source:
    """A teacher that was found but not loaded: its folder or file, and the seed of its weights if they are random."""

    name: str
    path: Path
    seed: int | None

    @property
    def config_file(self) -> Path:
        """The file that describes its shape."""
        return self.path / "config.json" if self.path.is_dir() else self.path

    def hash(self) -> str:
        """Hash of all that decides its states: weights, shape and tokenizer; of a random one the seed for weights."""
        found = hashlib.blake2b(digest_size=16)
        found.update(json.dumps(["teacher", self.seed]).encode())
        if self.config_file.suffix == ".json":
            config = storage.read_json(self.config_file)
            shape = {name: value for name, value in config.items() if name not in _OF_NO_WEIGHT}
            found.update(json.dumps(shape, sort_keys=True).encode())
        for file in self._files():
            found.update(f"\n{file.name}\n".encode())
            with file.open("rb") as content:
                found.update(hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=32)).digest())
        return found.hexdigest()

    def open(self, layer: int) -> Teacher:
        """Load it."""
        from trellis.distillation import hugging_face, recurrent

        return recurrent.load(self, layer) if self.is_ours() else hugging_face.load(self, layer)

    def is_ours(self) -> bool:
        """Whether it is a model of Trellis, or such a shape, that the transformers library does not load."""
        config = storage.read_json(self.config_file) if self.config_file.suffix == ".json" else {}
        return str(config.get("model_type")).startswith(storage.OURS)

    def _files(self) -> list[Path]:
        """Files whose whole content counts."""
        if not self.path.is_dir():
            return [] if self.seed is not None else [self.path]
        patterns = ["tokenizer.json", *(_WEIGHTS if self.seed is None else ())]
        return sorted(file for pattern in patterns for file in self.path.glob(pattern))


def find_teacher(name: str | None, seed: int, data_dir: str | None = None) -> Source:
    """Find a teacher as it is named, or so named in the data folder."""
    if not name:
        raise TrellisError("distillation needs a teacher: set distill.teacher to a model's folder.")
    path = storage.find_model(name.removeprefix(storage.RANDOM), "teacher", "distill.teacher", data_dir)
    source = Source(name, path, seed if name.startswith(storage.RANDOM) else None)
    _check_kind(source)
    return source


def _check_kind(source: Source) -> None:
    """Refuse what is no model: a folder without a shape, or a file of another sort."""
    wanted = ".json" if source.seed is not None else ".gguf"
    if source.path.is_dir() and not source.config_file.is_file():
        raise TrellisError(f"{source.path} has no config.json: name the folder of a model as the teacher.")
    if not source.path.is_dir() and source.path.suffix != wanted:
        raise TrellisError(f"{source.path} is no teacher: name a model's folder, a GGUF file, or random:<config.json>.")


def check_layer(layer: int, layers: int, name: str) -> int:
    """The layer counted from 0, the embeddings, to `layers`; −1 is the last, −2 the one before."""
    if not -layers - 1 <= layer <= layers:
        raise TrellisError(
            f"the teacher {name} has no layer {layer}: set distill.layer from 0 (embeddings) to {layers}, or -1 (last)."
        )
    return layer % (layers + 1)


def no_tokenizer(source: Source) -> TrellisError:
    """The sentence about a teacher that has learnt tokens, but does not say which."""
    return TrellisError(f"the teacher {source.name} has no tokenizer.json: put the one it was trained with beside it.")
