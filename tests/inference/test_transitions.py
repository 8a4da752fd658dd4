import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.inference import BlockPairs, Dense, Piece, Streamed, Transition, transitions
from trellis.inference.transitions import crossings

from .models import InPieces, learning


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def block_pairs(pairs, states, pair_BT, seed):
    """Matrices of any numbers above zero, and their logarithms."""
    log_into_PJK = normal(pairs, states, states, seed=seed)
    return BlockPairs(log_into_PJK.exp(), pair_BT, lambda chosen: log_into_PJK[chosen])


def streamed(lists_GK, list_BT, all_MK, seed):
    """Matrices cut out of one of all states."""
    log_matrix_SS = normal(all_MK.numel(), all_MK.numel(), seed=seed)

    def log_into(from_N, enter_MJ):
        return log_matrix_SS[from_N][:, enter_MJ.flatten()].T

    return Streamed(lists_GK, list_BT, all_MK, lambda *asked: log_into(*asked).exp(), log_into)


@st.composite
def steps(draw, kinds=("dense", "in pieces", "blocks", "streamed")):
    """A transition with beliefs before and messages after each step but the first, time-major."""
    time, batch, states = draw(st.integers(2, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seed, pairs, kind = draw(st.integers(0, 10_000)), draw(st.integers(1, 5)), draw(st.sampled_from(kinds))
    generator = torch.Generator().manual_seed(seed)
    if kind in ("dense", "in pieces"):
        transition = (Dense if kind == "dense" else InPieces)(normal(states, states, seed=seed))
    elif kind == "blocks":
        pair_BT = torch.randint(pairs, (batch, time), generator=generator)
        pair_BT[:, 0] = -1000  # never looked at
        transition = block_pairs(pairs, states, pair_BT, seed)
    else:
        states = 2 * states
        all_MK = torch.randperm(states, generator=generator).view(2, -1)
        list_BT = torch.randint(-1, 2, (batch, time), generator=generator)
        transition = streamed(all_MK.flip(1), list_BT, all_MK, seed)
    shape = time - 1, batch, states
    return transition, normal(*shape, seed=seed + 1), normal(*shape, seed=seed + 2)


def whole(transition, step, rows, log):
    """The matrices [to, from] of some rows, put together of their pieces."""
    made = torch.full((len(rows), transition.states, transition.states), -torch.inf if log else 0.0).double()
    numbers = torch.arange(transition.states)
    for piece in transition.pieces(step, rows, log=log):
        to_C1, from_N = numbers[piece.to][:, None], numbers[piece.from_]
        for row in numbers.new_tensor(range(len(rows)))[piece.rows]:
            place = (to_C1, from_N)
            assert (made[row][place] == (-torch.inf if log else 0.0)).all(), "two pieces say the same"
            made[row][place] = piece.matrix if piece.matrix.dim() == 2 else piece.matrix[row - piece.rows.start]
    return made


@given(steps(), st.integers(0, 3))
def test_pull_is_the_transpose_of_push_in_however_many_rows_run(case, stopped):
    transition, belief_TBS, message_TBS = case
    running = max(1, belief_TBS.shape[1] - stopped)
    for step, (belief, message) in enumerate(zip(belief_TBS, message_TBS, strict=True), start=1):
        belief, message = belief[:running], message[:running]
        there, back = transition.push(belief, step), transition.pull(message, step)
        assert_close((there * message).sum(-1), (belief * back).sum(-1))


@given(steps(), st.data())
def test_pieces_and_towards_are_the_matrices_that_push_multiplies_by(case, data):
    transition, belief_TBS, _ = case
    _, batch, states = belief_TBS.shape
    assert transition.states == states
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=5)))
    to_BN = torch.tensor(data.draw(st.lists(st.integers(0, states - 1), min_size=1, max_size=3))).expand(len(rows), -1)
    for step, belief in enumerate(belief_TBS, start=1):
        pushed = transition.push(belief, step)[rows]
        matrix = whole(transition, step, rows, log=False)
        assert_close((matrix @ belief[rows, :, None]).squeeze(-1), pushed)
        assert_close(whole(transition, step, rows, log=True).exp(), matrix)
        leading_BNS = transition.towards(step, rows, to_BN, log=False)
        assert_close((leading_BNS * belief[rows, None]).sum(-1), pushed.gather(1, to_BN))
        assert_close(transition.towards(step, rows, to_BN, log=True).exp(), leading_BNS)


