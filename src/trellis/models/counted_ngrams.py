"""N-grams that were counted, mixed into an HMM: Kneser–Ney's word beside that of a state.

With the words h before a token and Kneser–Ney's q (Chen & Goodman 1999), a block b of words, and gates g and f:

    p(b | z, h)  = (1 − g) p(b | z) + g q(b | h),       q(b | h) = Σ_w q(w | h) over the words of b
    p(w | z′, h) = (1 − f) p(w | z′) + f q(w | h) / q(b | h)

Both are distributions, so the model is an exact HMM over a state and the last words, tied through what was counted. A
dense model has the second alone: all its words are one block. A gate is the logistic function of a number a state plus
a number for the kind of h: how many words of it were seen before, how often, and which share Kneser–Ney leaves to
shorter contexts. It would leave too much beside states, which know what is usual; so that share is learnt too, from
Kneser–Ney's on: its odds are multiplied by a number a kind. While the model learns, each token is predicted by the
counts of all others: the text that is learnt was counted, and would know itself by heart.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, softplus

from trellis.errors import TrellisError
from trellis.models.ngram_counts import NOTHING, Order, count
from trellis.models.ngram_tables import Explicit, Length
from trellis.models.word_cache import LEVELS, WordCache
from trellis.progress import Progress

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig

TIMES = 8  # kinds of contexts by how often they were seen: once, twice or thrice, four to seven times, …
SHARES = 4  # kinds by the share that they leave to shorter contexts: up to a quarter, a half, …
ROUNDING = 1e-9  # more than a sum of counts is off by
PRECISE = 40.0  # from there on a softplus is its argument, in float64 too
LEAST = -1e30  # a logarithm as good as that of nothing, from which others may be taken
BLOCK_GATE, WORD_GATE = -0.85, 0.0  # the gates of a fresh model: 0.3 and 0.5


def mixed(log_prob: Tensor, log_counted: Tensor, gate: Tensor) -> Tensor:
    """log((1 − g) p + g q), g the logistic function of the gate; shapes as in a sum."""
    out: Tensor = _Mixed.apply(log_prob, log_counted, gate)  # type: ignore[no-untyped-call]  # apply is untyped
    return out


class _Mixed(torch.autograd.Function):
    """A few passes over a batch's tokens × states each way, where the formula as it stands makes twice as many."""

    @staticmethod
    def forward(ctx: Any, log_prob: Tensor, log_counted: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(log_prob, log_counted, gate)
        out = torch.logaddexp(log_prob, log_counted + gate)
        return out.sub_(softplus(gate, threshold=PRECISE))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        log_prob, log_counted, gate = ctx.saved_tensors
        # The share of what was counted in the sum; if both are impossible, any will do that is a number.
        share = (gate + log_counted.clamp_min(LEAST)).sub_(log_prob).sigmoid_()
        grad_counted = grad * share
        grad_gate = torch.addcmul(grad_counted, grad, gate.sigmoid(), value=-1)
        grad_prob = grad - grad_counted
        found = zip((grad_prob, grad_counted, grad_gate), (log_prob, log_counted, gate), strict=True)
        return tuple(grad.sum_to_size(given.shape) for grad, given in found)


class Found(NamedTuple):
    """What the counts say of some words, each after its context.

    log_block  log q(the word's block | context)
    log_word   log q(word | context, its block)
    kind       what is known of the context: of how many words, and how often these were seen
    """

    log_block: Tensor
    log_word: Tensor
    kind: Tensor


class CountedNGrams(nn.Module):
    """The counts of a text's n-grams, and the gates by which they are mixed into the distributions of states."""

    end: Tensor  # the id of <eos>, or −1: no n-gram reaches back over it
    block_states: Tensor  # as the next, but of dense models, whose words are all of one block, there are none
    block_kinds: Tensor

    def __init__(self, config: HMMConfig, blocks: int) -> None:
        super().__init__()
        self.order, self.vocab_size, self.blocks = config.ngrams, config.vocab_size, blocks
        self.word_states = nn.Parameter(torch.zeros(config.states))
        kinds = self.order * TIMES * SHARES
        self.backoffs = nn.Parameter(torch.zeros(kinds))
        self.cache = WordCache(config.cache, kinds) if config.cache else None
        kinds *= LEVELS if config.cache else 1
        self.word_kinds = nn.Parameter(torch.full((kinds,), WORD_GATE))
        gates = torch.zeros(config.states), torch.full((kinds,), BLOCK_GATE)
        for name, gate in zip(("block_states", "block_kinds"), gates, strict=True):
            self.register_parameter(name, None if config.support == "dense" else nn.Parameter(gate))
        self.register_buffer("end", torch.tensor(NOTHING))
        for length in range(1, self.order + 1):
            many = self.vocab_size if length == 1 else 0
            self.take(length, torch.arange(many), *torch.zeros(2, many, dtype=torch.int64))
        self._made: tuple[object, list[Length]] | None = None

    def take(self, length: int, key_N: Tensor, seen_N: Tensor, before_N: Tensor) -> None:
        """These n-grams of one length for those that there are; their counts take half of the room."""
        if length > 1:
            self.register_buffer(f"key_{length}", key_N)
        self.register_buffer(f"seen_{length}", seen_N.to(torch.int32))
        self.register_buffer(f"before_{length}", before_N.to(torch.int32))

    def make_room(self, shapes: dict[str, torch.Size]) -> None:
        """Tables as long as these, by their names here: how long decides the text, and no setting."""
        for name, table in list(self.named_buffers(remove_duplicate=False)):
            if len(shapes.get(name, ())) == 1 and not name.endswith("_1"):
                self.register_buffer(name, table.new_zeros(shapes[name]))

    def count(self, ids: NDArray[np.integer], end: int | None, *, quiet: bool = False) -> None:
        """Count a text, in which `end` ends every sentence."""
        end = NOTHING if end is None else end
        with Progress("counting n-grams", self.order, unit="orders", quiet=quiet) as bar:
            found = count(np.asarray(ids, dtype=np.int64), self.vocab_size, self.order, end, bar)
            for length, order in enumerate(found, start=1):
                self.take(length, *(torch.from_numpy(table).to(self.end.device) for table in order))
        self.end.fill_(end)

    def check(self, tables: dict[str, Tensor], where: str | PathLike[str]) -> None:
        """Refuse tables that lead outside of each other."""
        contexts, sound = self.vocab_size, NOTHING <= int(tables["end"]) < self.vocab_size
        for length in range(1, self.order + 1):
            seen_N, before_N = tables[f"seen_{length}"], tables[f"before_{length}"]
            sound &= bool((before_N >= 0).all()) and bool((before_N <= seen_N).all()) and len(before_N) == len(seen_N)
            if length == 1:
                continue
            key_N = tables[f"key_{length}"]
            sound &= len(key_N) == len(seen_N) and not bool((key_N.diff() <= 0).any()) and bool((seen_N > 0).all())
            sound &= bool(((key_N >= 0) & (key_N < contexts * self.vocab_size)).all())
            contexts = len(key_N)
        if not sound:
            raise TrellisError(f"the n-grams in {where} do not fit each other: restore its model.safetensors.")

    def before_tokens(self, before_BM: Tensor, ids_BT: Tensor, block_V: Tensor) -> Found:
        """What the counts, and the cache if there is one, say of each token of rows; before them were these words."""
        found = self.look_up(self.along(before_BM, ids_BT, block_V)[:, :-1], ids_BT, block_V)
        if self.cache is None:
            return found
        recent = self.cache.before_tokens(before_BM, ids_BT, block_V)
        kind_BT = self.cache.kind(found.kind, recent.level_N)
        word_BT, block_BT, held_BT = self.cache.of_tokens(recent)
        prob_block_BT = self.cache.mixed(found.log_block.exp(), block_BT, kind_BT, held_BT)
        prob_word_BT = self.cache.mixed((found.log_block + found.log_word).exp(), word_BT, kind_BT, held_BT)
        return Found(prob_block_BT.log(), (prob_word_BT / prob_block_BT).log().clamp_max(0.0), kind_BT)

    def contexts(self, words_NM: Tensor, block_V: Tensor) -> Tensor:
        """The numbers of the contexts that these last words are, the newest first, N×L: of one word, of two, …"""
        return self.along(words_NM, words_NM[:, :0], block_V)[:, 0]

    def along(self, before_BM: Tensor, ids_BT: Tensor, block_V: Tensor) -> Tensor:
        """The same before each token of rows and after the last, B×(T+1)×L; before them were these words."""
        before_BM = before_BM[:, : self.order - 1]
        none_BM = before_BM == NOTHING
        first_BM = none_BM & ~pad(none_BM[:, :-1], (1, 0))  # a text begins as a sentence does
        all_BN = torch.cat([torch.where(first_BM, self.end, before_BM).flip(1), ids_BT], 1)
        return self._numbers(all_BN, block_V)[:, before_BM.shape[1] - 1 :]

    def _numbers(self, all_BN: Tensor, block_V: Tensor) -> Tensor:
        """Of the n-grams that end at each place, for use as contexts."""
        numbers = [all_BN]
        for length in self._lengths(block_V)[1 : self.order - 1]:
            at_BN, hit_BN = length.find(pad(numbers[-1][:, :-1], (1, 0), value=NOTHING), all_BN, self.vocab_size)
            numbers.append(at_BN.masked_fill(~hit_BN | (all_BN == self.end), NOTHING))
        return torch.stack(numbers, -1)

    def look_up(self, contexts: Tensor, words: Tensor, block_V: Tensor) -> Found:
        """What the counts say of words after contexts, whose last dimension is the numbers of one context.

        While learning, of each word's n-grams what it adds to their counts is left out.
        """
        lengths, block = self._lengths(block_V), block_V[words]
        context = [torch.zeros_like(words), *(number.expand_as(words) for number in contexts.unbind(-1))]
        found = [length.find(number, words, self.vocab_size) for length, number in zip(lengths, context, strict=True)]
        prob_word = torch.full(words.shape, 1.0 / self.vocab_size, dtype=torch.float64, device=words.device)
        prob_block = torch.bincount(block_V, minlength=self.blocks)[block] * prob_word
        kind = torch.zeros_like(words)
        for place, (length, number) in enumerate(zip(lengths, context, strict=True)):
            gone = self._gone(lengths, found, place)
            explicit = length.after(number, found[place], block, self.blocks, gone)
            kind_here = self._kind(place, explicit)
            passed_on = explicit.left * self.backoffs[kind_here].to(explicit.left).exp()
            whole = 1.0 - explicit.left + passed_on
            prob_word = (explicit.word + passed_on * prob_word) / whole
            prob_block = (explicit.block + passed_on * prob_block) / whole
            kind = torch.where(explicit.total > 0, kind_here, kind)
        like = self.word_kinds
        return Found(prob_block.log().to(like), (prob_word / prob_block).log().clamp_max(0.0).to(like), kind)

    def _kind(self, place: int, explicit: Explicit) -> Tensor:
        """What is known of contexts of one length: how often they were seen, and which share they leave, in steps."""
        times = explicit.total.clamp_min(1.0).log2().long().clamp_max(TIMES - 1)
        share = (explicit.left * SHARES + ROUNDING).long().clamp_max(SHARES - 1)
        return (place * TIMES + times) * SHARES + share

    def blocks_after(self, words_NM: Tensor, block_V: Tensor) -> tuple[Tensor, Tensor]:
        """log p(block | words) of all blocks, N×M, and what is known of each context, as it is in use."""
        word_M = block_V.new_full((self.blocks,), NOTHING).index_copy(
            0, block_V, torch.arange(self.vocab_size, device=block_V.device)
        )
        found = self._of_all(self.contexts(words_NM, block_V), word_M.clamp_min(0), block_V)
        log_block_NM, kind_N = found.log_block.masked_fill(word_M < 0, -torch.inf), found.kind[:, 0]
        if self.cache is None:
            return log_block_NM, kind_N
        recent_NV, level_N = self.cache.of_all_words(words_NM, self.vocab_size)
        recent_NM = torch.zeros_like(log_block_NM).index_add_(1, block_V, recent_NV)
        kind_N = self.cache.kind(kind_N, level_N)
        return self._with_cache(log_block_NM.exp(), recent_NM, kind_N).log(), kind_N

    def words_after(self, words_NM: Tensor, block_V: Tensor) -> tuple[Tensor, Tensor]:
        """log p(word | words, its block) of all words, N×V, and what is known of each context, as it is in use."""
        found = self._of_all(
            self.contexts(words_NM, block_V), torch.arange(self.vocab_size, device=block_V.device), block_V
        )
        if self.cache is None:
            return found.log_word, found.kind[:, 0]
        recent_NV, level_N = self.cache.of_all_words(words_NM, self.vocab_size)
        kind_N = self.cache.kind(found.kind[:, 0], level_N)
        prob_NV = self._with_cache((found.log_block + found.log_word).exp(), recent_NV, kind_N)
        in_block_NM = prob_NV.new_zeros(len(prob_NV), self.blocks).index_add_(1, block_V, prob_NV)
        return (prob_NV / in_block_NM[:, block_V]).log().clamp_max(0.0), kind_N

    def _with_cache(self, prob_NI: Tensor, recent_NI: Tensor, kind_N: Tensor) -> Tensor:
        """The same probabilities with those of the cache mixed in, a context a row."""
        assert self.cache is not None
        held_N1 = recent_NI.sum(1, keepdim=True) > 0
        return self.cache.mixed(prob_NI, recent_NI, kind_N.unsqueeze(1), held_N1).detach()

    @torch.no_grad()
    def _of_all(self, contexts_NL: Tensor, words_W: Tensor, block_V: Tensor) -> Found:
        """Of the same words after each context: no token of a text, so that all counts are left whole."""
        learning, self.training = self.training, False
        try:
            return self.look_up(contexts_NL[:, None], words_W.expand(len(contexts_NL), -1), block_V)
        finally:
            self.training = learning

    def _gone(self, lengths: list[Length], found: list[tuple[Tensor, Tensor]], place: int) -> Tensor | None:
        """How many words fewer an n-gram would have stood after without its own token; None while not learning."""
        if not self.training:
            return None
        if place + 1 == len(lengths):
            return torch.zeros_like(found[place][0])
        at, hit = found[place + 1]
        return (hit & (lengths[place + 1].seen_N[at] == 1)).long()

    def _lengths(self, block_V: Tensor) -> list[Length]:
        """Tables of each length from the counts, made once."""
        tables = [*self.buffers(), block_V]
        if any(table.is_inference() for table in tables):  # whose changes PyTorch does not count
            return self._make(block_V.cpu().numpy())
        made_of = [(id(table), table._version, table.device) for table in tables]
        if self._made is None or self._made[0] != made_of:
            self._made = made_of, self._make(block_V.cpu().numpy())
        return self._made[1]

    def _make(self, block_V: NDArray[np.int64]) -> list[Length]:
        """On the device of the counts, in float64 whatever the model has."""
        made, contexts = [], 1
        for length in range(1, self.order + 1):
            key_N = getattr(self, f"key_{length}") if length > 1 else torch.arange(self.vocab_size)
            counts = (getattr(self, f"{name}_{length}") for name in ("seen", "before"))
            order = Order(key_N.cpu().numpy(), *(table.cpu().numpy().astype(np.int64) for table in counts))
            tables = Length.of(order, contexts, block_V, self.blocks)
            made.append(Length(*(table.to(self.end.device) for table in tables)))
            contexts = len(order.key_N)
        return made
