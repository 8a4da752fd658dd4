"""Steps from a token that is missing, in a model with blocks whose states remember a word: sums over its words.

    p(z′ | z) = Σ_x p(x | z) p(z′ | z, x),    x of the words of z's block

Of exponentials of the states' products and of the words', only the sum over words is made for each pair of states. It
is made in pieces, each of which would have a dropout of its own: of the words' vectors nothing is dropped in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference.transitions import NUMBERS_AT_ONCE, crossings
from trellis.models.encoders import Vectors
from trellis.models.memory import Memory
from trellis.models.transitions import HierarchicalTransition, LowRankTransition
from trellis.ops.moved_totals import moved_log_totals
from trellis.ops.precision import full_precision, widened
from trellis.ops.walks import limits

if TYPE_CHECKING:
    from trellis.models.distributions import Distributions


class _Part(NamedTuple):
    """Some states of one block, and some of its words: p(x | z) p(z′ | z, x) = base · leave · enter.

    place_N    the states' places among those asked about
    words_X    the words
    base_MNJ   of a state left and one entered, in lists
    leave_MNX  of a state left and its word
    enter_MXJ  of a word and a state entered
    """

    place_N: Tensor
    words_X: Tensor
    base_MNJ: Tensor
    leave_MNX: Tensor
    enter_MXJ: Tensor

    def held(self) -> bool:
        """Whether no factor is so large that what it multiplies may have been lost."""
        return bool(self.leave_MNX.max() < math.sqrt(limits(self.leave_MNX.dtype).largest_message))


class BlockGaps:
    """Matrices from some states into lists of others, summed over the words of the former, or those `among_V`."""

    def __init__(self, model: Distributions, vectors: Vectors, among_V: Tensor | None = None) -> None:
        self.model, self.vectors, self.among_V = model, vectors, among_V
        self.part, self.memory = cast(LowRankTransition, model.transition), cast(Memory, model.memory)

    def into(self, from_N: Tensor, enter_MJ: Tensor, *, wide: bool = False) -> Tensor:
        """p(z′ | z) of states in lists M×J from N states, (M·J)×N; in float64, if wide.

        Factors that float32 cannot hold are made in float64, and what that cannot hold is refused.
        """
        like = self.model.log_emission()
        found_MJN = (widened(like) if wide else like).new_zeros(*enter_MJ.shape, len(from_N))
        for part in self._parts(from_N, enter_MJ, wide):
            if not part.held() and not wide:
                return self.into(from_N, enter_MJ, wide=True).to(like)
            matrix_MNJ = part.base_MNJ * (part.leave_MNX @ part.enter_MXJ)
            if wide and not (part.held() and bool((matrix_MNJ > 0).all())):
                raise TrellisError(
                    "a gap in this text would be summed over words whose probabilities differ by more than float64 "
                    "holds: ask this model about texts without gaps."
                )
            found_MJN[:, :, part.place_N] += matrix_MNJ.transpose(1, 2)
        return found_MJN.flatten(0, 1)

    def log_into(self, from_N: Tensor, enter_MJ: Tensor) -> Tensor:
        """Its logarithm in float64."""
        return self.into(from_N, enter_MJ, wide=True).log()

    def words(self, belief_S: Tensor, message_S: Tensor, enter_MJ: Tensor) -> Tensor:
        """Σ_z b[z] p(x | z) Σ_z′ p(z′ | z, x) m[z′] of every word x, V, with m of the states listed."""
        found_V = belief_S.new_zeros(self.model.config.vocab_size)
        for from_N, part_MJ in crossings(belief_S.nonzero().T, enter_MJ):
            message_M1J = message_S[part_MJ].unsqueeze(1)
            for part in self._parts(from_N, part_MJ, wide=False):
                reached_MNX = part.base_MNJ @ (part.enter_MXJ * message_M1J).transpose(1, 2)
                weight_X = torch.einsum("n,mnx,mnx->x", belief_S[from_N[part.place_N]], part.leave_MNX, reached_MNX)
                found_V[part.words_X] += weight_X
        return found_V

    def _parts(self, from_N: Tensor, enter_MJ: Tensor, wide: bool) -> Iterator[_Part]:
        """All pairs of a state and a word of its block, some at a time."""
        block_N = from_N // self.model.block_size
        for block in block_N.unique().cpu().tolist():
            place_N = (block_N == block).nonzero().flatten()
            own_V = self.model.block_V == block
            words = (own_V if self.among_V is None else own_V & self.among_V).nonzero().flatten()
            each = max(len(place_N) * max(len(enter_MJ), self.model.config.states // self.model.block_size),
                       enter_MJ.numel())  # fmt: skip
            with full_precision(from_N.device):
                for words_X in words.split(max(1, NUMBERS_AT_ONCE // max(1, each))) if len(words) else ():
                    yield _Part(place_N, words_X, *self._factors(from_N[place_N], words_X, enter_MJ, wide))

    def _factors(self, from_N: Tensor, words_X: Tensor, enter_MJ: Tensor, wide: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The last three of a `_Part`."""
        entering_UR = self._precise(self.vectors.vectors("entering", self.vectors.encode(enter_MJ.flatten())), wide)
        entering_MRJ = entering_UR.view(*enter_MJ.shape, -1).transpose(1, 2)
        leaving_NR = self._precise(self.vectors.vectors("leaving", self.vectors.encode(from_N)), wide)
        moved_XR = self._precise(self.memory.whole_vectors(words_X[:, None]), wide)
        log_emit_XN = self._precise(self.model.log_emission()[words_X][:, from_N % self.model.block_size], wide)
        log_enter_MXJ, logits_MNJ = moved_XR @ entering_MRJ, leaving_NR @ entering_MRJ
        if isinstance(self.part, HierarchicalTransition):
            base_MNJ = logits_MNJ.softmax(-1)
            enter_MXJ = (log_enter_MXJ - log_enter_MXJ.amax(-1, keepdim=True)).exp()
            total_MNX = (base_MNJ @ enter_MXJ.transpose(1, 2)).clamp_min(torch.finfo(base_MNJ.dtype).tiny)
            block_M = enter_MJ[:, 0] // self.model.block_size
            log_leave_MNX = self._log_blocks(self.part, leaving_NR, moved_XR, block_M) + log_emit_XN.T
            return base_MNJ, log_leave_MNX.exp() / total_MNX, enter_MXJ
        peak_N1, peak_X1 = logits_MNJ.amax((0, 2))[:, None], log_enter_MXJ.amax((0, 2))[:, None]
        log_total_XN = self._precise(self._log_totals()[words_X][:, from_N % self.model.block_size], wide)
        leave_NX = (log_emit_XN - log_total_XN + peak_X1 + peak_N1.T).exp().T
        leave_MNX = leave_NX.expand(len(enter_MJ), -1, -1)
        return (logits_MNJ - peak_N1).exp(), leave_MNX, (log_enter_MXJ - peak_X1).exp()

    @staticmethod
    def _precise(tensor: Tensor, wide: bool) -> Tensor:
        return widened(tensor) if wide else tensor

    def _log_blocks(
        self, part: HierarchicalTransition, leaving_NR: Tensor, moved_XR: Tensor, block_M: Tensor
    ) -> Tensor:
        """log p(block | state, word) of these blocks, M×N×X."""
        after_NXR = leaving_NR[:, None] + moved_XR
        return cast(Tensor, part.log_block(after_NXR))[..., block_M].movedim(-1, 0)

    def _log_totals(self) -> Tensor:
        """log N(z, x) of every word in the states of its block, V×K, of a flat transition."""
        return self.model.kept("log totals after words", self._make_log_totals)

    def _make_log_totals(self) -> Tensor:
        encoded = self.vectors.encode(self.model.everything())
        leaving_SR, entering_SR = (self.vectors.vectors(role, encoded) for role in ("leaving", "entering"))
        leaving_MKR = leaving_SR.view(-1, self.model.block_size, leaving_SR.shape[1])
        words_V = torch.arange(self.model.config.vocab_size, device=self.model.device)
        moved_VR = self.memory.whole_vectors(words_V[:, None])
        return moved_log_totals(leaving_MKR, entering_SR, moved_VR, self.model.block_V)