@given(steps())
def test_mapped_steps_have_other_numbers_in_float64(case):
    transition, belief_TBS, message_TBS = case
    mapped, order = transition.mapped(lambda log: 2 * log.exp()), torch.arange(belief_TBS.shape[1]).flip(0)
    for step, (belief, message) in enumerate(zip(belief_TBS, message_TBS, strict=True), start=1):
        assert_close(mapped.push(belief, step), 2 * transition.push(belief, step))
        assert_close(mapped.pull(message, step), 2 * transition.pull(message, step))
        assert_close(mapped.sorted(order).push(belief, step), 2 * transition.sorted(order).push(belief, step))
    assert mapped.states == transition.states


@given(steps(), st.randoms(use_true_random=False))
def test_sorted_is_the_same_with_rows_in_another_order(case, random):
    transition, belief_TBS, _ = case
    order = list(range(belief_TBS.shape[1]))
    random.shuffle(order)
    for step, belief in enumerate(belief_TBS, start=1):
        pushed = transition.sorted(torch.tensor(order)).push(belief[order], step)
        assert_close(pushed, transition.push(belief, step)[order])


@given(steps())
def test_gradient_is_that_of_autograd(case):
    transition, belief_TBS, message_TBS = case
    followed = learning(transition)
    total = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for step, (belief, message) in enumerate(zip(belief_TBS, message_TBS, strict=True), start=1):
        total = total + (followed.push(belief, step) * message).sum()
    if not followed.tensors:
        assert transition.gradient(belief_TBS, message_TBS) == ()
        return
    truths = torch.autograd.grad(total, followed.tensors)
    for found, truth in zip(transition.gradient(belief_TBS, message_TBS), truths, strict=True):
        assert_close(found, truth)


@given(steps(kinds=("dense", "blocks")))
def test_counts_added_are_the_gradient(case):
    """The count of a step is belief × probability × message: what the gradient by a logarithm adds up."""
    transition, belief_TBS, message_TBS = case
    gradient = tuple(torch.zeros_like(tensor) for tensor in transition.tensors)
    for step, (belief, message) in enumerate(zip(belief_TBS, message_TBS, strict=True), start=1):
        for row in range(len(belief)):
            for piece in transition.pieces(step, torch.tensor([row]), log=False):
                matrix = piece.matrix if piece.matrix.dim() == 2 else piece.matrix[0]
                count_CN = message[row, :, None] * matrix * belief[row]
                transition.add_counts_(gradient, step, row, piece, count_CN)
    for found, truth in zip(gradient, transition.gradient(belief_TBS, message_TBS), strict=True):
        assert_close(found, truth)


def test_a_transition_that_learns_says_if_it_cannot_learn_of_improbable_rows():
    piece = Piece(slice(0, 1), slice(None), slice(None), torch.zeros(2, 2))
    with pytest.raises(TrellisError, match="no gradient with this transition"):
        InPieces(torch.zeros(2, 2)).add_counts_((), 1, 0, piece, torch.zeros(2, 2))


@given(steps(kinds=("dense", "blocks")), st.integers(0, 100))
def test_log_at_looks_numbers_up(case, seed):
    transition, belief_TBS, _ = case
    time, batch, states = belief_TBS.shape
    state_BT = torch.randint(states, (batch, time + 1), generator=torch.Generator().manual_seed(seed))
    found_BT = transition.log_at(state_BT[:, :-1], state_BT[:, 1:])
    for step in range(1, time + 1):
        matrix = whole(transition, step, torch.arange(batch), log=True)
        wanted_B = matrix[torch.arange(batch), state_BT[:, step], state_BT[:, step - 1]]
        assert_close(found_BT[:, step - 1], wanted_B)
    assert transition.log_at(state_BT[:, :0], state_BT[:, :0]).shape == (batch, 0)


