"""How sure a model is of what it read: the entropy of the posterior over whole state paths, exactly.

There are S**T paths, but a path's −p log p splits along its steps, so one forward recursion of matrix
products carries the sum. It runs in float64: the sum over a long row would lose float32's digits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trellis.inference import reference
from trellis.inference.blocked import Blocks
from trellis.inference.recursion import Rows, own_columns
from trellis.inference.transitions import Paired, Shared

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
    log_columns_NS, index_BT = own_columns(log_emission_BTS)
    rows = Rows.of(lengths_B, *index_BT.shape)
    transition_SS = log_transition_SS.double().exp()
    first_BS = log_start_S.double().exp().expand(len(index_BT), -1)
    if belief_BS is not None:
        first_BS = rows.sort(belief_BS.double()) @ transition_SS
    steps = Shared(transition_SS), Shared(torch.special.entr(transition_SS))

    def row_of(row: int, length: int) -> reference.Sequence:
        log_belief_S = None if belief_BS is None else belief_BS[row].double().log()
        return log_start_S, log_transition_SS, log_emission_BTS[row, :length], log_belief_S

    return _entropy(first_BS, *steps, log_columns_NS, rows.sort(index_BT.T, 1), rows, row_of)


@torch.no_grad()
def blocked_entropy(blocks: Blocks) -> Tensor:
    """H(z | o) of each row of a blocked model, as `posterior_entropy` has it."""
    rows = Rows.of(blocks.lengths_B, *blocks.index_BT.shape)
    index_TB, pair_TB = rows.sort(blocks.index_BT.T, 1), rows.sort(blocks.pair_BT.T, 1)
    into_PJK = blocks.log_matrices().double().exp()
    steps = Paired(into_PJK, pair_TB), Paired(torch.special.entr(into_PJK), pair_TB)
    first_BK = rows.sort(blocks.first_BK.double())
    return _entropy(first_BK, *steps, blocks.log_columns_NK, index_TB, rows, blocks.row)


def _entropy(
    first_BS: Tensor,
    step: Shared | Paired,
    entropy_step: Shared | Paired,
    log_columns_NS: Tensor,
    index_TB: Tensor,
    rows: Rows,
    row_of: Callable[[int, int], reference.Sequence],
) -> Tensor:
    """Entropies of rows sorted longest first, in the caller's order; underflowed ones by the reference.

    `row_of` gives one of the caller's rows, of some length, as the reference takes it.
    """
    entropy_B, least_B = _recursion(first_BS, step, entropy_step, log_columns_NS, index_TB, rows)
    for row in (least_B < UNDERFLOW).nonzero().flatten().tolist():
        callers_row = row if rows.order is None else int(rows.order[row])
        entropy_B[row] = reference.posterior_entropy(*row_of(callers_row, rows.length(row)))
    return rows.unsort(entropy_B)


def _recursion(
    first_BS: Tensor,
    step: Shared | Paired,
    entropy_step: Shared | Paired,
    log_columns_NS: Tensor,
    index_TB: Tensor,
    rows: Rows,
) -> tuple[Tensor, Tensor]:
    """Entropies, and each row's least token probability relative to the token's best state.

    With α the belief and G[j] = −Σ p log p over the paths that end in j, a step with emission e and scale c
    turns each p into p · A · e / c, so that G becomes (G A + α (−A log A)) · e / c − α' · log(e / c).
    """
    belief, total = first_BS, torch.special.entr(first_BS)
    entropy_B, least_B = first_BS.new_zeros(len(first_BS)), first_BS.new_ones(len(first_BS))
    for t, (going_on, running) in enumerate(rows.ends()):
        belief, total = belief[:running], total[:running]
        if t > 0:
            total = step.push(total, t) + entropy_step.push(belief, t)
            belief = step.push(belief, t)
        log_emission = log_columns_NS[index_TB[t, :running]].double()
        belief, total, scale = _observe(belief, total, log_emission)
        least_B[:running] = least_B[:running].minimum(scale)
        entropy_B[going_on:running] = total[going_on:].sum(-1)
    return entropy_B, least_B


def _observe(predicted_BS: Tensor, sum_BS: Tensor, log_emission_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weigh the paths by a token's emission: new belief, new sum, and the scale relative to the best."""
    peak_B1 = log_emission_BS.amax(-1, keepdim=True)
    log_emission_BS = log_emission_BS - peak_B1.masked_fill(peak_B1 == -torch.inf, 0.0)
    scale_B1 = (predicted_BS * log_emission_BS.exp()).sum(-1, keepdim=True)
    log_weight_BS = log_emission_BS - scale_B1.clamp_min(UNDERFLOW).log()
    belief_BS = predicted_BS * log_weight_BS.exp()
    gained_BS = belief_BS * log_weight_BS.masked_fill(log_weight_BS == -torch.inf, 0.0)
    return belief_BS, sum_BS * log_weight_BS.exp() - gained_BS, scale_B1.squeeze(-1)
