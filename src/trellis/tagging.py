"""States as parts of speech: the states behind tagged words, and how well they agree with the tags.

Three scores are customary where a model learnt without tags. Many-to-one: every state stands for the tag that it most
often has. One-to-one: a state stands for one tag and a tag has one state, as suits the words best. Both mappings are
chosen on the very words that are scored, and more states make many-to-one higher. V-measure (Rosenberg & Hirschberg
2007) needs no mapping: the harmonic mean of homogeneity, 1 − H(tag | state) / H(tag), and completeness,
1 − H(state | tag) / H(state).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.progress import Progress, counted
from trellis.text.lines import Line, tensors
from trellis.text.tagged import TaggedSentence
from trellis.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from trellis.models import HMM

ROWS = 64  # sentences that are decoded together
IMPOSSIBLE = -1  # in place of the states of a sentence that the model cannot emit


@dataclass(frozen=True)
class TaggingScores:
    """How well states agree with tags, over all words."""

    one_to_one: float  # accuracy, if a state stands for one tag and a tag has one state
    many_to_one: float  # accuracy, if every state stands for the tag that it most often has
    v_measure: float  # harmonic mean of the next two
    homogeneity: float  # 1 − H(tag | state) / H(tag)
    completeness: float  # 1 − H(state | tag) / H(state)
    words: int
    states: int  # that occur
    tags: int  # that occur

    def __repr__(self) -> str:
        figures = f"one-to-one {self.one_to_one:.4f}, many-to-one {self.many_to_one:.4f}, V {self.v_measure:.4f}"
        return f"TaggingScores({figures}, {counted(self.words, 'word')}, {self.states} states, {self.tags} tags)"


def tagging_scores(states: Any, tags: Sequence[str] | NDArray[Any]) -> TaggingScores:
    """The scores of states, a whole number a word, against the tag of each word.

    −1 is no state: such words count as wrong, and in V-measure as one more state.
    """
    counts_KC, known_K = _counts(states, tags)
    words = int(counts_KC.sum())
    homogeneity, completeness = _homogeneity(counts_KC), _homogeneity(counts_KC.T)
    both = homogeneity + completeness
    mapped_KC = counts_KC[known_K]
    return TaggingScores(
        one_to_one=_matched(mapped_KC) / words,
        many_to_one=float(mapped_KC.max(1).sum()) / words if len(mapped_KC) else 0.0,
        v_measure=2 * homogeneity * completeness / both if both else 0.0,
        homogeneity=homogeneity,
        completeness=completeness,
        words=words,
        states=len(mapped_KC),
        tags=counts_KC.shape[1],
    )


def majority_tags(states: Any, tags: Sequence[str] | NDArray[Any]) -> dict[int, str]:
    """The tag that each state most often has; of several, the first by name."""
    counts_KC, known_K = _counts(states, tags)
    number_K, name_C = np.unique(np.asarray(states)), np.unique(np.asarray(tags))
    best_K = counts_KC.argmax(1)
    return {int(number_K[at]): str(name_C[best_K[at]]) for at in np.flatnonzero(known_K)}


def _counts(states: Any, tags: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How often each state that occurs has each tag that occurs, and which of them are states."""
    state_N, tag_N = np.asarray(states), np.asarray(tags)
    if state_N.shape != tag_N.shape or state_N.ndim != 1:
        raise InputError(
            f"states of shape {state_N.shape} do not fit tags of shape {tag_N.shape}: give one of each a word."
        )
    if len(state_N) == 0:
        raise InputError("there are no words to score: give some.")
    if state_N.dtype.kind not in "iu":
        raise InputError(f"states of {state_N.dtype} are no states: give whole numbers.")
    number_K, row_N = np.unique(state_N, return_inverse=True)
    name_C, column_N = np.unique(tag_N, return_inverse=True)
    counts_KC = np.zeros((len(number_K), len(name_C)), dtype=np.int64)
    np.add.at(counts_KC, (row_N, column_N), 1)
    return counts_KC, number_K != IMPOSSIBLE


