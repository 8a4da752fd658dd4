import pytest
import torch

from trellis.models import softmax
from trellis.models.softmax import TiedWords


@pytest.mark.parametrize("tokens", [1, 6, 7, 20])
def test_log_probs_are_those_of_the_whole_softmax_with_its_gradients(tokens, monkeypatch):
    monkeypatch.setattr(softmax, "TOKENS", 7)  # so that a batch comes in pieces
    torch.manual_seed(0)
    words = TiedWords(9, 4).double()
    torch.nn.init.normal_(words.bias)
    hidden, ids = torch.randn(tokens, 4, dtype=torch.float64, requires_grad=True), torch.randint(9, (tokens,))
    weights = torch.randn(tokens, dtype=torch.float64)
    inputs = [hidden, words.vectors, words.bias]
    ours = words.log_probs(hidden, ids)
    slow = (hidden @ words.vectors.T + words.bias).log_softmax(1)[torch.arange(tokens), ids]
    assert torch.allclose(ours, slow, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(out @ weights, inputs) for out in (ours, slow)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.parametrize(("bf16", "near"), [(False, 1e-5), (True, 1e-2)])
def test_native_products_give_the_same(bf16, near):
    """Where there are kernels, they answer for float32, and for bf16 where that is asked for."""
    torch.manual_seed(0)
    words, ids = TiedWords(500, 32), torch.randint(500, (40,))
    torch.nn.init.normal_(words.vectors)
    hidden = (torch.randn(40, 32) / 4).requires_grad_()
    found = []
    for given in (hidden, hidden.double()):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and given is hidden):
            scores = words.to(given.dtype).log_probs(given, ids)
        found.append([scores, *torch.autograd.grad(scores.sum(), [hidden, words.vectors, words.bias])])
    for a, b in zip(*found, strict=True):
        a, b = a.detach().double(), b.detach().double()
        assert float((a - b).norm() / b.norm()) < near


def test_words_are_read_by_the_vectors_that_predict_them():
    words = TiedWords(9, 4)
    assert torch.equal(words.read(torch.tensor([[3, 8]])), words.vectors[torch.tensor([[3, 8]])])
