"""How sure a model is of what it read: the entropy of the posterior over whole state paths, exactly.

There are S**T paths, but a path's −p log p splits along its steps, so one forward recursion of matrix
products carries the sum. It runs in float64: the sum over a long row would lose float32's digits.
"""

import torch
from torch import Tensor

from trellis.inference import reference

# A token less probable than this, relative to its best state's emission, comes near float64's underflow.
UNDERFLOW = 1e-200


def posterior_entropy(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
) -> Tensor:
    """H(z | o) = −Σ_z p(z | o) log p(z | o) in nats, (B,) float64; 0 of a row of no tokens.

    An entropy is at most the logarithm of the number of possible paths: for an impossible row we say −inf.
    """
    batch, time, _ = log_emission_BTS.shape
    if lengths_B is None:
        lengths_B = torch.full((batch,), time, device=log_emission_BTS.device)
    entropy_B, least_B = _recursion(log_start_S, log_transition_SS, log_emission_BTS, lengths_B, belief_BS)
    for row in (least_B < UNDERFLOW).nonzero().flatten().tolist():
        log_belief_S = None if belief_BS is None else belief_BS[row].double().log()
        log_emission_TS = log_emission_BTS[row, : int(lengths_B[row])]
        entropy_B[row] = reference.posterior_entropy(log_start_S, log_transition_SS, log_emission_TS, log_belief_S)
    return entropy_B


def _recursion(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor,
    belief_BS: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Entropies, and each row's least token probability relative to the token's best state.

    With α the belief and G[j] = −Σ p log p over the paths that end in j, a step with emission e and scale c
    turns each p into p · A · e / c, so that G becomes (G A + α (−A log A)) · e / c − α' · log(e / c).
    """
    batch, time, _ = log_emission_BTS.shape
    transition_SS = log_transition_SS.double().exp()
    entropy_SS = torch.special.entr(transition_SS)
    predicted_BS = log_start_S.double().exp().expand(batch, -1)
    if belief_BS is not None:
        predicted_BS = belief_BS.double() @ transition_SS
    belief_BS, sum_BS = predicted_BS.clone(), torch.special.entr(predicted_BS)
    least_B = belief_BS.new_ones(batch)
    for t in range(time):
        rows = (lengths_B > t).nonzero().flatten()
        predicted, total = belief_BS[rows], sum_BS[rows]
        if t > 0:
            total = total @ transition_SS + predicted @ entropy_SS
            predicted = predicted @ transition_SS
        belief_BS[rows], sum_BS[rows], scale = _observe(predicted, total, log_emission_BTS[rows, t].double())
        least_B[rows] = least_B[rows].minimum(scale)
    return torch.where(lengths_B > 0, sum_BS.sum(-1), 0.0), least_B


def _observe(predicted_BS: Tensor, sum_BS: Tensor, log_emission_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weigh the paths by a token's emission: new belief, new sum, and the scale relative to the best."""
    peak_B1 = log_emission_BS.amax(-1, keepdim=True)
    log_emission_BS = log_emission_BS - peak_B1.masked_fill(peak_B1 == -torch.inf, 0.0)
    scale_B1 = (predicted_BS * log_emission_BS.exp()).sum(-1, keepdim=True)
    log_weight_BS = log_emission_BS - scale_B1.clamp_min(UNDERFLOW).log()
    belief_BS = predicted_BS * log_weight_BS.exp()
    gained_BS = belief_BS * log_weight_BS.masked_fill(log_weight_BS == -torch.inf, 0.0)
    return belief_BS, sum_BS * log_weight_BS.exp() - gained_BS, scale_B1.squeeze(-1)
