"""What is fuzzed: each target takes any bytes, and either returns or refuses them in a sentence of Trellis."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trellis.text import WordTokenizer

WORDS = ["<unk>", "<eos>", "a", "b", "cat"]
LONGEST = 60  # characters of an expression or a constraint: automata of longer ones are work, not a fault


@dataclass(frozen=True)
class Target:
    """A reader, and what it reads well."""

    read: Callable[[bytes], None]
    texts: tuple[bytes, ...] = ()
    files: tuple[str, ...] = ()  # of a checkpoint, with a zero byte between them

    def seeds(self) -> tuple[bytes, ...]:
        """Inputs to begin with."""
        return (*self.texts, *([b"\0".join(_written()[name] for name in self.files)] if self.files else []))


def _settings(data: bytes) -> None:
    from trellis.config import load

    load(None, [line for line in data.decode("utf-8", "replace").split("\n") if line][:4])


def _yaml(data: bytes) -> None:
    from trellis.config import load

    load(_file("settings.yaml", data))


def _json_lines(data: bytes) -> None:
    from trellis.text.files import read_documents

    for _ in read_documents([_file("text.jsonl", data)]):
        pass


def _clusters(data: bytes) -> None:
    from trellis.text.clusters import read_paths

    read_paths(_file("words.paths", data), _words(), "a")


def _place(data: bytes) -> None:
    """A checkpoint that somebody wrote a place into."""
    from trellis.training import checkpoints

    folder = _checkpoint()
    (folder / "place.json").write_bytes(data)
    checkpoints.load(folder, "run")


def _weights(data: bytes) -> None:
    from trellis.models.tensor_files import read_tensors

    read_tensors(_file("model.safetensors", data))


def _config(data: bytes) -> None:
    """A model whose config.json says something else."""
    from trellis.models.registry import load_model

    folder = _checkpoint()
    (folder / "config.json").write_bytes(data)
    load_model(folder)


def _tokenizer(data: bytes) -> None:
    """A tokenizer's two files, with a zero byte between them."""
    from trellis.text import load_tokenizer

    first, _, second = data.partition(b"\0")
    (_scratch() / "tokenizer").mkdir(exist_ok=True)
    _file("tokenizer/tokenizer.json", first)
    _file("tokenizer/tokenizer_config.json", second)
    tokenizer = load_tokenizer(_scratch() / "tokenizer")
    tokenizer.decode(tokenizer.encode("a cat"))


def _expression(data: bytes) -> None:
    from trellis.automata.expressions import expression

    expression(data.decode("utf-8", "replace")[:LONGEST])


def _constraint(data: bytes) -> None:
    from trellis.constraints.parsing import parse

    parse(data.decode("utf-8", "replace")[:LONGEST]).automaton(_words())


@cache
def _words() -> WordTokenizer:
    from trellis.text import WordTokenizer

    return WordTokenizer(WORDS)


@cache
def _scratch() -> Path:
    """A folder of this process."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def clean() -> None:
    """Delete the folder of this process."""
    shutil.rmtree(_scratch(), ignore_errors=True)
    _scratch.cache_clear()
    _written.cache_clear()


def _file(name: str, data: bytes) -> Path:
    path = _scratch() / name
    path.write_bytes(data)
    return path


def _checkpoint() -> Path:
    """A whole checkpoint, without the manifest that would refuse every change."""
    folder = _scratch() / "checkpoint-1"
    for name, content in _written().items():
        (folder / name).write_bytes(content)
    return folder


@cache
def _written() -> dict[str, bytes]:
    from trellis import HMM, HMMConfig
    from trellis.training import checkpoints

    place = checkpoints.Place(1, 1, 8, 0.5, None, {"level": 1.0, "best": 2.0, "waited": 0.0}, "run")
    model = HMM(HMMConfig(len(WORDS), states=2), seed=0)
    folder = checkpoints.save(_scratch(), model, _words(), place, {}, None, 1)
    (folder / "manifest.json").unlink()
    return {path.name: path.read_bytes() for path in folder.iterdir()}


HEADER = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
TARGETS = {
    "settings": Target(_settings, (b"model.states=8\ntraining.lr=0.1", b"data.corpus=[a]\nout=x", b"model.kind=lstm")),
    "yaml": Target(_yaml, (b"model: {states: 8}\ntraining:\n  lr: 1e-3\n", b"data:\n  corpus: [a.txt]\nout: runs/x\n")),
    "json lines": Target(_json_lines, (b'{"text": "a b"}\n{"text": "c"}\n', b'{"text": "\\u00e9"}')),
    "clusters": Target(_clusters, (b"00\ta\t3\n01\tb\t2\n", b"0\ta\n1\tcat\n")),
    "place.json": Target(_place, files=("place.json",)),
    "safetensors": Target(_weights, (len(HEADER).to_bytes(8, "little") + HEADER + bytes(8),), ("model.safetensors",)),
    "config.json": Target(_config, files=("config.json",)),
    "tokenizers": Target(_tokenizer, (b'{}\0{"trellis_kind": "bytes"}',), ("tokenizer.json", "tokenizer_config.json")),
    "expressions": Target(_expression, (b"(a|b)*c{2,3}[^x-z]\\d+", "é?(?:x|y)+".encode(), b"^a.b$")),
    "constraints": Target(_constraint, (b"contains(cat) & ~length(2, 5)", b"matches('a.*').then(times(b, 2))")),
}


def run(name: str, data: bytes) -> None:
    """Give a target some bytes; a refusal is as good as an answer, and anything else is raised."""
    from trellis.errors import TrellisError

    with suppress(TrellisError):
        TARGETS[name].read(data)
