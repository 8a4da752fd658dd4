"""The most probable state paths of a chain: the best one (Viterbi), or the k best, exactly.

One max-plus recursion serves both: for every state it keeps the k best paths ending there; Viterbi is k = 1.
A step looks at every pair of states, so it runs in chunks: all pairs of all rows are never held at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import InputError
from trellis.inference.brief import brief
from trellis.inference.chain import Chain, check_lengths
from trellis.inference.transitions import Dense, Piece, Transition
from trellis.ops.precision import widened
from trellis.ops.sequences import Rows, best_paths, native, side_by_side

# Scores of state pairs held at once: 8 MB of float32, which stays in cache; chunks of 32 MB run half as fast.
CHUNK = 1 << 21


class Paths(NamedTuple):
    """log_prob[b] = max_z log p(z, o_b), states[b] = the z that attains it.

    States are −1 past a row's end. An impossible row has log_prob −inf and no states.
    """

    log_prob_B: Tensor
    states_BT: Tensor

    def __repr__(self) -> str:
        return brief(self)


class KBest(NamedTuple):
    """log_prob[b, k] = log p(z, o_b) of the k-th most probable path z = states[b, k]; none is listed twice.

    States are −1 past a row's end. Where fewer than k paths are possible, the rest is −inf and −1.
    """

    log_prob_BK: Tensor
    states_BKT: Tensor

    def __repr__(self) -> str:
        return brief(self)


def viterbi(chain: Chain) -> Paths:
    """The most probable state path of each row, and its joint log-probability with the tokens."""
    if isinstance(chain.transition, Dense) and native(chain.log_columns_NS):
        return _by_one_matrix(chain, chain.transition.log_matrix_SS.detach())
    best = k_best(chain, 1)
    return Paths(best.log_prob_BK[:, 0], best.states_BKT[:, 0])


@torch.no_grad()
def _by_one_matrix(chain: Chain, log_matrix_SS: Tensor) -> Paths:
    """The same where one matrix is that of every step, which native code climbs row beside row."""
    batch, time, states = chain.shape
    check_lengths(chain.lengths_B, time)
    log_columns_NS, index_BT = chain.columns()
    lengths_B, log_first_BS = chain.lengths(), chain.exact_first().to(log_columns_NS)
    order_B = lengths_B.argsort(descending=True, stable=True)[: int((lengths_B > 0).sum())]
    length_B, from_B = lengths_B[order_B], torch.zeros_like(order_B)
    groups_J = side_by_side(length_B.tolist(), states, torch.get_num_threads())
    rows = Rows(order_B * time, length_B, order_B, from_B, length_B, groups_J)
    found = best_paths(log_first_BS, log_matrix_SS.to(log_columns_NS), log_columns_NS, index_BT.flatten(), rows)
    log_prob_B = found.log_prob_B.new_zeros(batch).index_copy_(0, order_B, found.log_prob_B)
    return Paths(log_prob_B.clamp_max(0.0).to(log_columns_NS), chain.named(found.state_N.view(batch, 1, time))[:, 0])


@torch.no_grad()
def k_best(chain: Chain, k: int) -> KBest:
    """The k most probable distinct state paths of each row, best first.

    Back-pointers take batch × time × states × k short integers; the scores of one step, `CHUNK` numbers.
    """
    if k < 1:
        raise InputError(f"k, the number of paths, cannot be {k}: give 1 or more.")
    check_lengths(chain.lengths_B, chain.shape[1])
    lengths_B, columns = chain.lengths(), chain.columns()
    # One path of no tokens leads to each first state; ranks beyond it are empty.
    log_first_BS = chain.exact_first().to(chain.log_columns_NS)
    empty_BSK = log_first_BS.new_full((*log_first_BS.shape, k - 1), -torch.inf)
    score_BSK = torch.cat([log_first_BS[..., None], empty_BSK], -1)
    log_prob_BK, end_BK, pointers_BTSK = _climb(score_BSK, chain.transition, *columns, lengths_B)
    places_BKT = _walk_back(end_BK, pointers_BTSK, lengths_B)
    return KBest(log_prob_BK, chain.named(places_BKT.masked_fill((log_prob_BK == -torch.inf)[..., None], -1)))


def _climb(
    score_BSK: Tensor, transition: Transition, log_columns_NS: Tensor, index_BT: Tensor, lengths_B: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recursion over all tokens: final scores, where each final path ends, and all back-pointers.

    A pointer names a path among those of the token before, as state × k + rank. Scores are kept relative to a
    row's best, so that float32 still tells two paths apart after thousands of tokens.
    """
    (batch, states, k), time = score_BSK.shape, index_BT.shape[1]
    dtype = torch.int16 if states * k <= torch.iinfo(torch.int16).max else torch.int32
    pointers_BTSK = torch.empty(batch, time, states, k, dtype=dtype, device=score_BSK.device)
    offset_B = widened(score_BSK.new_zeros(batch))
    for t in range(int(lengths_B.max()) if batch else 0):
        rows = (lengths_B > t).nonzero().squeeze(-1)
        score = score_BSK[rows]
        if t > 0:
            score, pointer = _step(score, transition, t, rows)
            pointers_BTSK[rows, t] = pointer.to(dtype)
        score = score + log_columns_NS[index_BT[rows, t], :, None]
        peak = score.amax((1, 2))
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        score_BSK[rows] = score - peak[:, None, None]
        offset_B[rows] += peak
    score_BSK = _only_the_empty_path(score_BSK, lengths_B)
    top_BK, end_BK = score_BSK.flatten(1).topk(k)
    return (top_BK + offset_B[:, None]).clamp_max(0.0).to(score_BSK.dtype), end_BK, pointers_BTSK


