"""The most probable state paths of a ragged batch: the best one (Viterbi), or the k best, exactly.

One max-plus recursion serves both: for every state it keeps the k best paths ending there; Viterbi is k = 1.
A step looks at every pair of states, so it runs in chunks: all pairs of all rows are never held at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.blocked import Blocks
from trellis.inference.recursion import own_columns
from trellis.inference.transitions import Crossed, Paired, Shared

# Scores of state pairs held at once: 8 MB of float32, which stays in cache; chunks of 32 MB run half as fast.
CHUNK = 1 << 21


class Paths(NamedTuple):
    """log_prob[b] = max_z log p(z, o_b), states[b] = the z that attains it.

    States are −1 past a row's end. An impossible row has log_prob −inf and no states.
    """

    log_prob_B: Tensor
    states_BT: Tensor


class KBest(NamedTuple):
    """log_prob[b, k] = log p(z, o_b) of the k-th most probable path z = states[b, k]; none is listed twice.

    States are −1 past a row's end. Where fewer than k paths are possible, the rest is −inf and −1.
    """

    log_prob_BK: Tensor
    states_BKT: Tensor


def viterbi(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
) -> Paths:
    """The most probable state path of each row, and its joint log-probability with the tokens."""
    best = k_best(log_start_S, log_transition_SS, log_emission_BTS, 1, lengths_B, belief_BS)
    return Paths(best.log_prob_BK[:, 0], best.states_BKT[:, 0])


def k_best(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    k: int,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
) -> KBest:
    """The k most probable distinct state paths of each row, best first.

    Back-pointers take batch × time × states × k short integers; the scores of one step, `CHUNK` numbers.
    """
    log_start_S, log_transition_SS = log_start_S.to(log_emission_BTS), log_transition_SS.to(log_emission_BTS)
    batch, time, _ = log_emission_BTS.shape
    if lengths_B is None:
        lengths_B = torch.full((batch,), time, device=log_emission_BTS.device)
    if belief_BS is None:
        log_first_BS = log_start_S.expand(batch, -1)
    else:
        log_first_BS = (belief_BS.to(log_transition_SS) @ log_transition_SS.exp()).log()
    log_into_SS = log_transition_SS.T.contiguous()  # the maximum runs along the last dimension, twice as fast
    return best_paths(log_first_BS, Shared(log_into_SS.T), *own_columns(log_emission_BTS), lengths_B, k)


@torch.no_grad()
def blocked_viterbi(blocks: Blocks) -> Paths:
    """The most probable path of each row of a blocked model; states count within the group of their token."""
    best = blocked_k_best(blocks, 1)
    return Paths(best.log_prob_BK[:, 0], best.states_BKT[:, 0])


@torch.no_grad()
def blocked_k_best(blocks: Blocks, k: int) -> KBest:
    """The k best paths of each row of a blocked model; states count within the group of their token."""
    log_transition = Paired(blocks.log_matrices(), blocks.pair_BT.T)
    columns = blocks.log_columns_NK, blocks.index_BT
    return best_paths(blocks.first_BK.log(), log_transition, *columns, blocks.lengths(), k)


def best_paths(
    log_first_BS: Tensor,
    log_transition: Shared | Paired | Crossed,
    log_columns_NS: Tensor,
    index_BT: Tensor,
    lengths_B: Tensor,
    k: int,
) -> KBest:
    """Climb and walk back; `log_first_BS` is what is known of the first state before its token is seen."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    # One path of no tokens leads to each first state; ranks beyond it are empty.
    empty_BSK = log_first_BS.new_full((*log_first_BS.shape, k - 1), -torch.inf)
    score_BSK = torch.cat([log_first_BS[..., None], empty_BSK], -1)
    log_prob_BK, end_BK, pointers_BTSK = _climb(score_BSK, log_transition, log_columns_NS, index_BT, lengths_B)
    states_BKT = _walk_back(end_BK, pointers_BTSK, lengths_B)
    return KBest(log_prob_BK, states_BKT.masked_fill((log_prob_BK == -torch.inf)[..., None], -1))


