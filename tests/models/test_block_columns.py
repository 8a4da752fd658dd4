"""Emission logits from lists of states, whatever precision the products around them are in."""

import torch

from trellis.models.block_columns import listed_logits


def test_listed_logits_and_gradients_are_in_full_under_bf16():
    generator = torch.Generator().manual_seed(0)
    words_VR, vectors_SR = (torch.randn(rows, 4, generator=generator).requires_grad_() for rows in (7, 5))
    states_VK = torch.randint(5, (7, 3), generator=generator)
    slow_VK = torch.stack([vectors_SR[states] @ word for word, states in zip(words_VR, states_VK, strict=True)])
    weights_VK = torch.randn(7, 3, generator=generator)
    slow = torch.autograd.grad((slow_VK * weights_VK).sum(), (words_VR, vectors_SR))
    with torch.autocast("cpu", torch.bfloat16):
        fast_VK = listed_logits(words_VR, vectors_SR, states_VK)
        fast = torch.autograd.grad((fast_VK * weights_VK).sum(), (words_VR, vectors_SR))
    assert fast_VK.dtype == torch.float32
    torch.testing.assert_close(fast_VK, slow_VK, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)
