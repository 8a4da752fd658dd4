"""Questions people ask a model in words, answered exactly: continuations, gaps, what comes next, what must be met.

    from trellis import ask
    loaded = trellis.load_pretrained("runs/ptb")
    ask.fillings(loaded, "the ___ of the ___ said", k=3)

Every function takes the model with its tokenizer. `bos` says where a text begins, as on the command line: after `<eos>`
(True), at the start distribution (False), or as the model learnt (None).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.automata import Automaton, every, one_after_another
from trellis.beginnings import beginning
from trellis.errors import InputError, TrellisError
from trellis.models.pretrained import Pretrained
from trellis.steering import Messages, k_best, sample
from trellis.steering.goals import automaton_of
from trellis.text.lines import GAP, read_lines

if TYPE_CHECKING:
    from trellis.constraints import Constraint
    from trellis.models import HMM


class Word(NamedTuple):
    """A token as its vocabulary spells it, and its probability."""

    token: str
    probability: float


class Text(NamedTuple):
    """A text that was found or drawn, and its probability given all that was said."""

    text: str
    tokens: list[str]
    probability: float


class Texts(NamedTuple):
    """The most probable texts, the best first; `proven`, or the best that a beam found in time."""

    texts: list[Text]
    proven: bool


def continuation(loaded: Pretrained, context: str, text: str, *, bos: bool | None = None) -> list[Word]:
    """p(token | the context and the tokens before it) of every token of a text; their product is the text's."""
    state = _read(loaded, context, bos)
    ids = _ids(loaded, text, "text") if text else []
    if not ids:
        raise InputError("there is nothing to weigh: give a text of at least one word.")
    with torch.no_grad():
        log_prob_BT, _ = loaded.model.score(_batch(loaded, ids), state)
    return _words(loaded, ids, log_prob_BT[0].exp())


def next_word(loaded: Pretrained, context: str, k: int = 10, *, bos: bool | None = None) -> list[Word]:
    """The k most probable next tokens."""
    probability_V = _hmm(loaded).next_token(_read(loaded, context, bos))[0].exp()
    probability_K, token_K = probability_V.topk(min(k, len(probability_V)))
    return _words(loaded, token_K.tolist(), probability_K)


def next_words(loaded: Pretrained, context: str, words: int, k: int = 5, *, bos: bool | None = None) -> Texts:
    """The k most probable ways to go on for so many tokens, or to the end of the text if it comes sooner."""
    return _best(loaded, _anything(loaded), words, k, _read(loaded, context, bos))


def draw_next(
    loaded: Pretrained, context: str, words: int, count: int = 5, *, seed: int = 0, bos: bool | None = None
) -> list[Text]:
    """Ways to go on for so many tokens, or to the end of the text, drawn by their probability."""
    return _draw(loaded, _anything(loaded), words, count, _read(loaded, context, bos), seed)


def fillings(loaded: Pretrained, text: str, k: int = 5, *, bos: bool | None = None, eos: bool = True) -> Texts:
    """The k most probable ways to fill all gaps of a text together, each gap one token, given the rest of it."""
    automaton, length = _gapped(loaded, text, eos)
    return _best(loaded, automaton, length, k, beginning(loaded, bos))


def draw_fillings(
    loaded: Pretrained, text: str, count: int = 5, *, seed: int = 0, bos: bool | None = None, eos: bool = True
) -> list[Text]:
    """Ways to fill all gaps of a text, each gap one token, drawn by their probability given the rest of it."""
    automaton, length = _gapped(loaded, text, eos)
    return _draw(loaded, automaton, length, count, beginning(loaded, bos), seed)


def within(
    loaded: Pretrained, constraint: Constraint, words: int, context: str = "", *, bos: bool | None = None
) -> float:
    """p(what follows the context meets the constraint within so many tokens, or before the text ends)."""
    automaton, state = _constrained(loaded, constraint, ended=False), _read(loaded, context, bos)
    return math.exp(_log_met(loaded, automaton, words, state))


def write(
    loaded: Pretrained,
    constraint: Constraint,
    words: int = 30,
    count: int = 5,
    context: str = "",
    *,
    ended: bool = True,
    seed: int = 0,
    bos: bool | None = None,
) -> list[Text]:
    """Texts of at most so many tokens that meet a constraint, drawn from p(text | context, the constraint is met).

    They are `ended` by the model's own end, or, where it knows none or it is not asked for, at their length too.
    """
    return _draw(loaded, _constrained(loaded, constraint, ended), words, count, _read(loaded, context, bos), seed)


def write_best(
    loaded: Pretrained,
    constraint: Constraint,
    words: int = 30,
    k: int = 5,
    context: str = "",
    *,
    ended: bool = True,
    bos: bool | None = None,
) -> Texts:
    """The k most probable texts of at most so many tokens that meet a constraint."""
    return _best(loaded, _constrained(loaded, constraint, ended), words, k, _read(loaded, context, bos))


class Compared(NamedTuple):
    """A token, and its probability given those before it by each of two models."""

    token: str
    first: float
    second: float


def side_by_side(one: Pretrained, other: Pretrained, text: str, *, bos: bool | None = None) -> list[Compared]:
    """Two models on one text, token by token."""
    if one.tokenizer.fingerprint() != other.tokenizer.fingerprint():
        raise TrellisError(
            f"{one.folder} and {other.folder} cut texts into different tokens: compare models of one vocabulary here, "
            "and others by trellis evaluate, a word."
        )
    both = [continuation(loaded, "", text, bos=bos) for loaded in (one, other)]
    return [Compared(a.token, a.probability, b.probability) for a, b in zip(*both, strict=True)]


