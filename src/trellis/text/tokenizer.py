"""What every tokenizer can do, and how one is read back from its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.errors import InputError, TrellisError
from trellis.folders import BEST
from trellis.json_files import read_object
from trellis.manifests import check_listed
from trellis.settings import closest

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"


class Tokenizer(Protocol):
    """Turns a document into ids and back; the end of a document is not its business but the id file's."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def eos_id(self) -> int | None:
        """Id that ends a document, if the vocabulary has one."""

    @property
    def unk_id(self) -> int | None:
        """Id of words outside the vocabulary, if there can be any."""

    def encode(self, text: str) -> list[int]:
        """Ids of one document, nothing added."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several documents, on several threads where that helps."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of some ids."""

    def token(self, id: int) -> str:
        """Spelling of one id."""

    def id(self, token: str) -> int:
        """Id of one token, which must be in the vocabulary."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that `load_tokenizer` and Hugging Face libraries read."""

    def fingerprint(self) -> str:
        """Hash of all that decides the ids."""


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Read a tokenizer of any kind from its folder: also that of a saved model, of a checkpoint or of a run."""
    from trellis.text import characters, integers, vocabulary
    from trellis.text.subwords import SubwordTokenizer

    ours: dict[object, Callable[[str | os.PathLike[str]], Tokenizer]] = {
        vocabulary.KIND: vocabulary.WordTokenizer.load,
        characters.CHARACTERS: characters.CharacterTokenizer.load,
        characters.BYTES: characters.ByteTokenizer.load,
        integers.KIND: integers.IntegerTokenizer.load,
    }
    folder = _folder(Path(folder))
    kind = read_config(folder).get("trellis_kind")
    loaded = ours.get(kind if isinstance(kind, str) else None, SubwordTokenizer.load)(folder)
    _check_unchanged(folder, loaded)
    return loaded


def _check_unchanged(folder: Path, loaded: Tokenizer) -> None:
    """Refuse files that are not as the manifest says, unless the model beside them was trained with the same ids.

    Tokenizers of the transformers library may be saved into a model's folder, and spell the same in other words.
    """
    try:
        for name in (TOKENIZER_FILE, CONFIG_FILE):
            check_listed(folder / name)
    except TrellisError:
        path = folder / "config.json"
        about = read_object(path) if path.exists() else {}
        about = about.get("trellis", about)
        if not isinstance(about, dict) or about.get("tokenizer") != loaded.fingerprint():
            raise


def _folder(folder: Path) -> Path:
    """Where a tokenizer lies: in the folder itself, or in that of a run's best model."""
    here = any((folder / name).exists() for name in (TOKENIZER_FILE, CONFIG_FILE))
    return folder / BEST if not here and (folder / BEST).is_dir() else folder


def tokenizer_file(folder: Path) -> Path:
    """Find the tokenizer's file, or say what a tokenizer folder is."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise TrellisError(f"{folder} has no {TOKENIZER_FILE}; name a folder that a tokenizer was saved in.")
    return path


def read_config(folder: Path) -> dict[str, Any]:
    """Read the settings beside a tokenizer; many have none."""
    path = folder / CONFIG_FILE
    return read_json(path) if path.is_file() else {}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a tokenizer's folder, or say which file is broken."""
    return read_object(path, "fetch or save the tokenizer again")


def read_vocabulary(folder: Path) -> list[str]:
    """The tokens of a saved vocabulary in the order of their ids, of which none is missing."""
    path = tokenizer_file(folder)
    model = read_json(path).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise TrellisError(f"{path} holds no word vocabulary; save the tokenizer again.")
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise TrellisError(f"{path} skips or repeats an id; save the tokenizer again.")
    return tokens


def write_folder(folder: Path, tokenizer: HuggingFaceTokenizer, **settings: str | bool | None) -> None:
    """Write a folder that Hugging Face libraries read: the tokenizer, and beside it the settings that it has.

    They pad at the left, where a text to be continued has not begun, with the end of documents where there is one. In a
    text, what is spelt like a special token of ours is text.
    """
    if settings.get("trellis_kind") is not None:
        settings["split_special_tokens"] = True
    if settings.get("eos_token") is not None:
        settings |= {"pad_token": settings["eos_token"], "padding_side": "left"}
    known = {name: value for name, value in settings.items() if value is not None}
    config = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **known}, ensure_ascii=False, indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    (folder / CONFIG_FILE).write_text(config + "\n", encoding="utf-8")


def several(documents: Iterable[str]) -> Iterable[str]:
    """Documents as they are; one string, whose letters would be taken for documents, is refused."""
    if isinstance(documents, str):
        raise InputError("documents is a single string: give a list of strings, or a corpus from open_corpus.")
    return documents


def refuse_token(token: str, known: Iterable[str]) -> NoReturn:
    """Say that a token is not in the vocabulary, and which one comes nearest."""
    near = closest(token, known, at_least=0.6)
    hint = "use a token that is." if near is None else f"did you mean {near!r}?"
    raise TrellisError(f"{token!r} is not in the vocabulary; {hint}")


def refuse_id(id: int, vocab_size: int) -> NoReturn:
    """Say which ids there are."""
    raise TrellisError(f"There is no token {id}; use an id from 0 to {vocab_size - 1}.")
