import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.inference.transitions import Paired, Shared


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@st.composite
def transitions(draw):
    """A transition with beliefs before and messages after each step but the first, time-major."""
    time, batch, states = draw(st.integers(2, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seed, pairs = draw(st.integers(0, 10_000)), draw(st.integers(1, 5))
    shape = time - 1, batch, states
    if draw(st.booleans()):
        transition = Shared(normal(states, states, seed=seed))
    else:
        pair_TB = torch.randint(pairs, (time, batch), generator=torch.Generator().manual_seed(seed))
        pair_TB[0] = -1000  # never looked at
        transition = Paired(normal(pairs, states, states, seed=seed), pair_TB)
    return transition, normal(*shape, seed=seed + 1), normal(*shape, seed=seed + 2)


@given(transitions(), st.integers(0, 3))
def test_pull_is_the_transpose_of_push_in_however_many_rows_run(case, stopped):
    transition, belief_TBS, message_TBS = case
    running = max(1, belief_TBS.shape[1] - stopped)
    for step, (belief, message) in enumerate(zip(belief_TBS, message_TBS, strict=True), start=1):
        belief, message = belief[:running], message[:running]
        there, back = transition.push(belief, step), transition.pull(message, step)
        assert_close((there * message).sum(-1), (belief * back).sum(-1))


@given(transitions(), st.data())
def test_into_and_reaching_are_the_matrices_that_push_multiplies_by(case, data):
    transition, belief_TBS, _ = case
    _, batch, states = belief_TBS.shape
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=5)))
    state_BN = torch.tensor(data.draw(st.lists(st.integers(0, states - 1), min_size=1, max_size=3))).expand(
        len(rows), -1
    )
    for step, belief in enumerate(belief_TBS, start=1):
        pushed = transition.push(belief, step)[rows]
        by_matrix = (transition.into(step, rows) @ belief[rows, :, None]).squeeze(-1)
        assert_close(by_matrix, pushed)
        leading_BNS = transition.reaching(step, rows, state_BN)
        assert_close((leading_BNS * belief[rows, None]).sum(-1), pushed.gather(1, state_BN))


@given(transitions())
def test_gradient_is_that_of_autograd(case):
    transition, belief_TBS, message_TBS = case
    matrix = transition[0].clone().requires_grad_()
    followed = transition._replace(**{transition._fields[0]: matrix})
    steps = zip(belief_TBS, message_TBS, strict=True)
    total = sum((followed.push(belief, step) * message).sum() for step, (belief, message) in enumerate(steps, start=1))
    (truth,) = torch.autograd.grad(total, matrix)
    assert_close(transition.gradient(belief_TBS, message_TBS), truth)


def test_no_pair_has_no_gradient_though_padding_names_one():
    found = Paired(torch.empty(0, 2, 2), torch.zeros(3, 4, dtype=torch.int64)).gradient(
        torch.zeros(2, 4, 2), torch.zeros(2, 4, 2)
    )
    assert found.shape == (0, 2, 2)
