"""Emission logits and normalisers from lists of states, whatever precision the products around them are in."""

import pytest
import torch

from trellis.errors import TrellisError
from trellis.ops import overlapping_columns as module
from trellis.ops.overlapping_columns import (
    Entries,
    normalise_by_state,
    overlapping_log_totals,
    overlapping_logits,
)

SPARSE = module.SPARSE


@pytest.fixture(params=[SPARSE, ()], ids=["sparse", "gathered"], autouse=True)
def _with_and_without_sparse_products(request, monkeypatch):
    monkeypatch.setattr(module, "SPARSE", request.param)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("chunk", [1, 9, 1 << 22])
@pytest.mark.parametrize("size", [1, 3, 5, 8])  # of the lists; some states stand in one twice, of 8 some must
def test_logits_and_gradients_are_in_full_under_bf16(size, chunk, biased, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    words_VR, vectors_SR = (torch.randn(rows, 4, generator=generator).requires_grad_() for rows in (7, 5))
    states_VK = torch.randint(5, (7, size), generator=generator)
    bias_V = torch.randn(7, generator=generator).requires_grad_() if biased else None
    inputs = [words_VR, vectors_SR, *([bias_V] if biased else [])]
    slow_VK = torch.stack([vectors_SR[states] @ word for word, states in zip(words_VR, states_VK, strict=True)])
    slow_VK = slow_VK + bias_V[:, None] if biased else slow_VK
    weights_VK = torch.randn(7, size, generator=generator)
    slow = torch.autograd.grad((slow_VK * weights_VK).sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        fast_VK = overlapping_logits(words_VR, vectors_SR, bias_V, states_VK)
        fast = torch.autograd.grad((fast_VK * weights_VK).sum(), inputs)
    assert fast_VK.dtype == torch.float32
    torch.testing.assert_close(fast_VK, slow_VK, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [[0, 1, 2, 3, 4, 5], [5, 1, 2], [3], []])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_totals_and_gradients_are_those_of_the_words_that_list_each_state(asked, bf16, biased):
    generator = torch.Generator().manual_seed(0)
    words_VR, vectors_SR = (torch.randn(rows, 4, generator=generator).requires_grad_() for rows in (7, 6))
    bias_V, weights_S = (torch.randn(rows, generator=generator) for rows in (7, 6))
    bias_V = bias_V.requires_grad_() if biased else None
    lists_VK = torch.tensor([[0, 3], [1, 3], [5, 2], [3, 4], [2, 1], [5, 0], [4, 3]])
    states_U = torch.tensor(asked, dtype=torch.int64)
    logits_VS = words_VR @ vectors_SR.T + (bias_V[:, None] if biased else 0.0)
    lists_VS = torch.zeros(7, 6, dtype=torch.bool).scatter(1, lists_VK, True)
    slow_U = logits_VS.masked_fill(~lists_VS, -torch.inf).logsumexp(0)[states_U]
    inputs = (words_VR, vectors_SR, *([bias_V] if biased else []))
    slow = torch.autograd.grad((slow_U * weights_S[states_U]).sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        entries = Entries.among(lists_VK, states_U, 6)
        fast_U = overlapping_log_totals(words_VR, vectors_SR[states_U], bias_V, entries)
        fast = torch.autograd.grad((fast_U * weights_S[states_U]).sum(), inputs)
    torch.testing.assert_close(fast_U, slow_U, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_small_steps():
    generator = torch.Generator().manual_seed(0)
    words, vectors, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((4, 2), (3, 2), (4,))
    )
    lists_VK = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2]])
    assert torch.autograd.gradcheck(lambda *x: overlapping_logits(*x, lists_VK), (words, vectors, bias))
    entries = Entries.of(lists_VK, 3)
    assert torch.autograd.gradcheck(lambda *x: overlapping_log_totals(*x, entries), (words, vectors, bias))
    assert torch.autograd.gradcheck(lambda *x: overlapping_log_totals(*x, None, entries), (words, vectors))


def test_entries_are_only_those_of_the_states_asked_for():
    lists_VK = torch.tensor([[0, 3], [1, 2], [3, 4]])
    entries = Entries.among(lists_VK, torch.tensor([3, 0]), 5)
    assert entries.start.tolist() == [0, 2, 2, 3]
    assert entries.state_E.tolist() == [1, 0, 0]
    assert entries.words().tolist() == [0, 0, 2]


def test_a_state_that_no_word_lists_totals_nothing():
    entries = Entries.among(torch.tensor([[0, 1]]), torch.tensor([1, 2]), 3)
    log_total_U = overlapping_log_totals(torch.ones(1, 2), torch.ones(2, 2), torch.zeros(1), entries)
    torch.testing.assert_close(log_total_U, torch.tensor([2.0, -torch.inf]))


@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_free_logits_are_normalised_over_the_words_that_list_each_state(scale):
    generator = torch.Generator().manual_seed(0)
    lists_VK = torch.tensor([[0, 3], [1, 3], [2, 5], [3, 4]])
    logits_VK = torch.randn(4, 2, generator=generator, dtype=torch.float64).mul_(scale).requires_grad_()
    logits_VS = torch.full((4, 6), -torch.inf, dtype=torch.float64).scatter(1, lists_VK, logits_VK)
    slow_VK, fast_VK = logits_VS.log_softmax(0).gather(1, lists_VK), normalise_by_state(logits_VK, lists_VK, 6)
    torch.testing.assert_close(fast_VK, slow_VK)
    weights_VK = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    slow, fast = (torch.autograd.grad((found * weights_VK).sum(), logits_VK)[0] for found in (slow_VK, fast_VK))
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("state", [-1, 5, 10**8, -(10**8)])
def test_states_that_are_none_are_refused_before_memory_is_read(state):
    words_VR, emitting_SR, states_VK = torch.ones(7, 4), torch.ones(5, 4), torch.zeros(7, 2, dtype=torch.int64)
    states_VK[3, 1] = state
    with pytest.raises(TrellisError, match="an entry's state is none of the 5 states"):
        overlapping_logits(words_VR, emitting_SR, None, states_VK)
    with pytest.raises(TrellisError, match="an entry's state is none of the 5 states"):
        overlapping_log_totals(words_VR, emitting_SR, None, Entries.of(states_VK, 5))


@pytest.mark.parametrize("start", [[0, 2, 9], [1, 2, 4], [0, 5, 4], [0, -3, 4]])
def test_entries_that_are_not_shared_out_are_refused(start):
    entries = Entries(torch.tensor(start), torch.zeros(4, dtype=torch.int64), 3)
    with pytest.raises(TrellisError, match="do not share out 4 entries"):
        overlapping_log_totals(torch.ones(2, 4), torch.ones(3, 4), None, entries)


def test_entries_of_other_words_or_states_are_refused():
    entries = Entries.of(torch.zeros(7, 2, dtype=torch.int64), 5)
    for words, states in ((6, 5), (7, 4)):
        with pytest.raises(TrellisError, match="of another number of words or states"):
            overlapping_log_totals(torch.ones(words, 4), torch.ones(states, 4), None, entries)
    with pytest.raises(TrellisError, match=r"emitting_UR has shape \(5, 3\), not \(5, 4\)"):
        overlapping_log_totals(torch.ones(7, 4), torch.ones(5, 3), None, entries)
