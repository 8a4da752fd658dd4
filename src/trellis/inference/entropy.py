"""How sure a model is of what it read: the entropy of the posterior over whole state paths, exactly.

There are S**T paths, but a path's −p log p splits along its steps, so one forward recursion of matrix
products carries the sum. It runs in float64: the sum over a long row would lose float32's digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.inference import log_space
from trellis.inference.chain import Chain
from trellis.inference.recursion import Rows, walk
from trellis.inference.transitions import Transition
from trellis.ops import walks
from trellis.ops.precision import widened

# A token less probable than this, relative to its best state's emission, comes near float64's underflow.
UNDERFLOW = 1e-200


@torch.no_grad()
def entropy(chain: Chain) -> Tensor:
    """H(z | o) = −Σ_z p(z | o) log p(z | o) in nats, (B,) float64; 0 of a row of no tokens.

    An entropy is at most the logarithm of the number of possible paths: for an impossible row we say −inf.
    """
    batch, time, _ = chain.shape
    log_columns_NS, index_BT = chain.columns()
    rows = Rows.of(chain.lengths_B, batch, time)
    transition = chain.transition if rows.order is None else chain.transition.sorted(rows.order)
    steps = transition.mapped(torch.exp), transition.mapped(lambda log: torch.special.entr(log.exp()))
    first_BS = rows.sort(chain.exact_first().exp())
    entropy_B, least_B, low_B = _recursion(first_BS, *steps, log_columns_NS, rows.sort(index_BT.T, 1), rows)
    lost = set((least_B < UNDERFLOW).nonzero().flatten().cpu().tolist())
    if bool(low_B.any()):  # impossible states, or ones that float64 cannot hold: those the walk does in log space
        lost |= set(walk(chain, log_columns_NS, index_BT).rescued)
    for row in lost:
        asked = log_space.row_of(chain, log_columns_NS, index_BT, rows.callers(row), rows.length(row))
        entropy_B[row] = log_space.entropy(asked)
    return rows.unsort(entropy_B)


def _recursion(
    first_BS: Tensor, step: Transition, entropy_step: Transition, log_columns_NS: Tensor, index_TB: Tensor, rows: Rows
) -> tuple[Tensor, Tensor, Tensor]:
    """Entropies, each row's least token probability relative to the token's best state, and if a belief was too small.

    With α the belief and G[j] = −Σ p log p over the paths that end in j, a step with emission e and scale c
    turns each p into p · A · e / c, so that G becomes (G A + α (−A log A)) · e / c − α' · log(e / c).
    """
    belief, total = first_BS, torch.special.entr(first_BS)
    entropy_B, least_B = first_BS.new_zeros(len(first_BS)), first_BS.new_ones(len(first_BS))
    low_B, lowest = torch.zeros_like(entropy_B, dtype=torch.bool), walks.limits(first_BS.dtype).lowest_belief
    for t, running in enumerate(rows.running):
        belief, total = belief[:running], total[:running]
        if t > 0:
            total = step.push(total, t) + entropy_step.push(belief, t)
            belief = step.push(belief, t)
        log_emission = widened(log_columns_NS[index_TB[t, :running]])
        belief, total, scale = _observe(belief, total, log_emission)
        least_B[:running] = least_B[:running].minimum(scale)
        low_B[:running] |= belief.amin(-1) * scale < lowest
        going_on = rows.running[t + 1] if t + 1 < len(rows.running) else 0
        entropy_B[going_on:running] = total[going_on:].sum(-1)
    return entropy_B, least_B, low_B


def _observe(predicted_BS: Tensor, sum_BS: Tensor, log_emission_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weigh the paths by a token's emission: new belief, new sum, and the scale relative to the best."""
    peak_B1 = log_emission_BS.amax(-1, keepdim=True)
    log_emission_BS = log_emission_BS - peak_B1.masked_fill(peak_B1 == -torch.inf, 0.0)
    scale_B1 = (predicted_BS * log_emission_BS.exp()).sum(-1, keepdim=True)
    log_weight_BS = log_emission_BS - scale_B1.clamp_min(UNDERFLOW).log()
    belief_BS = predicted_BS * log_weight_BS.exp()
    gained_BS = belief_BS * log_weight_BS.masked_fill(log_weight_BS == -torch.inf, 0.0)
    return belief_BS, sum_BS * log_weight_BS.exp() - gained_BS, scale_B1.squeeze(-1)
