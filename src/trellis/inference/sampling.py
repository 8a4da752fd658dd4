"""Exact samples: state paths given the tokens, by filtering forward and drawing backward; and text."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference import reference
from trellis.inference.blocked import Blocks, blocked_forward
from trellis.inference.forward import forward
from trellis.inference.transitions import Paired, Shared

# Below this, the weights of a backward step are made of beliefs that float32 cannot hold.
UNDERFLOW = 1e-30
# Weights held at once by a backward step: 32 MB of float64.
CHUNK = 1 << 22


class Samples(NamedTuple):
    """z_1 ~ start, z_t+1 ~ transition[z_t], o_t ~ emission[z_t].

    states_BT, tokens_BT  −1 past a row's end
    lengths_B             tokens drawn, the end token included
    """

    states_BT: Tensor
    tokens_BT: Tensor
    lengths_B: Tensor


def draw(weight_NS: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index a row, with probability proportional to the weights; never one of weight zero."""
    heap_NS = weight_NS.double().cumsum(-1)
    total_N1 = heap_NS[..., -1:]
    # At most 1 − 2⁻⁵³, so that its product with the total always rounds to less than the total.
    point_N1 = torch.rand(total_N1.shape, generator=generator, dtype=torch.float64, device=weight_NS.device)
    index_N1 = torch.searchsorted(heap_NS, point_N1 * total_N1, right=True)
    return index_N1.squeeze(-1).clamp_max(weight_NS.shape[-1] - 1)


def sample(
    start_S: Tensor,
    transition_SS: Tensor,
    emission_SV: Tensor,
    lengths_B: Tensor,
    belief_BS: Tensor | None = None,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
) -> Samples:
    """Draw rows of states and tokens, of the given lengths or up to and including the first `end_token`.

    With a belief, carry on after the tokens it has seen; to carry on a sample, believe in its last state.
    """
    batch, time = len(lengths_B), int(lengths_B.max()) if len(lengths_B) else 0
    states_BT, tokens_BT = lengths_B.new_full((2, batch, time), -1, dtype=torch.int64)
    lengths_B = lengths_B.clone()
    weight_BS = start_S.expand(batch, -1) if belief_BS is None else belief_BS.to(transition_SS) @ transition_SS
    for t in range(time):
        rows = (lengths_B > t).nonzero().flatten()
        weight = weight_BS[rows] if t == 0 else transition_SS[states_BT[rows, t - 1]]
        state = draw(weight, generator)
        token = draw(emission_SV[state], generator)
        states_BT[rows, t], tokens_BT[rows, t] = state, token
        if end_token is not None:
            lengths_B[rows[token == end_token]] = t + 1
    return Samples(states_BT, tokens_BT, lengths_B)


def sample_posterior(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    samples: int,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Independent draws of z ~ p(z | o), (B, samples, T); −1 past a row's end and in impossible rows.

    p(z_t | z_t+1, o) ∝ belief[t, z_t] · transition[z_t, z_t+1]: filter forward, then draw from the end back.
    """
    batch, time, _ = log_emission_BTS.shape
    if lengths_B is None:
        lengths_B = torch.full((batch,), time, device=log_emission_BTS.device)
    filtered = forward(log_start_S, log_transition_SS, log_emission_BTS, lengths_B, belief_BS)
    lengths_B = torch.where(filtered.log_prob_BT.sum(-1) > -torch.inf, lengths_B, 0)
    into_SS = log_transition_SS.exp().T.contiguous()  # a draw reads how all states lead to one: let them lie together

    def row_of(row: int, length: int) -> reference.Sequence:
        log_belief_S = None if belief_BS is None else belief_BS[row].log()
        return log_start_S, log_transition_SS, log_emission_BTS[row, :length], log_belief_S

    return _sample_paths(filtered.belief_BTS, Shared(into_SS.T), lengths_B, samples, generator, row_of)


@torch.no_grad()
def blocked_sample_posterior(blocks: Blocks, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Independent draws of z ~ p(z | o) from a blocked model, (B, samples, T), −1 as above.

    States count within the group of their token.
    """
    filtered = blocked_forward(blocks)
    lengths_B = torch.where(filtered.log_prob_BT.sum(-1) > -torch.inf, blocks.lengths(), 0)
    transition = Paired(blocks.into_PJK, blocks.pair_BT.T)
    return _sample_paths(filtered.belief_BTK, transition, lengths_B, samples, generator, blocks.row)


def _sample_paths(
    belief_BTS: Tensor,
    transition: Shared | Paired,
    lengths_B: Tensor,
    samples: int,
    generator: torch.Generator | None,
    row_of: Callable[[int, int], reference.Sequence],
) -> Tensor:
    """Draw backward through filtered beliefs, and again in log space where those were too small.

    `row_of` gives a row of some length as the reference takes it.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    batch, _, states = belief_BTS.shape
    share = max(1, CHUNK // max(1, batch * states))
    drawn = [
        _backward(belief_BTS, transition, min(share, samples - n), lengths_B, generator)
        for n in range(0, samples, share)
    ]
    states_BNT = torch.cat([states_BNT for states_BNT, _ in drawn], 1)
    least_B = torch.stack([least_B for _, least_B in drawn]).amin(0)
    for row in (least_B < UNDERFLOW).nonzero().flatten().tolist():
        length = int(lengths_B[row])
        states_BNT[row, :, :length] = _backward_in_log_space(*row_of(row, length), samples, generator)
    return states_BNT


def _backward(
    belief_BTS: Tensor,
    transition: Shared | Paired,
    samples: int,
    lengths_B: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Draw paths from the last token to the first; also the least total weight of any draw of a row."""
    batch, time, _ = belief_BTS.shape
    states_BNT = torch.full((batch, samples, time), -1, dtype=torch.int64, device=belief_BTS.device)
    least_B = torch.ones(batch, dtype=torch.float64, device=belief_BTS.device)
    longest = int(lengths_B.max()) if batch else 0
    for t in reversed(range(longest)):
        rows = (lengths_B > t).nonzero().flatten()
        weight = belief_BTS[rows, t, None].double().expand(-1, samples, -1)
        if t + 1 < longest:
            later = states_BNT[rows, :, t + 1]
            leading = transition.reaching(t + 1, rows, later).double()
            weight = weight * leading.masked_fill((later < 0)[..., None], 1.0)
        states_BNT[rows, :, t] = draw(weight, generator)
        least_B[rows] = least_B[rows].minimum(weight.sum(-1).amin(-1))
    return states_BNT, least_B


def _backward_in_log_space(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None,
    samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """The same draws for one row whose only paths run through beliefs too small for float32; (samples, T)."""
    log_transition = log_transition.double()
    log_belief_TS = reference.filter(log_start_S, log_transition, log_emission_TS, log_belief_S).log_belief_TS
    states_NT = torch.empty(samples, len(log_belief_TS), dtype=torch.int64, device=log_belief_TS.device)
    for t in reversed(range(len(log_belief_TS))):
        log_weight_NS = log_belief_TS[t].expand(samples, -1)
        if t + 1 < len(log_belief_TS):
            log_weight_NS = log_weight_NS + reference.into(log_transition, t + 1).T[states_NT[:, t + 1]]
        states_NT[:, t] = draw(log_weight_NS.softmax(-1), generator)
    return states_NT
