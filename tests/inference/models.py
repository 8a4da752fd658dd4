"""Random models to test on, with as many impossible events as asked for."""

from collections.abc import Iterator

import torch
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from trellis.inference import BlockPairs, Chain, Dense, Piece, Transition, score
from trellis.inference.forward import possible


def _with_zeros(prob: Tensor, zeros: float, generator: torch.Generator) -> Tensor:
    """Forbid a share of the entries, but never the largest of a row: a distribution must stay one."""
    draw = torch.rand(prob.shape, generator=generator, dtype=prob.dtype)
    forbidden = (draw < zeros) & (prob < prob.amax(-1, keepdim=True))
    prob = prob.masked_fill(forbidden, 0.0)
    return prob / prob.sum(-1, keepdim=True)


def random_hmm(states: int, seed: int, zeros: float = 0.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(log_start_S, log_transition_SS), peaked so that states differ; a share `zeros` of entries is −inf."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(states + 1, states, generator=generator, dtype=torch.float64)
    log_prob = _with_zeros(logits.softmax(-1), zeros, generator).log().to(dtype)
    return log_prob[0], log_prob[1:]


def random_log_emission(
    batch: int, time: int, states: int, seed: int, zeros: float = 0.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """log_emission_BTS of made-up tokens: probabilities in (0, 1), a share `zeros` of them −inf.

    With zeros, rows may be impossible: that is part of the test.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    prob = torch.rand(batch, time, states, generator=generator, dtype=torch.float64).clamp_min(1e-6) ** 3
    draw = torch.rand(batch, time, states, generator=generator, dtype=torch.float64)
    return prob.masked_fill(draw < zeros, 0.0).log().to(dtype)


def random_belief(batch: int, states: int, seed: int, zeros: float = 0.0) -> Tensor:
    """belief_BS, rows summing to one."""
    generator = torch.Generator().manual_seed(seed + 2_000_003)
    prob = torch.rand(batch, states, generator=generator, dtype=torch.float64)
    return _with_zeros(prob / prob.sum(-1, keepdim=True), zeros, generator)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """What `Chain.dense` takes, small enough to list: start, transition, emission, lengths, belief.

    With zeros, missing tokens, rows of no tokens, padding full of NaN, and beliefs at will.
    """
    states, time, batch = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    seed, zeros = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.0, 0.3, 0.6]))
    lengths_B = torch.tensor(draw(st.lists(st.integers(0, time), min_size=batch, max_size=batch)))
    log_emission_BTS = random_log_emission(batch, time, states, seed, zeros)
    log_emission_BTS[:, draw(st.lists(st.integers(0, time - 1), max_size=1))] = 0.0
    log_emission_BTS[torch.arange(time) >= lengths_B[:, None]] = torch.nan
    belief_BS = random_belief(batch, states, seed, zeros) if draw(st.booleans()) else None
    return *random_hmm(states, seed, zeros), log_emission_BTS, lengths_B, belief_BS


def rows_of(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor,
    belief_BS: Tensor | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """The rows of a batch as the reference takes them: no padding, and the belief's logarithm."""
    for b, length in enumerate(lengths_B.tolist()):
        log_belief_S = None if belief_BS is None else belief_BS[b].log()
        yield log_start_S, log_transition_SS, log_emission_BTS[b, :length], log_belief_S


def dense_counts(
    log_start_S: Tensor, log_transition_SS: Tensor, log_emission_BTS: Tensor, *more: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Expected counts of first states and of steps in the possible rows: gradients of what `score` says of these."""
    leaves = [x.detach().clone().requires_grad_() for x in (log_start_S, log_transition_SS)]
    log_prob_BT, _ = score(Chain.dense(*leaves, log_emission_BTS, *more))
    start_S, transition_SS = torch.autograd.grad(
        log_prob_BT, leaves, possible(log_prob_BT.T).T, allow_unused=True, materialize_grads=True
    )
    return start_S, transition_SS


def counts(chain: Chain, weight_BT: Tensor | None = None) -> tuple[Tensor, ...]:
    """Gradients of the log-likelihood of possible rows, or of weighted tokens: by log_first, columns, tensors."""
    transition = learning(chain.transition)
    first_BS, columns_NS = (x.detach().clone().requires_grad_() for x in (chain.log_first_BS, chain.log_columns_NS))
    learned = chain._replace(log_first_BS=first_BS, log_columns_NS=columns_NS, transition=transition)
    log_prob_BT, _ = score(learned)
    weight_BT = possible(log_prob_BT.T).T if weight_BT is None else weight_BT
    inputs = first_BS, columns_NS, *transition.tensors
    return torch.autograd.grad(log_prob_BT, inputs, weight_BT, allow_unused=True, materialize_grads=True)


def learning(transition: Transition) -> Transition:
    """The same transition of tensors to take gradients by."""
    if not transition.tensors:
        return transition
    (tensor,) = (x.detach().clone().requires_grad_() for x in transition.tensors)
    if isinstance(transition, Dense):
        return Dense(tensor)
    assert isinstance(transition, BlockPairs)
    return BlockPairs(tensor, transition.pair_BT, transition.log_into)


class InPieces(Transition):
    """One matrix for all steps that says nothing but `pieces` and `states`: the least that a transition may be.

    Its pieces are as awkward as they may be: two shares of the rows; slices, and numbers out of order; one matrix for
    all rows, and one each.
    """

    def __init__(self, log_matrix_SS: Tensor) -> None:
        self.log_matrix_SS = log_matrix_SS.detach()

    @override
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        half, middle = len(rows_B) // 2, (self.states + 1) // 2
        matrix_SS = (self.log_matrix_SS if log else self.log_matrix_SS.exp()).T
        numbers_S = torch.arange(self.states)
        cut = middle < self.states
        for from_ in (slice(0, middle), numbers_S[middle:].flip(0))[: 1 + cut]:
            for to in (numbers_S[:middle].flip(0), slice(middle, self.states))[: 1 + cut]:
                matrix_CN = matrix_SS[to][:, from_]
                if half:
                    yield Piece(slice(0, half), from_, to, matrix_CN)
                yield Piece(slice(half, len(rows_B)), from_, to, matrix_CN.expand(len(rows_B) - half, -1, -1))

    @property
    @override
    def states(self) -> int:
        return len(self.log_matrix_SS)
