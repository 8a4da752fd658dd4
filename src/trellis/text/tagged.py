"""Tagged files: a word and its tag a line, with tabs between columns and a blank line between sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.folders import whole_folder
from trellis.text.files import check_files, read_documents
from trellis.text.vocabulary import EOS

NOTHING = "_"  # a tag that is none, as CoNLL-U writes it of lines that are not words
WORDS_FILE, LABELS_FILE, TAGS_FILE = "words.txt", "labels.npy", "tags.txt"


class TaggedSentence(NamedTuple):
    """Words, and the tag of each; without a column of tags, all are empty."""

    words: list[str]
    tags: list[str]


class Columns(NamedTuple):
    """Where words and tags stand in a line, counted from 1; there are no tags in column 0."""

    tag: int = 2
    word: int = 1

    def check(self) -> None:
        """Refuse columns that cannot be meant."""
        if self.word < 1 or self.tag < 0:
            raise TrellisError(
                f"columns are counted from 1, and 0 is no tags: words in {self.word} and tags in {self.tag} cannot be."
            )
        if self.word == self.tag:
            raise TrellisError(f"column {self.word} cannot hold both words and tags: name another one for either.")


def read_tagged(path: str | os.PathLike[str], columns: Columns = Columns()) -> list[TaggedSentence]:  # noqa: B008  # Columns is immutable
    """The sentences of a tagged file, plain or compressed.

    Lines without tabs that begin with # are comments, and lines whose tag is _ are no words. Spaces within a word
    become _, because words stand between spaces in text.
    """
    columns.check()
    sentences, words, tags = [], list[str](), list[str]()
    for word, tag in _rows(check_files([path])[0], columns):
        if word:
            words.append("_".join(word.split()))
            tags.append(tag)
        elif words:
            sentences.append(TaggedSentence(words, tags))
            words, tags = [], []
    if words:
        sentences.append(TaggedSentence(words, tags))
    if not sentences:
        raise TrellisError(f"{path} holds no words; give a file with a word and its tag a line.")
    return sentences


def _rows(path: Path, columns: Columns) -> Iterator[tuple[str, str]]:
    """The word and the tag of every line; two empty strings of a line that ends a sentence."""
    for number, line in enumerate(read_documents([path]), start=1):
        if not line.strip():
            yield "", ""
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) == 1 and line.startswith("#"):
            continue
        if len(cells) < max(columns):
            raise TrellisError(
                f"{path} line {number} has no column {max(columns)}; write word and tag with a tab between, or name "
                "other columns."
            )
        word, tag = cells[columns.word - 1], cells[columns.tag - 1] if columns.tag else ""
        if not word or (columns.tag and not tag):
            raise TrellisError(f"{path} line {number} has an empty {'tag' if word else 'word'}; fill it in.")
        if tag != NOTHING:
            yield word, tag


def tag_names(sentences: Sequence[TaggedSentence]) -> list[str]:
    """The tags there are, by name, and `<eos>` for the end of a sentence: the state of each tag is its place here."""
    return [*sorted({tag for sentence in sentences for tag in sentence.tags} - {EOS, ""}), EOS]


def labels_of(
    sentences: Sequence[TaggedSentence], names: Sequence[str], labelled: NDArray[np.bool_] | None = None
) -> NDArray[np.int32]:
    """The state of each token, sentences one after another and `<eos>` after each; −1 where tags are not to be known.

    `labelled` says of which sentences they are: by default of all. The end of a sentence is always known.
    """
    known = {name: state for state, name in enumerate(names)}
    labels: list[int] = []
    for number, (_, tags) in enumerate(sentences):
        if labelled is None or labelled[number]:
            for tag in tags:
                if tag not in known:
                    raise TrellisError(f"the tag {tag} is none of those named; name it, or label other sentences.")
                labels.append(known[tag])
        else:
            labels += [-1] * len(tags)
        labels.append(known.get(EOS, -1))
    return np.array(labels, dtype=np.int32)


def some_sentences(wanted: str, sentences: int, seed: int = 0) -> NDArray[np.bool_]:
    """Which of the sentences are labelled: so many, as 100, or such a share, as 10%; drawn from a seed.

    The first sentences drawn from a seed stay drawn when more are wanted.
    """
    try:
        number = float(wanted[:-1]) / 100 * sentences if wanted.endswith("%") else int(wanted)
    except ValueError:
        raise TrellisError(f"'{wanted}' is no number of sentences: write 100, or 10%.") from None
    if not 0 <= number <= sentences:
        raise TrellisError(f"{wanted} of {sentences:,} sentences cannot be labelled: ask for 0 to {sentences:,}.")
    labelled = np.zeros(sentences, dtype=bool)
    labelled[np.random.default_rng(seed).permutation(sentences)[: round(number)]] = True
    return labelled


def read_tag_names(path: str | os.PathLike[str]) -> list[str]:
    """The tag of each state, one a line, as `trellis untag` writes them; a tag may have several states."""
    names = [line.strip() for line in read_documents(check_files([path]))]
    if not all(names):
        raise TrellisError(f"{path} line {names.index('') + 1} is empty; write the tag of one state a line.")
    return names


def write_untagged(
    folder: Path, sentences: Sequence[TaggedSentence], names: Sequence[str], labels: NDArray[np.int32]
) -> None:
    """Write the words as text, a sentence a line, labels of its tokens and the tag of each state, all or nothing."""
    files = {
        WORDS_FILE: "".join(f"{' '.join(sentence.words)}\n" for sentence in sentences),
        TAGS_FILE: "".join(f"{name}\n" for name in names),
    }
    if folder.is_dir() and any(entry.name not in (*files, LABELS_FILE) for entry in folder.iterdir()):
        raise TrellisError(f"{folder} holds other files, which would be lost: choose another folder.")
    with whole_folder(folder, for_people=True) as partial:
        for name, text in files.items():
            (partial / name).write_text(text, encoding="utf-8")
        np.save(partial / LABELS_FILE, labels)
