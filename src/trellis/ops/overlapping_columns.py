"""Emissions where every word has its own list of states, and lists may overlap.

The emission matrix is sparse: a word has an entry for each state of its list. A state is normalised by adding up over
all words that list it.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.ops.library import check
from trellis.ops.precision import full_precision

SPARSE = ("cpu", "cuda")  # devices that have sparse products
CHUNK = 1 << 22  # numbers gathered at once by products that are not sparse: 16 MB of float32


def normalise_by_state(logits_VK: Tensor, states_VK: Tensor, states: int) -> Tensor:
    """log p(word | state), V×K, from the logits of every word in its own list of states."""
    state_E = states_VK.flatten()
    fixed_VK = logits_VK.detach()
    peak_S = fixed_VK.new_full((states,), -torch.inf).scatter_reduce(0, state_E, fixed_VK.flatten(), "amax")
    peak_VK = peak_S[states_VK]
    total_S = logits_VK.new_zeros(states).index_add(0, state_E, (logits_VK - peak_VK).exp().flatten())
    return logits_VK - peak_VK - total_S.log()[states_VK]


def overlapping_logits(words_VR: Tensor, emitting_SR: Tensor, bias_V: Tensor | None, states_VK: Tensor) -> Tensor:
    """word · state + bias of each word in the states of its list, V×K; differentiable once."""
    entries = Entries.of(states_VK, len(emitting_SR))
    entries.check(words_VR, emitting_SR)
    logits_E: Tensor = _Products.apply(words_VR, emitting_SR, entries)  # type: ignore[no-untyped-call]  # apply is untyped
    logits_VK = logits_E.view(states_VK.shape)
    return logits_VK if bias_V is None else logits_VK + bias_V.unsqueeze(1)


def overlapping_log_totals(words_VR: Tensor, emitting_UR: Tensor, bias_V: Tensor | None, entries: Entries) -> Tensor:
    """log Σ exp(word · state + bias) over the words that list each state, U; −inf if none does; differentiable once."""
    entries.check(words_VR, emitting_UR)
    return _LogTotals.apply(words_VR, emitting_UR, bias_V, entries)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


class Entries(NamedTuple):
    """The entries of the emission matrix, word after word: which words may come from which states.

    start     the entries of word v are start[v] up to start[v + 1]
    state_E   the state of each entry, as a row of the states' vectors
    states    how many rows those have
    """

    start: Tensor
    state_E: Tensor
    states: int

    @classmethod
    def of(cls, states_VK: Tensor, states: int) -> Entries:
        """All entries of the words' lists."""
        words, size = states_VK.shape
        return cls(torch.arange(words + 1, device=states_VK.device) * size, states_VK.flatten(), states)

    @classmethod
    def among(cls, states_VK: Tensor, some_U: Tensor, states: int) -> Entries:
        """Only the entries of the states `some_U`, out of `states`; these then go by their places in `some_U`."""
        place_S = states_VK.new_full((states,), -1)
        place_S[some_U] = torch.arange(len(some_U), device=some_U.device)
        place_VK = place_S.index_select(0, states_VK.flatten()).view_as(states_VK)
        if len(some_U) == states:
            return cls.of(place_VK, states)
        there_VK = place_VK >= 0
        start = functional.pad(there_VK.sum(1).cumsum(0), (1, 0))
        return cls(start, place_VK[there_VK], len(some_U))

    def check(self, words_VR: Tensor, emitting_UR: Tensor) -> None:
        """Refuse entries outside of the matrix: sparse products trust them, and would read and write elsewhere."""
        check(words_VR=words_VR, emitting_UR=emitting_UR)
        start, count = self.start, len(self.state_E)
        if len(start) != len(words_VR) + 1 or len(emitting_UR) != self.states:
            raise TrellisError("entries are those of another number of words or states: make them by Entries.of.")
        if not start.is_cpu:  # looking at numbers would wait for the device, which has checks of its own
            return
        lowest, highest = torch.aminmax(self.state_E) if count else (0, -1)
        if int(lowest) < 0 or int(highest) >= self.states:
            raise TrellisError(f"an entry's state is none of the {self.states:,} states: mend the words' lists.")
        if int(start[0]) != 0 or int(start[-1]) != count or bool((start.diff() < 0).any()):
            raise TrellisError(f"the starts of the words' entries do not share out {count:,} entries: mend them.")

    def words(self) -> Tensor:
        """The word of each entry, E."""
        counts_V = self.start.diff()
        return torch.arange(len(counts_V), device=counts_V.device).repeat_interleave(
            counts_V, output_size=len(self.state_E)
        )

    def products(self, words_VR: Tensor, emitting_UR: Tensor) -> Tensor:
        """The inner product of word and state at each entry, E."""
        shape = (len(words_VR), len(emitting_UR))
        # If states stand in a list several times, there may be more entries than a sparse matrix can have.
        if len(self.state_E) > shape[0] * shape[1] or words_VR.device.type not in SPARSE:
            return _gathered_products(words_VR, self.words(), emitting_UR, self.state_E)
        zero_E = words_VR.new_zeros(len(self.state_E))
        with warnings.catch_warnings(), full_precision(words_VR.device):
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            pattern = torch.sparse_csr_tensor(self.start, self.state_E, zero_E, shape, check_invariants=False)
            found: Tensor = torch.sparse.sampled_addmm(pattern, words_VR, emitting_UR.T, beta=0.0)
            return found.values()

    def gradients(self, grad_E: Tensor, words_VR: Tensor, emitting_UR: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by the words' and by the states' vectors, from those by the products."""
        word_E = self.words()
        if words_VR.device.type not in SPARSE:
            return (
                _gathered_sums(emitting_UR, self.state_E, word_E, len(words_VR), grad_E),
                _gathered_sums(words_VR, word_E, self.state_E, len(emitting_UR), grad_E),
            )
        order_E = self.state_E.int().argsort(stable=True)
        start_U = functional.pad(torch.bincount(self.state_E, minlength=self.states).cumsum(0), (1, 0))
        with full_precision(words_VR.device):
            to_words = _weighted_sums(emitting_UR, self.state_E, self.start, grad_E)
            to_states = _weighted_sums(words_VR, word_E[order_E], start_U, grad_E[order_E])
        return to_words, to_states


def _weighted_sums(rows: Tensor, which_E: Tensor, start: Tensor, weight_E: Tensor) -> Tensor:
    """Σ weight · row over each run of `which_E`, from one start to the next; no row is copied."""
    return functional.embedding_bag(
        which_E, rows, start, mode="sum", per_sample_weights=weight_E, include_last_offset=True
    )


def _gathered_products(left: Tensor, left_E: Tensor, right: Tensor, right_E: Tensor) -> Tensor:
    """The same as the sparse products on any device: the vectors are copied, a chunk of entries at a time."""
    step = max(1, CHUNK // max(1, left.shape[1]))
    parts = zip(left_E.split(step), right_E.split(step), strict=True)
    return torch.cat([(left.index_select(0, a).mul_(right.index_select(0, b))).sum(1) for a, b in parts])


def _gathered_sums(rows: Tensor, which_E: Tensor, owner_E: Tensor, owners: int, weight_E: Tensor) -> Tensor:
    """The same as the weighted sums on any device."""
    step, sums = max(1, CHUNK // max(1, rows.shape[1])), rows.new_zeros(owners, rows.shape[1])
    for which, owner, weight in zip(*(part.split(step) for part in (which_E, owner_E, weight_E)), strict=True):
        sums.index_add_(0, owner, rows.index_select(0, which).mul_(weight.unsqueeze(1)))
    return sums


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, words_VR: Tensor, emitting_UR: Tensor, entries: Entries) -> Tensor:
        ctx.save_for_backward(words_VR, emitting_UR)
        ctx.entries = entries
        return entries.products(words_VR, emitting_UR)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_E: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.entries.gradients(grad_E, *ctx.saved_tensors), None


class _LogTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, words_VR: Tensor, emitting_UR: Tensor, bias_V: Tensor | None, entries: Entries) -> Tensor:
        logits_E = entries.products(words_VR, emitting_UR)
        if bias_V is not None:
            logits_E.add_(bias_V.index_select(0, entries.words()))
        peak_U = logits_E.new_full((entries.states,), -torch.inf)
        peak_U.scatter_reduce_(0, entries.state_E, logits_E, "amax")
        share_E = logits_E.sub_(peak_U.index_select(0, entries.state_E)).exp_()
        total_U = torch.zeros_like(peak_U).index_add_(0, entries.state_E, share_E)
        share_E.div_(total_U.index_select(0, entries.state_E))
        ctx.save_for_backward(words_VR, emitting_UR, share_E)
        ctx.entries, ctx.biased = entries, bias_V is not None
        return total_U.log_().add_(peak_U)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_U: Tensor) -> tuple[Tensor | None, ...]:
        words_VR, emitting_UR, share_E = ctx.saved_tensors
        entries: Entries = ctx.entries
        grad_E = share_E * grad_U.index_select(0, entries.state_E)
        to_words, to_states = entries.gradients(grad_E, words_VR, emitting_UR)
        to_bias = None
        if ctx.biased:
            to_bias = grad_E.new_zeros(len(words_VR)).index_add_(0, entries.words(), grad_E)
        return to_words, to_states, to_bias, None
