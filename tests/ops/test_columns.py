import pytest
import torch
from torch.testing import assert_close

from trellis import ops
from trellis.ops import columns, log_totals
from trellis.ops.columns import low_rank_columns, scalar_columns

from .measures import assert_near
from .measures import with_gradients as value_and_gradients

STATES, RANK = 4, 3
# One slice, exactly two, and a last one cut short; with SLICE at 8.
SIZES = [5, 16, 19]


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(columns, "SLICE", 8)
    monkeypatch.setattr(log_totals, "COLUMNS", 8)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_()


def some_ids(vocab_size):
    """First and last word, one twice, and most words not at all."""
    return torch.tensor([0, vocab_size - 1, 2, 2, 4])


def weights(ids):
    return torch.randn(len(ids), STATES, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def with_gradients(result, ids, inputs):
    return result.detach(), torch.autograd.grad((result * weights(ids)).sum(), inputs)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_scalar_columns_are_rows_of_a_softmax_over_words(vocab_size):
    logits, ids = drawn(vocab_size, STATES), some_ids(vocab_size)
    assert_close(
        with_gradients(scalar_columns(logits, ids), ids, [logits]),
        with_gradients(logits.log_softmax(0)[ids], ids, [logits]),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("vocab_size", SIZES)
def test_low_rank_columns_are_too(vocab_size):
    words, states, ids = drawn(vocab_size, RANK), drawn(STATES, RANK, seed=1), some_ids(vocab_size)
    assert_close(
        with_gradients(low_rank_columns(words, states, None, ids), ids, [words, states]),
        with_gradients((words @ states.T).log_softmax(0)[ids], ids, [words, states]),
        rtol=1e-12,
        atol=1e-12,
    )


def test_forbidden_words_stay_forbidden_and_pass_no_gradient():
    """One state forbids a whole slice, and one of the words asked for."""
    logits = drawn(19, STATES).detach()
    logits[:8, 1] = -torch.inf
    logits[18, 2] = -torch.inf
    logits.requires_grad_()
    ids = torch.tensor([3, 18, 12])
    found = scalar_columns(logits, ids)
    assert_close(found, logits.log_softmax(0)[ids])
    assert found[0, 1] == found[1, 2] == -torch.inf
    (gradient,) = torch.autograd.grad(found.exp().sum(), logits)  # through a function that is flat at −inf
    (truth,) = torch.autograd.grad(logits.softmax(0)[ids].sum(), logits)
    assert_close(gradient, truth)
    assert not gradient[:8, 1].any()


def test_large_logits_neither_overflow_nor_vanish():
    logits, ids = drawn(19, STATES).float() * 500, some_ids(19)
    assert_close(scalar_columns(logits, ids), logits.log_softmax(0)[ids])
    words, states = drawn(19, RANK).float() * 30, drawn(STATES, RANK, seed=1).float() * 30
    assert_close(
        low_rank_columns(words, states, None, ids), (words @ states.T).log_softmax(0)[ids], rtol=1e-4, atol=1e-3
    )


def test_real_slices_meet_where_they_should(monkeypatch):
    monkeypatch.undo()
    logits = drawn(columns.SLICE + 1, STATES)
    ids = torch.tensor([0, columns.SLICE - 1, columns.SLICE])
    assert_close(scalar_columns(logits, ids), logits.log_softmax(0)[ids])


@pytest.mark.parametrize("vocab_size", SIZES)
def test_low_rank_columns_with_a_bias_are_too(vocab_size):
    words, states, bias = drawn(vocab_size, RANK), drawn(STATES, RANK, seed=1), drawn(vocab_size, seed=2)
    ids, inputs = some_ids(vocab_size), [words, states, bias]
    assert_close(
        with_gradients(low_rank_columns(words, states, bias, ids), ids, inputs),
        with_gradients((words @ states.T + bias[:, None]).log_softmax(0)[ids], ids, inputs),
        rtol=1e-12,
        atol=1e-12,
    )


def test_gradients_are_those_of_small_steps():
    words, states, bias, ids = drawn(9, RANK), drawn(STATES, RANK, seed=1), drawn(9, seed=2), some_ids(9)
    assert torch.autograd.gradcheck(lambda *x: low_rank_columns(*x, ids), (words, states, bias))
    assert torch.autograd.gradcheck(lambda *x: low_rank_columns(*x, None, ids), (words, states))
    assert torch.autograd.gradcheck(lambda x: scalar_columns(x, ids), drawn(9, STATES))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("ids", [[0, 299, 2, 2, 4], [7], []])
def test_native_columns_are_those_of_float64(way, biased, bf16, ids):
    given = [drawn(300, 16) / 4, drawn(20, 16, seed=1), drawn(300, seed=2)][: 3 if biased else 2]
    ids = torch.tensor(ids, dtype=torch.int64)

    def asked(words, states, *bias):
        return low_rank_columns(words, states, *(bias or [None]), ids)

    wanted = value_and_gradients(asked, given)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = value_and_gradients(asked, [tensor.detach().float() for tensor in given])
    assert all(tensor.dtype == torch.float32 for tensor in found)
    assert_near(found, wanted, 1e-2 if bf16 else 1e-5)


def test_forbidden_words_take_nothing_and_get_nothing_at_low_rank(way):
    words, states = drawn(19, RANK).detach().float(), drawn(STATES, RANK, seed=1).detach().float()
    bias = torch.zeros(19).index_fill(0, torch.tensor([3, 18]), -torch.inf)
    leaves = [tensor.requires_grad_() for tensor in (words, states, bias)]
    found = low_rank_columns(*leaves, torch.tensor([3, 18, 12]))
    assert found[:2].tolist() == [[-torch.inf] * STATES] * 2
    found[2].sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves)
    assert not words.grad[[3, 18]].any()


def test_new_memory_may_hold_anything(way, hostile_memory):
    given, ids = [drawn(19, RANK).float(), drawn(STATES, RANK, seed=1).float()], some_ids(19)
    found = value_and_gradients(lambda *x: low_rank_columns(*x, None, ids), given)
    found += value_and_gradients(lambda x: scalar_columns(x, ids), [drawn(19, STATES).float()])
    assert not any(bool(tensor.isnan().any()) for tensor in found)


def test_the_twin_is_in_full_under_bf16():
    words, states, ids = drawn(300, 16).detach().float(), drawn(20, 16, seed=1).detach().float(), some_ids(300)
    with ops.using(None), torch.autocast("cpu", torch.bfloat16):
        inside = value_and_gradients(lambda *x: low_rank_columns(*x, None, ids), [words, states])
    with ops.using(None):
        outside = value_and_gradients(lambda *x: low_rank_columns(*x, None, ids), [words, states])
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))