def _matched(counts_KC: NDArray[np.int64]) -> float:
    """The most words that a one-to-one mapping gets right."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise TrellisError("one-to-one accuracy needs SciPy: run pip install 'trellis-lm[sklearn]'.") from error
    return float(counts_KC[linear_sum_assignment(counts_KC, maximize=True)].sum())


def _homogeneity(counts_KC: NDArray[np.int64]) -> float:
    """1 − H(column | row) / H(column); 1 where there is but one column."""
    total = counts_KC.sum()
    column_C, row_K1 = counts_KC.sum(0) / total, counts_KC.sum(1, keepdims=True)
    if len(column_C) == 1:
        return 1.0
    entropy = -float((column_C * np.log(column_C)).sum())
    share_KC = counts_KC / row_K1
    conditional = -float((counts_KC / total * np.log(np.where(counts_KC > 0, share_KC, 1.0))).sum())
    return min(max(1.0 - conditional / entropy, 0.0), 1.0)


@torch.no_grad()
def decode_sentences(
    model: HMM,
    tokenizer: Tokenizer,
    sentences: Sequence[TaggedSentence],
    *,
    posterior: bool = False,
    begin: Tensor | None = None,
    quiet: bool = False,
) -> list[list[int]]:
    """The state of each word: of the most probable path, or, if `posterior`, the most probable state at each word.

    The end of a sentence is read too, where the tokenizer marks it. `begin` is the state that sentences go on from,
    one row; None is the model's start. A sentence that is impossible has −1 throughout.
    """
    lines = [_line(number, sentence, tokenizer) for number, sentence in enumerate(sentences)]
    found: dict[int, list[int]] = {}
    lines.sort(key=lambda line: len(line.ids))
    with Progress("decoding", len(lines), unit="sentences", quiet=quiet) as bar:
        for at in range(0, len(lines), ROWS):
            group = lines[at : at + ROWS]
            found |= zip((line.number for line in group), _states(model, group, posterior, begin), strict=True)
            bar.advance(len(group))
    return [found[number][: len(sentence.words)] for number, sentence in enumerate(sentences)]


def _line(number: int, sentence: TaggedSentence, tokenizer: Tokenizer) -> Line:
    text = " ".join(sentence.words)
    ids = tokenizer.encode(text)
    if len(ids) != len(sentence.words):
        raise TrellisError(
            f"the model's tokenizer cuts {counted(len(sentence.words), 'word')} into {len(ids)}: use a model of words "
            "(data.tokenizer=words)."
        )
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    return Line(number, text, ids + end, [False] * len(ids + end), 0)


def _states(model: HMM, group: list[Line], posterior: bool, begin: Tensor | None) -> Iterator[list[int]]:
    ids_BT, lengths_B, _ = tensors(group, model.device)
    state = None if begin is None else begin.expand(len(group), -1)
    if posterior:
        smoothed = model.smooth(ids_BT, state, lengths_B)
        impossible_B1 = (smoothed.log_prob_BT.sum(1) == -torch.inf)[:, None]
        states_BT = smoothed.most_probable()[1].masked_fill(impossible_B1, IMPOSSIBLE)
    else:
        states_BT = model.viterbi(ids_BT, state, lengths_B).states_BT
    yield from states_BT.cpu().tolist()


def accuracy(states: Any, tags: Sequence[str] | NDArray[Any], tag_of: Sequence[str]) -> float:
    """The share of words whose state stands for their tag; `tag_of` names the tag of each state. −1 is wrong."""
    state_N, tag_N = np.asarray(states), np.asarray(tags)
    _counts(state_N, tag_N)
    if state_N.max() >= len(tag_of):
        raise InputError(f"state {state_N.max()} has no name among {len(tag_of)}: name the tag of every state.")
    return float(np.mean((np.array(tag_of)[state_N] == tag_N) & (state_N != IMPOSSIBLE)))
