import pytest
import torch
from torch.testing import assert_close

from trellis.models import columns
from trellis.models.columns import low_rank_columns, scalar_columns

STATES, RANK = 4, 3
# One slice, exactly two, and a last one cut short; with SLICE at 8.
SIZES = [5, 16, 19]


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(columns, "SLICE", 8)


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
        with_gradients(low_rank_columns(words, states, ids), ids, [words, states]),
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
    assert_close(low_rank_columns(words, states, ids), (words @ states.T).log_softmax(0)[ids], rtol=1e-4, atol=1e-3)


def test_real_slices_meet_where_they_should(monkeypatch):
    monkeypatch.undo()
    logits = drawn(columns.SLICE + 1, STATES)
    ids = torch.tensor([0, columns.SLICE - 1, columns.SLICE])
    assert_close(scalar_columns(logits, ids), logits.log_softmax(0)[ids])
