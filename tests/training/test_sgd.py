import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.training.sgd import SGD

from .test_adamw import drawn, gradients_of, rates_and_scale, some_parameters


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_torch(decay):
    """Whose decay is not decoupled: as part of the gradient it is the same, taken before the gradient's step."""
    ours, theirs = SGD(some_parameters(), decay), some_parameters()
    optimizer = torch.optim.SGD([{"params": [parameter]} for parameter in theirs], weight_decay=decay)
    for step in range(30):
        gradients, (rates, scale) = gradients_of(theirs, step), rates_and_scale(step, theirs)
        ours.step(gradients, rates, scale)
        for parameter, gradient, group, rate in zip(theirs, gradients, optimizer.param_groups, rates, strict=True):
            parameter.grad, group["lr"] = gradient * scale, rate
        optimizer.step()
    for a, b, start in zip(ours.parameters, theirs, some_parameters(), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert not a.numel() or not torch.equal(a, start)


def test_a_parameter_without_a_gradient_stays_as_it_is():
    ours = SGD([torch.nn.Parameter(drawn(3)) for _ in range(2)], 0.1)
    ours.step([None, drawn(3, seed=1)], [0.5, 0.5])
    assert torch.equal(ours.parameters[0], drawn(3))
    assert not torch.equal(ours.parameters[1], drawn(3))


def test_it_remembers_nothing_and_takes_nothing_up():
    ours = SGD([torch.nn.Parameter(drawn(3))], 0.0)
    ours.restore(ours.tensors())
    with pytest.raises(TrellisError, match="not one of SGD"):
        ours.restore({"0.exp_avg": torch.zeros(3)})
