"""Emission logits and normalisers from lists of states, whatever precision the products around them are in."""

import pytest
import torch

from trellis.models.listed_columns import Meetings, listed_log_totals, listed_logits


@pytest.mark.parametrize("size", [1, 3, 5, 8])  # of the lists; some states stand in one twice, of 8 some must
def test_listed_logits_and_gradients_are_in_full_under_bf16(size):
    generator = torch.Generator().manual_seed(0)
    words_VR, vectors_SR = (torch.randn(rows, 4, generator=generator).requires_grad_() for rows in (7, 5))
    states_VK = torch.randint(5, (7, size), generator=generator)
    slow_VK = torch.stack([vectors_SR[states] @ word for word, states in zip(words_VR, states_VK, strict=True)])
    weights_VK = torch.randn(7, size, generator=generator)
    slow = torch.autograd.grad((slow_VK * weights_VK).sum(), (words_VR, vectors_SR))
    with torch.autocast("cpu", torch.bfloat16):
        fast_VK = listed_logits(words_VR, vectors_SR, states_VK)
        fast = torch.autograd.grad((fast_VK * weights_VK).sum(), (words_VR, vectors_SR))
    assert fast_VK.dtype == torch.float32
    torch.testing.assert_close(fast_VK, slow_VK, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [[0, 1, 2, 3, 4, 5], [5, 1, 2], [3], []])
@pytest.mark.parametrize("bf16", [False, True])
def test_listed_totals_and_gradients_are_those_of_the_words_that_each_state_meets(asked, bf16):
    generator = torch.Generator().manual_seed(0)
    words_VR, vectors_SR = (torch.randn(rows, 4, generator=generator).requires_grad_() for rows in (7, 6))
    bias_V, weights_S = (torch.randn(rows, generator=generator) for rows in (7, 6))
    bias_V.requires_grad_()
    lists_VK = torch.tensor([[0, 3], [1, 3], [5, 2], [3, 4], [2, 1], [5, 0], [4, 3]])
    states_U = torch.tensor(asked, dtype=torch.int64)
    logits_VS = words_VR @ vectors_SR.T + bias_V[:, None]
    meets_VS = torch.zeros(7, 6, dtype=torch.bool).scatter(1, lists_VK, True)
    slow_U = logits_VS.masked_fill(~meets_VS, -torch.inf).logsumexp(0)[states_U]
    inputs = (words_VR, bias_V, vectors_SR)
    slow = torch.autograd.grad((slow_U * weights_S[states_U]).sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        meetings = Meetings.among(lists_VK, states_U, 6)
        fast_U = listed_log_totals(words_VR, bias_V, vectors_SR[states_U], meetings)
        fast = torch.autograd.grad((fast_U * weights_S[states_U]).sum(), inputs)
    torch.testing.assert_close(fast_U, slow_U, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


def test_meetings_are_only_with_the_states_asked_for():
    lists_VK = torch.tensor([[0, 3], [1, 2], [3, 4]])
    meetings = Meetings.among(lists_VK, torch.tensor([3, 0]), 5)
    assert meetings.begin_V.tolist() == [0, 2, 2, 3]
    assert meetings.state_E.tolist() == [1, 0, 0]
    assert meetings.words().tolist() == [0, 0, 2]


def test_a_state_that_no_word_meets_totals_nothing():
    meetings = Meetings.among(torch.tensor([[0, 1]]), torch.tensor([1, 2]), 3)
    log_total_U = listed_log_totals(torch.ones(1, 2), torch.zeros(1), torch.ones(2, 2), meetings)
    torch.testing.assert_close(log_total_U, torch.tensor([2.0, -torch.inf]))
