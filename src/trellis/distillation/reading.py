"""How a teacher reads a text of the HMM's tokens, and the state it has at each of them.

The text is cut into windows of 64 tokens, as Lee trains, and each is read by itself, after the teacher's token for the
beginning of a text if it has one. Where both have one vocabulary, the teacher reads the ids as they are. The words of a
word-level HMM are spelt out for a teacher of subwords, and each has the state at its last piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.distillation.teachers import Teacher
from trellis.errors import TrellisError
from trellis.text import SubwordTokenizer, Tokenizer, WordTokenizer

WINDOW = 64
ROWS = 64  # windows read at once: more are no faster on a processor


class Row(NamedTuple):
    """What the teacher reads of a window.

    first   the place in the text of the window's first token
    ids     the teacher's tokens
    places  of the window's tokens: where among the teacher's each has its state
    """

    first: int
    ids: NDArray[np.int64]
    places: NDArray[np.int64]


class Reader:
    """A teacher before a text: gives its states of the text's tokens, window by window."""

    def __init__(self, teacher: Teacher, ids: NDArray[Any], tokenizer: Tokenizer) -> None:
        self.teacher, self.ids = teacher, ids
        self.same = same_tokens(teacher, tokenizer)
        self._spelling = None if self.same else _Spelling(teacher, tokenizer)
        self._begin = [] if teacher.begin is None else [teacher.begin]
        self._room = None if teacher.longest is None else teacher.longest - len(self._begin)
        self.window = WINDOW if self._room is None else min(WINDOW, self._room)
        self.windows = -(-len(ids) // self.window)

    def states(self, windows: NDArray[Any] | range) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Batch by batch the places of tokens in the text, N, and the teacher's states there, N×R."""
        for start in range(0, len(windows), ROWS):
            rows = [row for window in windows[start : start + ROWS] for row in self._rows(int(window))]
            # What is past a row's end is read after it, and so moves none of its states.
            ids_BT = torch.zeros(len(rows), max(len(row.ids) for row in rows), dtype=torch.int64)
            for ids_T, row in zip(ids_BT, rows, strict=True):
                ids_T[: len(row.ids)] = torch.from_numpy(row.ids)
            states_BTR = self.teacher.states(ids_BT)
            batch = np.repeat(np.arange(len(rows)), [len(row.places) for row in rows])
            place = np.concatenate([row.places for row in rows])
            position = np.concatenate([row.first + np.arange(len(row.places)) for row in rows])
            yield position, states_BTR[torch.from_numpy(batch), torch.from_numpy(place)]

    def _rows(self, window: int) -> list[Row]:
        first = window * self.window
        ids = np.asarray(self.ids[first : first + self.window], dtype=np.int64)
        if self._spelling is None:
            begin = len(self._begin)
            return [Row(first, np.concatenate([self._begin, ids]).astype(np.int64), begin + np.arange(len(ids)))]
        return self._spelt(self._spelling, first, ids)

    def _spelt(self, spelling: _Spelling, first: int, ids: NDArray[np.int64]) -> list[Row]:
        """The window in pieces; in halves, each read by itself, if these are more than the teacher takes."""
        pieces, places = spelling.pieces(ids)
        if self._room is not None and len(pieces) > self._room:
            if len(ids) > 1:
                half = len(ids) // 2
                return self._spelt(spelling, first, ids[:half]) + self._spelt(spelling, first + half, ids[half:])
            pieces, places = pieces[-self._room :], np.array([self._room - 1])
        found = np.array([*self._begin, *pieces], dtype=np.int64)
        if len(found) == 0:  # a word that is spelt with nothing, before a teacher without a begin
            found = np.zeros(1, dtype=np.int64)
        return [Row(first, found, np.maximum(places + len(self._begin), 0))]


class _Spelling:
    """Words as a teacher's pieces."""

    def __init__(self, teacher: Teacher, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, WordTokenizer) or not isinstance(teacher.tokenizer, SubwordTokenizer):
            raise TrellisError(
                f"the teacher {teacher.name} has another vocabulary: set data.tokenizer to the teacher's folder, or "
                "choose a teacher of these tokens."
            )
        theirs = teacher.tokenizer
        self._theirs, self._end, self._eos_id = theirs, theirs.eos_id, tokenizer.eos_id
        self._words = list(tokenizer.words)
        if theirs.unk_id not in (None, theirs.eos_id):
            self._words[tokenizer.unk_id] = theirs.token(theirs.unk_id)

    def pieces(self, ids: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
        """The pieces of a run of words, and for each word where its last one is; −1: nothing before it either."""
        found: list[int] = []
        places: list[int] = []
        ends = np.flatnonzero(ids == self._eos_id) if self._end is not None else np.empty(0, dtype=np.int64)
        for words in np.split(ids, np.unique(np.concatenate([ends, ends + 1]))):
            if len(words) == 1 and words[0] == self._eos_id and self._end is not None:
                found.append(self._end)
                places.append(len(found) - 1)
            elif len(words):
                pieces, last = self._running(words)
                places += (len(found) + last).tolist()
                found += pieces
        return found, np.array(places, dtype=np.int64)

    def _running(self, ids: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
        """Words with a space between them: a word's last piece is the last that begins before the word ends."""
        words = [self._words[number] for number in ids]
        pieces, begins = self._theirs.encode_with_begins(" ".join(words))
        word_ends = np.cumsum([len(word) + 1 for word in words]) - 1
        return pieces, np.searchsorted(begins, word_ends, side="left") - 1


def same_tokens(teacher: Teacher, tokenizer: Tokenizer) -> bool:
    """Whether each of the HMM's ids stands for the same token with the teacher.

    The teacher may have words besides, or tokens added to its pieces; but with further pieces it has learnt from text
    that was cut into other ones.
    """
    if tokenizer.vocab_size > teacher.vocab_size:
        return False
    if teacher.tokenizer is None:  # a random shape: its tokens are any, if they are as many
        return tokenizer.vocab_size == teacher.vocab_size
    ours, theirs = _tokens(tokenizer), _tokens(teacher.tokenizer)
    pieces = teacher.tokenizer.pieces() if isinstance(teacher.tokenizer, SubwordTokenizer) else set()
    return ours == theirs[: len(ours)] and not any(number >= len(ours) for number in pieces)


def _tokens(tokenizer: Tokenizer) -> list[str | None]:
    """Every token by its id; None where an id has none."""

    def token(number: int) -> str | None:
        try:
            return tokenizer.token(number)
        except TrellisError:
            return None

    return [token(number) for number in range(tokenizer.vocab_size)]
