import pytest
import torch
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.models.recurrence import Recurrence, locked_dropout

WIDTHS = (3, 5, 2)


def cell(layer, across, x, h, c):
    """One step of one layer, from the definition."""
    gates = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + h @ across.T + layer.bias_hh_l0
    enter, forget, new, leave = gates.chunk(4, -1)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


def slow(stack, vectors, state):
    """Token by token; dropout of weights, and between layers, drawn in the order of the layers."""
    parts = list(state.split([5, 5, 2, 2], 1))
    outputs = vectors
    for number, layer in enumerate(stack.layers):
        if number > 0:
            thin = locked_dropout if stack.locked else functional.dropout
            outputs = thin(outputs, stack.dropout, stack.training)
        across = functional.dropout(layer.weight_hh_l0, stack.weights, stack.training)
        h, c = parts[2 * number : 2 * number + 2]
        after = []
        for x in outputs.unbind(1):
            h, c = cell(layer, across, x, h, c)
            after.append(h)
        outputs = torch.stack(after).transpose(0, 1)  # laid out by time, as torch's own: dropout draws in that order
        parts[2 * number : 2 * number + 2] = h, c
    return torch.cat([state[:, None, 10:12], outputs[:, :-1]], 1), torch.cat(parts, 1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("locked", "weights"), [(False, 0.0), (True, 0.5)])
def test_it_is_the_definition_of_an_lstm_with_its_gradients(locked, weights, training):
    torch.manual_seed(0)
    stack = Recurrence(WIDTHS, 0.4, locked, weights).double().train(training)
    vectors, state = torch.randn(4, 6, 3, dtype=torch.float64), torch.randn(4, 14, dtype=torch.float64)
    found = []
    for answer in (stack, lambda vectors, state: slow(stack, vectors, state)):
        torch.manual_seed(1)
        output, after = answer(vectors, state)
        loss = (output * torch.arange(48.0).view(4, 6, 2)).sum() + after.square().sum()
        found.append([output, after, *torch.autograd.grad(loss, list(stack.parameters()))])
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(*found, strict=True))


def test_dropout_is_only_for_learning():
    torch.manual_seed(0)
    stack = Recurrence(WIDTHS, 0.4, True, 0.5)
    vectors = torch.randn(2, 4, 3)
    assert not torch.equal(stack(vectors, None)[1], stack(vectors, None)[1])
    stack.eval()
    assert torch.equal(stack(vectors, None)[1], stack(vectors, None)[1])


def test_a_locked_mask_is_the_same_at_every_token_of_a_row():
    torch.manual_seed(0)
    kept = locked_dropout(torch.ones(50, 7, 8), 0.25, True)
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.15 < float((kept == 0).float().mean()) < 0.35
    assert not torch.equal(kept[0], kept[1])


def test_no_tokens_leave_the_state_as_it_was():
    stack = Recurrence(WIDTHS, 0.0)
    output, state = stack(torch.zeros(2, 0, 3), None)
    assert (output.shape, state.shape) == ((2, 0, 2), (2, 14))
    assert not state.any()


@pytest.mark.parametrize("shape", [(1, 14), (3, 14), (2, 13), (2, 0), (28,)])
def test_a_state_of_another_shape_is_refused_before_memory_is_read(shape):
    with pytest.raises(TrellisError, match=r"does not belong to 2 rows: give 2×14\."):
        Recurrence(WIDTHS, dropout=0.0)(torch.rand(2, 4, 3), torch.rand(shape))