def test_a_probability_of_zero_has_a_logarithm_and_no_gradient():
    into_PJK = torch.tensor([[[0.0, 0.5], [1.0, 0.5]]], requires_grad=True)
    transition = BlockPairs(into_PJK, torch.zeros(1, 3, dtype=torch.int64), lambda chosen: into_PJK.log()[chosen])
    found_BT = transition.log_at(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    assert found_BT[0, 0] == -torch.inf
    (found_BT * torch.tensor([0.0, 1.0])).nan_to_num().sum().backward()
    assert_close(into_PJK.grad, torch.tensor([[[0.0, 0.0], [0.0, 2.0]]]))


def test_what_takes_a_walk_has_no_log_at():
    state_BT = torch.zeros(1, 1, dtype=torch.int64)
    assert InPieces(torch.zeros(2, 2)).log_at(state_BT, state_BT) is None
    all_MK = torch.arange(4).view(2, 2)
    assert streamed(all_MK, torch.zeros(1, 2, dtype=torch.int64), all_MK, 0).log_at(state_BT, state_BT) is None


def test_no_pair_has_no_gradient_though_padding_names_one():
    transition = BlockPairs(torch.empty(0, 2, 2), torch.zeros(4, 3, dtype=torch.int64), lambda chosen: chosen)
    (found,) = transition.gradient(torch.zeros(2, 4, 2), torch.zeros(2, 4, 2))
    assert found.shape == (0, 2, 2)
    state_BT = torch.zeros(4, 2, dtype=torch.int64)
    assert torch.equal(transition.log_at(state_BT, state_BT), torch.zeros(4, 2))


def test_logarithms_lost_to_underflow_are_looked_up_and_no_others():
    exact_PJK = torch.tensor([[[-1.0, -400.0]] * 2, [[-2.0, -3.0]] * 2, [[-90.0, 0.0]] * 2], dtype=torch.float64)
    asked = []

    def log_into(chosen):
        asked.extend(chosen.tolist())
        return exact_PJK[chosen]

    transition = BlockPairs(exact_PJK.exp().float(), torch.tensor([[0, 0, 1, 2]]), log_into)
    for step, pair in enumerate([0, 1, 2], start=1):
        (piece,) = transition.pieces(step, torch.tensor([0]), log=True)
        assert_close(piece.matrix[0], exact_PJK[pair].float())
    assert sorted(asked) == [0, 2]


@pytest.mark.parametrize("numbers", [1, 6, 1 << 22])
@pytest.mark.parametrize("from_at_once", [1, 2, 512])
def test_crossings_pass_from_every_state_into_every_other_once(from_at_once, numbers, monkeypatch):
    monkeypatch.setattr(transitions, "FROM_AT_ONCE", from_at_once)
    monkeypatch.setattr(transitions, "NUMBERS_AT_ONCE", numbers)
    seen = []
    for from_N, part_MJ in crossings(torch.tensor([[4, 1, 3]]), torch.tensor([[0, 5], [2, 6]])):
        assert len(from_N) <= from_at_once
        seen += [(from_, to) for from_ in from_N.tolist() for to in part_MJ.flatten().tolist()]
    assert sorted(seen) == [(from_, to) for from_ in (1, 3, 4) for to in (0, 2, 5, 6)]
    assert not list(crossings(torch.empty(1, 0, dtype=torch.int64), torch.tensor([[0, 5]])))


def test_a_streamed_token_leads_to_the_states_of_its_list_alone():
    all_MK, list_BT = torch.arange(6).view(3, 2), torch.tensor([[0, 2, -1]])
    transition = streamed(all_MK, list_BT, all_MK, 1)
    belief_1S = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert (transition.push(belief_1S, 1) > 0).tolist() == [[False] * 4 + [True] * 2]
    assert (transition.push(belief_1S.flip(1), 2) > 0).all()
    (piece,) = transition.pieces(1, torch.tensor([0]), log=False)
    assert piece.from_.tolist() == [0, 1]
    assert piece.to.tolist() == [4, 5]
    assert transition.lists(0, 2).tolist() == all_MK.tolist()
    assert transition.lists(0, 1).tolist() == [[4, 5]]


def test_states_that_no_piece_leads_to_are_not_reached():
    class Nowhere(Transition):
        states = 2

        def pieces(self, step, rows_B, *, log):
            yield from ()

    to_BN = torch.tensor([[0, 1]])
    assert not Nowhere().push(torch.ones(1, 2), 1).any()
    assert not Nowhere().towards(1, torch.tensor([0]), to_BN, log=False).any()
    assert (Nowhere().towards(1, torch.tensor([0]), to_BN, log=True) == -torch.inf).all()