def _climb(
    score_BSK: Tensor,
    log_transition: Shared | Paired | Crossed,
    log_columns_NS: Tensor,
    index_BT: Tensor,
    lengths_B: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recursion over all tokens: final scores, where each final path ends, and all back-pointers.

    A pointer names a path among those of the token before, as state × k + rank. Scores are kept relative to a
    row's best, so that float32 still tells two paths apart after thousands of tokens.
    """
    (batch, states, k), time = score_BSK.shape, index_BT.shape[1]
    dtype = torch.int16 if states * k <= torch.iinfo(torch.int16).max else torch.int32
    pointers_BTSK = torch.empty(batch, time, states, k, dtype=dtype, device=score_BSK.device)
    offset_B = torch.zeros(batch, dtype=torch.float64, device=score_BSK.device)
    for t in range(int(lengths_B.max()) if batch else 0):
        rows = (lengths_B > t).nonzero().squeeze(-1)
        score = score_BSK[rows]
        if t > 0:
            score, pointer = _step(score, log_transition, t, rows)
            pointers_BTSK[rows, t] = pointer.to(dtype)
        score = score + log_columns_NS[index_BT[rows, t], :, None]
        peak = score.amax((1, 2))
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        score_BSK[rows] = score - peak[:, None, None]
        offset_B[rows] += peak
    score_BSK = _only_the_empty_path(score_BSK, lengths_B)
    top_BK, end_BK = score_BSK.flatten(1).topk(k)
    return (top_BK + offset_B[:, None]).to(score_BSK.dtype), end_BK, pointers_BTSK


def _only_the_empty_path(score_BSK: Tensor, lengths_B: Tensor) -> Tensor:
    """A row of no tokens has one path, the empty one, whatever its first state would have been."""
    empty = score_BSK.new_full(score_BSK.shape[1:], -torch.inf)
    empty[0, 0] = 0.0
    return torch.where((lengths_B == 0)[:, None, None], empty, score_BSK)


def _step(
    score_BSK: Tensor, log_transition: Shared | Paired | Crossed, step: int, rows_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The k best ways into each state and the pointers to where they come from, chunk by chunk."""
    if isinstance(log_transition, Crossed):
        return _step_across(score_BSK, log_transition, step)
    batch, states, k = score_BSK.shape
    width = max(states, min(k, states) * k)  # what `_best_into` holds for one row and one state
    columns = max(1, min(states, CHUNK // width))
    rows = max(1, CHUNK // (columns * width))
    best, pointer = torch.empty_like(score_BSK), torch.empty_like(score_BSK, dtype=torch.int64)
    for b in range(0, batch, rows):
        log_into = log_transition.into(step, rows_B[b : b + rows])
        for j in range(0, states, columns):
            here = slice(b, b + rows), slice(j, j + columns)
            best[here], pointer[here] = _best_into(score_BSK[b : b + rows], log_into[..., j : j + columns, :])
    return best, pointer


def _step_across(score_1SK: Tensor, steps: Crossed, step: int) -> tuple[Tensor, Tensor]:
    """The same of one row whose matrices come piece by piece: the best of all pieces so far."""
    k = score_1SK.shape[2]
    best_1SK, pointer_1SK = torch.full_like(score_1SK, -torch.inf), torch.zeros_like(score_1SK, dtype=torch.int64)
    for leave_N, enter_C, log_into_CN in steps.crossings(step):
        columns = max(1, CHUNK // max(len(leave_N), min(k, len(leave_N)) * k))
        for here_D, log_into_DN in zip(enter_C.split(columns), log_into_CN.split(columns), strict=True):
            more_1DK, place_1DK = _best_into(score_1SK[:, leave_N], log_into_DN)
            from_1DK = leave_N[place_1DK // k] * k + place_1DK % k
            best_1DK, choice_1DK = torch.cat([best_1SK[:, here_D], more_1DK], -1).topk(k)
            best_1SK[:, here_D] = best_1DK
            pointer_1SK[:, here_D] = torch.cat([pointer_1SK[:, here_D], from_1DK], -1).gather(-1, choice_1DK)
    return best_1SK, pointer_1SK


def _best_into(score_BSK: Tensor, log_into: Tensor) -> tuple[Tensor, Tensor]:
    """The k best ways into C states, by the steps to them: C×S, or B×C×S if each row has its own.

    Only the k states whose own best path is among the k best can offer any of them, so k × k candidates are
    compared, not S × k.
    """
    batch, states, k = score_BSK.shape
    offers_BCS = score_BSK[:, None, :, 0] + log_into
    if k == 1:
        best_BC1, from_BC1 = offers_BCS.max(-1, keepdim=True)
        return best_BC1, from_BC1
    from_BCJ = offers_BCS.topk(min(k, states)).indices
    row_B11 = torch.arange(batch, device=score_BSK.device)[:, None, None]
    step_BCJ = log_into.expand(batch, -1, -1).gather(-1, from_BCJ)
    offers_BCJK = score_BSK[row_B11, from_BCJ] + step_BCJ[..., None]
    best_BCK, choice_BCK = offers_BCJK.flatten(2).topk(k)
    return best_BCK, from_BCJ.gather(-1, choice_BCK // k) * k + choice_BCK % k


def _walk_back(end_BK: Tensor, pointers_BTSK: Tensor, lengths_B: Tensor) -> Tensor:
    """Follow the pointers from each row's last token to its first; −1 past a row's end."""
    batch, time, _, k = pointers_BTSK.shape
    states_BKT = torch.full((batch, k, time), -1, dtype=torch.int64, device=end_BK.device)
    path_BK = end_BK.clone()
    for t in reversed(range(int(lengths_B.max()) if batch else 0)):
        rows = (lengths_B > t).nonzero().squeeze(-1)
        path = path_BK[rows]
        states_BKT[rows, :, t] = path // k
        if t > 0:
            path_BK[rows] = pointers_BTSK[rows, t].flatten(1).gather(-1, path.long()).to(torch.int64)
    return states_BKT