def _only_the_empty_path(score_BSK: Tensor, lengths_B: Tensor) -> Tensor:
    """A row of no tokens has one path, the empty one, whatever its first state would have been."""
    empty = score_BSK.new_full(score_BSK.shape[1:], -torch.inf)
    empty[0, 0] = 0.0
    return torch.where((lengths_B == 0)[:, None, None], empty, score_BSK)


def _step(score_BSK: Tensor, transition: Transition, step: int, rows_B: Tensor) -> tuple[Tensor, Tensor]:
    """The k best ways into each state and the pointers to where they come from, piece by piece."""
    best, pointer = torch.full_like(score_BSK, -torch.inf), torch.zeros_like(score_BSK, dtype=torch.int64)
    for piece in transition.pieces(step, rows_B, log=True):
        from_, to = _numbers(piece.from_, score_BSK), _numbers(piece.to, score_BSK)
        # All states, in order: nothing else leads there, and there is nothing to compare with.
        whole = isinstance(piece.from_, slice) and len(from_) == score_BSK.shape[1]
        for rows, columns, more, place in _best_of(piece._replace(from_=from_), score_BSK, whole):
            here = rows, to[columns]
            if not whole:
                place = from_[place // score_BSK.shape[2]] * score_BSK.shape[2] + place % score_BSK.shape[2]
                more, choice = torch.cat([best[here], more], -1).topk(score_BSK.shape[2])
                place = torch.cat([pointer[here], place], -1).gather(-1, choice)
            best[here], pointer[here] = more, place
    return best, pointer


def _numbers(places: Tensor | slice, score_BSK: Tensor) -> Tensor:
    if isinstance(places, Tensor):
        return places
    return torch.arange(score_BSK.shape[1], device=score_BSK.device)[places]


def _best_of(piece: Piece, score_BSK: Tensor, whole: bool) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """The k best ways by one piece, chunk by chunk: rows, places among the states entered, scores and pointers."""
    k, (entered, left) = score_BSK.shape[2], piece.matrix.shape[-2:]
    width = max(left, min(k, left) * k)  # what `_best_into` holds for one row and one state
    columns = max(1, min(entered, CHUNK // width))
    at_once = max(1, CHUNK // (columns * width))
    for b in range(piece.rows.start, min(piece.rows.stop, len(score_BSK)), at_once):
        rows = slice(b, min(b + at_once, piece.rows.stop, len(score_BSK)))
        score = score_BSK[rows] if whole else score_BSK[rows, piece.from_]
        matrix = piece.matrix
        if matrix.dim() == 3:
            matrix = matrix[rows.start - piece.rows.start : rows.stop - piece.rows.start]
        for j in range(0, entered, columns):
            here = slice(j, j + columns)
            yield rows, here, *_best_into(score, matrix[..., here, :].to(score))


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
    places_BKT = torch.full((batch, k, time), -1, dtype=torch.int64, device=end_BK.device)
    path_BK = end_BK.clone()
    for t in reversed(range(int(lengths_B.max()) if batch else 0)):
        rows = (lengths_B > t).nonzero().squeeze(-1)
        path = path_BK[rows]
        places_BKT[rows, :, t] = path // k
        if t > 0:
            path_BK[rows] = pointers_BTSK[rows, t].flatten(1).gather(-1, path.long()).to(torch.int64)
    return places_BKT