# What the questions share


def _hmm(loaded: Pretrained) -> HMM:
    return loaded.answering("predicted", "next_token", "viterbi")


def _words(loaded: Pretrained, ids: Sequence[int], probability_N: Tensor) -> list[Word]:
    return [Word(loaded.tokenizer.token(id), p) for id, p in zip(ids, probability_N.tolist(), strict=True)]


def _ids(loaded: Pretrained, text: str, name: str) -> list[int]:
    if GAP in _marked(text):
        raise InputError(f"{name} has a gap, {GAP}: only fillings take one.")
    return loaded.tokenizer.encode(text)


def _batch(loaded: Pretrained, ids: Sequence[int]) -> Tensor:
    return torch.tensor([list(ids)], device=loaded.model.device)


@torch.no_grad()
def _read(loaded: Pretrained, context: str, bos: bool | None) -> Tensor | None:
    """The state after the context; None: the start."""
    state, ids = beginning(loaded, bos), _ids(loaded, context, "context")
    if not ids:
        return state
    log_prob_BT, state = loaded.model.score(_batch(loaded, ids), state)
    if bool((log_prob_BT == -torch.inf).any()):
        raise TrellisError("the model gives the context no probability, so nothing can follow it: change the context.")
    return state


def _anything(loaded: Pretrained) -> Automaton:
    """Every text, which may end."""
    end, words = loaded.tokenizer.eos_id, np.ones(loaded.model.config.vocab_size, np.bool_)
    if end is not None:
        words[end] = False
    return automaton_of(every(words), loaded.tokenizer, ended=False)


def _marked(text: str) -> str:
    """The text with its gaps marked as elsewhere: three underlines or more are one."""
    return re.sub("_{3,}", GAP, text)


def _gapped(loaded: Pretrained, text: str, eos: bool) -> tuple[Automaton, int]:
    """The texts that have any token at the gaps, and otherwise what is written; and their length."""
    (line,) = read_lines([_marked(text)], loaded.tokenizer, eos)
    if not any(line.missing):
        raise InputError(f"there is no gap in the text: write {GAP} where a word is missing.")
    everything_V = np.arange(loaded.model.config.vocab_size)
    allowed = [everything_V >= 0 if gap else everything_V == id for id, gap in zip(line.ids, line.missing, strict=True)]
    return one_after_another(allowed, len(everything_V)), len(line.ids)


def _constrained(loaded: Pretrained, constraint: Constraint, ended: bool) -> Automaton:
    """The automaton of texts that meet a constraint; they cannot have `ended` where the model knows no end."""
    return automaton_of(constraint, loaded.tokenizer, ended and loaded.tokenizer.eos_id is not None)


def _log_met(loaded: Pretrained, automaton: Automaton, length: int, state: Tensor | None) -> float:
    model = _hmm(loaded)
    start = torch.tensor([automaton.start], device=model.device)
    return float(Messages(model, automaton, length).log_prob(model.predicted(1, state), start, length))


def _possible(log_met: float, automaton: Automaton, length: int) -> None:
    """Refuse what cannot be met, and say why."""
    if log_met > -math.inf:
        return
    shortest = automaton.shortest()
    if shortest is not None and shortest > length:
        raise TrellisError(f"{length} tokens are too few for this constraint: allow at least {shortest}.")
    raise TrellisError("no text that the model could write meets this constraint: ask for less, or for more words.")


def _best(loaded: Pretrained, automaton: Automaton, length: int, k: int, state: Tensor | None) -> Texts:
    if k < 1:
        raise InputError(f"k={k} is not possible: give a whole number of at least 1.")
    log_met = _log_met(loaded, automaton, length, state)
    _possible(log_met, automaton, length)
    found = k_best(_hmm(loaded), automaton, length, k, state)
    texts = [_text(loaded, ids, nats - log_met) for ids, nats in zip(found.texts, found.log_probs, strict=True)]
    return Texts(texts, found.proven)


def _draw(
    loaded: Pretrained, automaton: Automaton, length: int, count: int, state: Tensor | None, seed: int
) -> list[Text]:
    if count < 1:
        raise InputError(f"count={count} is not possible: give a whole number of at least 1.")
    model = _hmm(loaded)
    messages = Messages(model, automaton, length)
    start_B = torch.full((count,), automaton.start, device=model.device)
    state = None if state is None else state.expand(count, -1)
    predicted_BS = model.predicted(count, state)
    log_met = float(messages.log_prob(predicted_BS[:1], start_B[:1], length))
    _possible(log_met, automaton, length)
    drawn = sample(messages, predicted_BS, start_B, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        log_prob_BT, _ = model.score(drawn.tokens_BT.clamp_min(0), state, drawn.lengths_B)
    rows = zip(drawn.tokens_BT.tolist(), drawn.lengths_B.tolist(), log_prob_BT.sum(1).tolist(), strict=True)
    return [_text(loaded, ids[:size], nats - log_met) for ids, size, nats in rows]


def _text(loaded: Pretrained, ids: list[int], log_prob: float) -> Text:
    tokenizer = loaded.tokenizer
    shown = ids[:-1] if ids and ids[-1] == tokenizer.eos_id else ids
    spelt = [tokenizer.token(id) for id in ids]
    return Text(tokenizer.decode(shown), spelt, math.exp(min(0.0, log_prob)))
