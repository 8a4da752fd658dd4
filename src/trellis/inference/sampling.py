"""State paths drawn from the posterior, exactly: filter forward, then draw from the end back."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.errors import InputError
from trellis.inference import log_space
from trellis.inference.chain import Chain
from trellis.inference.draws import draw
from trellis.inference.recursion import walk
from trellis.ops.precision import widened

# Below this, the weights of a backward step are made of beliefs that float32 cannot hold.
UNDERFLOW = 1e-30
# Weights held at once by a backward step: 32 MB of float64.
CHUNK = 1 << 22


@torch.no_grad()
def sample_posterior(chain: Chain, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Independent draws of z ~ p(z | o), (B, samples, T); −1 past a row's end and in impossible rows.

    p(z_t | z_t+1, o) ∝ belief[t, z_t] · transition[z_t, z_t+1]; where beliefs were too small for that, in log space.
    """
    if samples < 1:
        raise InputError(f"the number of samples cannot be {samples}: give 1 or more.")
    log_columns_NS, index_BT = chain.columns()
    done = walk(chain, log_columns_NS, index_BT)
    belief_BTS = done.rows.unsort(done.belief_TBS, 1).transpose(0, 1)
    log_prob_B = done.rows.unsort(done.log_prob_TB, 1).sum(0)
    lengths_B = torch.where(log_prob_B > -torch.inf, chain.lengths(), 0)
    batch, _, states = chain.shape
    share = max(1, CHUNK // max(1, batch * states))
    drawn = [
        _backward(chain, belief_BTS, min(share, samples - n), lengths_B, generator) for n in range(0, samples, share)
    ]
    places_BNT = torch.cat([places_BNT for places_BNT, _ in drawn], 1)
    least_B = torch.stack([least_B for _, least_B in drawn]).amin(0)
    least_B[[done.rows.callers(row) for row in done.done_again()]] = 0.0
    least_B.masked_fill_(lengths_B == 0, 1.0)
    for row in (least_B < UNDERFLOW).nonzero().flatten().cpu().tolist():
        length = int(lengths_B[row])
        asked = log_space.row_of(chain, log_columns_NS, index_BT, row, length)
        places_BNT[row, :, :length] = log_space.draw_paths(asked, samples, generator)
    return chain.named(places_BNT)


def _backward(
    chain: Chain, belief_BTS: Tensor, samples: int, lengths_B: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw paths from the last token to the first; also the least total weight of any draw of a row."""
    batch, time, _ = belief_BTS.shape
    places_BNT = torch.full((batch, samples, time), -1, dtype=torch.int64, device=belief_BTS.device)
    least_B = widened(belief_BTS.new_ones(batch))
    longest = int(lengths_B.max()) if batch else 0
    for t in reversed(range(longest)):
        rows = (lengths_B > t).nonzero().flatten()
        weight = widened(belief_BTS[rows, t, None]).expand(-1, samples, -1)
        if t + 1 < longest:
            later = places_BNT[rows, :, t + 1]
            leading = widened(chain.transition.towards(t + 1, rows, later.clamp_min(0), log=False))
            weight = weight * leading.masked_fill((later < 0)[..., None], 1.0)
        places_BNT[rows, :, t] = draw(weight, generator)
        least_B[rows] = least_B[rows].minimum(weight.sum(-1).amin(-1))
    return places_BNT, least_B
