"""The corpus that is always at hand: the English of the running Python's own documentation.

Sources are parsed, never imported. It changes with the Python version, so compare figures under one hash.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from trellis.errors import TrellisError
from trellis.folders import default_cache, whole_folder
from trellis.json_files import read_json
from trellis.manifests import check_listed
from trellis.progress import Progress

_SKIPPED = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "pydoc_data",
    "turtledemo",
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PER_CENT = {"valid": 5, "test": 5}  # the rest is train

_FEWEST_WORDS = 4
_PLAIN_SHARE = 0.8  # below this share of plain words a sentence is taken for code, a table or a signature

_ROLE = re.compile(r":[a-z:]+:`")
_MARKUP = re.compile(r"[`´*]")
_BULLET = re.compile(r"^\s*(?:[*•-]|\(?\d+[.)])\s+")
_TABLE = re.compile(r"\S(?: {3,}|\t)\S|[-=+~*^]{4,}|--\s*$")
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"')]*\s+(?=[\"'(]?[A-Z])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|resp|Mr|Dr|St|No)|\b[A-Z])\.$")
_PLAIN_WORD = re.compile(r"^[\"'(]*[A-Za-z]+(?:[-'’][A-Za-z]+)*[\"')]*[.,;:?!]*[\"')]*$")
_TOKEN = re.compile(r"\d[\w.,]*\w|\d|[^\W\d]\w*(?:[.'’-]\w+)*(?:\(\))?|--+|\.\.\.|[^\w\s]")


@functools.cache
def pydocs(split: str) -> tuple[str, ...]:
    """Give the sentences of one split, each a line of lower-case words and punctuation marks."""
    return tuple(sentence for sentence, side in _sentences() if side == split)


@functools.cache
def _sentences() -> tuple[tuple[str, str], ...]:
    """Every sentence and its split; kept on disk, because parsing the library takes seconds."""
    folder = default_cache() / f"pydocs-{_edition()}"
    path = folder / "sentences.json"
    with contextlib.suppress(OSError, ValueError, TypeError, TrellisError):  # not there, or damaged: made again
        check_listed(path)
        return tuple((str(sentence), str(side)) for sentence, side in read_json(path))
    found = _read_library()
    with contextlib.suppress(OSError, TrellisError), whole_folder(folder) as partial:
        # A cache that cannot be written costs seconds, not the corpus.
        (partial / path.name).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    return found


def _edition() -> str:
    """What decides the sentences: this Python, and the rules in this file."""
    rules = Path(__file__).read_bytes()
    told = f"{sys.version} {sysconfig.get_path('stdlib')}".encode()
    return hashlib.blake2b(told + rules, digest_size=8).hexdigest()


def _read_library() -> tuple[tuple[str, str], ...]:
    sides: dict[str, str] = {}  # the first source of a sentence decides, so no sentence is on two sides
    with Progress("reading the documentation of this Python's library", unit="texts") as bar:
        for source, text in _texts():
            side = split_of(source)
            for paragraph in paragraphs(text):
                for sentence in prose(paragraph):
                    sides.setdefault(tokenise(sentence), side)
            bar.advance()
    if not sides:
        raise TrellisError("This Python has no library sources to read; name a text file as corpus instead.")
    return tuple(sides.items())


def split_of(source: str) -> str:
    """Put a whole module or topic on one side by a stable hash, so that neighbours stay together."""
    place = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), "big") % 100
    for split, share in _PER_CENT.items():
        if place < share:
            return split
        place -= share
    return "train"


def _texts() -> Iterator[tuple[str, str]]:
    """Name and text of every topic and docstring, in an order that does not depend on the file system."""
    root = Path(sysconfig.get_path("stdlib"))
    topics = root / "pydoc_data" / "topics.py"
    if topics.exists():
        for name, text in sorted(_topics(topics).items()):
            yield f"topic {name}", text
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
        place = path.relative_to(root)
        if not _SKIPPED.intersection(place.parts):
            for text in _docstrings(path):
                yield f"module {place.as_posix()}", text


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in the library's sources are not our user's business
        try:
            with tokenize.open(path) as file:
                return ast.parse(file.read())
        except (SyntaxError, UnicodeDecodeError):  # templates and deliberately broken files
            return ast.Module(body=[], type_ignores=[])


def _topics(path: Path) -> dict[str, str]:
    for node in _parse(path).body:
        if isinstance(node, ast.Assign):
            return {str(name): str(text) for name, text in ast.literal_eval(node.value).items()}
    return {}


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(_parse(path)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
            yield inspect.cleandoc(text)


def paragraphs(text: str) -> Iterator[str]:
    """Cut a text at blank lines and list items, dropping tables, underlines and interactive sessions."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        bullet = _BULLET.match(line)
        if lines and (bullet or not line.strip()):
            if not any(_TABLE.search(kept.strip()) or kept.lstrip().startswith(">>>") for kept in lines):
                yield " ".join(kept.strip() for kept in lines)
            lines = []
        if line.strip():
            lines.append(line[bullet.end() :] if bullet else line)


def prose(paragraph: str) -> Iterator[str]:
    """Give a paragraph's sentences, leaving out what does not read like English."""
    text = _MARKUP.sub("", _ROLE.sub("", paragraph)).replace("::", ":")
    start = 0
    ends = [match for match in _SENTENCE_END.finditer(text) if not _ABBREVIATION.search(text[: match.start()])]
    for end in [*(match.end() for match in ends), len(text)]:
        sentence = text[start:end].strip()
        start = end
        if _reads_like_english(sentence):
            yield sentence


def _reads_like_english(sentence: str) -> bool:
    words = sentence.split()
    if len(words) < _FEWEST_WORDS or not re.match(r"[\"'(]*[A-Z]", sentence):
        return False
    if not re.search(r"[.?!:][\"')]*$", sentence):
        return False
    return sum(bool(_PLAIN_WORD.match(word)) for word in words) >= _PLAIN_SHARE * len(words)


def tokenise(sentence: str) -> str:
    """Lower the case, split punctuation off and write every number as N, as Penn Treebank does."""
    tokens = _TOKEN.findall(sentence.replace("’", "'"))
    return " ".join("N" if token[0].isdigit() else token.lower() for token in tokens)
