"""Exact samples: state paths given the tokens, by filtering forward and drawing backward; and text."""

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference import reference
from trellis.inference.forward import forward

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
    batch, time, states = log_emission_BTS.shape
    if lengths_B is None:
        lengths_B = torch.full((batch,), time, device=log_emission_BTS.device)
    filtered = forward(log_start_S, log_transition_SS, log_emission_BTS, lengths_B, belief_BS)
    possible_B = filtered.log_prob_BT.sum(-1) > -torch.inf
    lengths_B = torch.where(possible_B, lengths_B, 0)
    into_SS = log_transition_SS.exp().T.contiguous()
    share = max(1, CHUNK // max(1, batch * states))
    drawn = [
        _backward(filtered.belief_BTS, into_SS, min(share, samples - n), lengths_B, generator)
        for n in range(0, samples, share)
    ]
    states_BNT = torch.cat([states_BNT for states_BNT, _ in drawn], 1)
    least_B = torch.stack([least_B for _, least_B in drawn]).amin(0)
    for row in (least_B < UNDERFLOW).nonzero().flatten().tolist():
        length, log_belief_S = int(lengths_B[row]), None if belief_BS is None else belief_BS[row].log()
        model = (log_start_S, log_transition_SS, log_emission_BTS[row, :length])
        states_BNT[row, :, :length] = _backward_in_log_space(*model, log_belief_S, samples, generator)
    return states_BNT


def _backward(
    belief_BTS: Tensor, into_SS: Tensor, samples: int, lengths_B: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw paths from the last token to the first; also the least total weight of any draw of a row."""
    batch, time, _ = belief_BTS.shape
    states_BNT = torch.full((batch, samples, time), -1, dtype=torch.int64, device=belief_BTS.device)
    least_B = torch.ones(batch, dtype=torch.float64, device=belief_BTS.device)
    for t in reversed(range(time)):
        rows = (lengths_B > t).nonzero().flatten()
        weight = belief_BTS[rows, t, None].double().expand(-1, samples, -1)
        if t + 1 < time:
            later = states_BNT[rows, :, t + 1]
            weight = weight * into_SS[later].double().masked_fill((later < 0)[..., None], 1.0)
        states_BNT[rows, :, t] = draw(weight, generator)
        least_B[rows] = least_B[rows].minimum(weight.sum(-1).amin(-1))
    return states_BNT, least_B


def _backward_in_log_space(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None,
    samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """The same draws for one row whose only paths run through beliefs too small for float32; (samples, T)."""
    log_belief_TS = reference.filter(log_start_S, log_transition_SS, log_emission_TS, log_belief_S).log_belief_TS
    log_into_SS = log_transition_SS.double().T
    states: list[Tensor] = []
    for log_belief_S in log_belief_TS.flip(0):
        log_weight_NS = log_belief_S.expand(samples, -1) + (log_into_SS[states[-1]] if states else 0.0)
        states.append(draw(log_weight_NS.softmax(-1), generator))
    return torch.stack(states[::-1], 1)
