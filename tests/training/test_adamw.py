import itertools

import pytest
import torch
from torch.testing import assert_close

from trellis import ops
from trellis.errors import TrellisError
from trellis.models.tensor_files import read_tensors, write_tensors
from trellis.training.adamw import AdamW

BETAS, STEPS = (0.9, 0.95), 60
LEVELS = [*ops.levels(), None]  # None: PyTorch's operations


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def some_parameters():
    """Vectors and tables of many sizes and both precisions, none and one number, and rows that lie apart."""
    whole = [drawn(300, 130), drawn(37), drawn(5, 4, 3), drawn(), drawn(0, 7), drawn(33, 2, dtype=torch.float64)]
    return [torch.nn.Parameter(p) for p in [*whole, drawn(6, 40).T, drawn(9, 20)[:, ::2]]]


def gradients_of(parameters, step):
    """Of sizes from large to next to nothing; one in five is zero."""
    size = 10.0 ** (1 - step % 9)
    return [
        drawn(*p.shape, seed=100 * step + i, dtype=p.dtype) * size * (step % 5 > 0) for i, p in enumerate(parameters)
    ]


def rate_and_scale(step):
    return 0.1 / (1 + step % 7), 1.0 if step % 3 else 0.01 * (1 + step)


def rates_and_scale(step, parameters):
    """A rate of its own for each parameter."""
    rate, scale = rate_and_scale(step)
    return [rate / (1 + i) for i in range(len(parameters))], scale


def theirs_after(steps, decay):
    parameters = some_parameters()
    groups = [{"params": [parameter]} for parameter in parameters]
    optimizer = torch.optim.AdamW(groups, betas=BETAS, weight_decay=decay)
    for step in range(steps):
        rates, scale = rates_and_scale(step, parameters)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter, gradient in zip(parameters, gradients_of(parameters, step), strict=True):
            parameter.grad = gradient * scale
        optimizer.step()
    return parameters, optimizer.state_dict()["state"]


def go(optimizer, steps):
    for step in steps:
        rates, scale = rates_and_scale(step, optimizer.parameters)
        optimizer.step(gradients_of(optimizer.parameters, step), rates, scale)


def same(a, b, **kwargs):
    assert a.keys() == b.keys()
    for name in a:
        assert_close(a[name], b[name], msg=lambda said, name=name: f"{name}: {said}", **kwargs)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_many_steps_are_those_of_torch(level, decay):
    theirs, state = theirs_after(STEPS, decay)
    ours = AdamW(some_parameters(), BETAS, decay)
    with ops.using(level):
        go(ours, range(STEPS))
    for a, b, start in zip(ours.parameters, theirs, some_parameters(), strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6 if a.dtype == torch.float32 else 1e-12)
        assert not a.numel() or not torch.equal(a, start)
    expected = {f"{i}.{name}": tensor for i, entry in state.items() for name, tensor in entry.items()}
    same(ours.tensors(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_native_steps_are_those_of_their_twin(level):
    ours, twin = AdamW(some_parameters(), BETAS, 0.1), AdamW(some_parameters(), BETAS, 0.1)
    with ops.using(level):
        go(ours, range(STEPS))
    with ops.using(None):
        go(twin, range(STEPS))
    for a, b in zip(ours.parameters, twin.parameters, strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6)
    same(ours.tensors(), twin.tensors(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("before", "after"), [*itertools.product(LEVELS[-2:], repeat=2)])
def test_a_checkpoint_goes_on(before, after, tmp_path):
    whole, stopped = AdamW(some_parameters(), BETAS, 0.1), AdamW(some_parameters(), BETAS, 0.1)
    with ops.using(before):
        go(whole, range(20))
        go(stopped, range(20))
    write_tensors(tmp_path / "moments.safetensors", stopped.tensors())
    resumed = AdamW(stopped.parameters, BETAS, 0.1)
    resumed.restore(read_tensors(tmp_path / "moments.safetensors"))
    with ops.using(after):
        go(whole, range(20, 30))
        go(resumed, range(20, 30))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters, resumed.parameters, strict=True))


def test_a_parameter_without_a_gradient_stays_as_it_is_with_its_moments_and_steps(tmp_path):
    """As in PyTorch: every third step leaves out every second parameter, and once saved it goes on the same."""

    def left_out(step, i):
        return step % 3 == 0 and i % 2 == 0

    theirs, ours = some_parameters(), AdamW(some_parameters(), BETAS, 0.1)
    optimizer = torch.optim.AdamW([{"params": [parameter]} for parameter in theirs], betas=BETAS, weight_decay=0.1)
    for step in range(30):
        gradients, (rates, scale) = gradients_of(theirs, step), rates_and_scale(step, theirs)
        gradients = [None if left_out(step, i) else gradient for i, gradient in enumerate(gradients)]
        ours.step(gradients, rates, scale)
        for parameter, gradient, group, rate in zip(theirs, gradients, optimizer.param_groups, rates, strict=True):
            parameter.grad, group["lr"] = None if gradient is None else gradient * scale, rate
        optimizer.step()
        if step == 14:
            write_tensors(tmp_path / "moments.safetensors", ours.tensors())
            ours = AdamW(ours.parameters, BETAS, 0.1)
            ours.restore(read_tensors(tmp_path / "moments.safetensors"))
    for a, b in zip(ours.parameters, theirs, strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert {float(ours.tensors()[f"{i}.step"]) for i in range(len(theirs))} == {20.0, 30.0}


def test_moments_of_torch_go_on():
    theirs, state = theirs_after(20, 0.1)
    ours = AdamW(theirs, BETAS, 0.1)
    ours.restore({f"{i}.{name}": tensor for i, entry in state.items() for name, tensor in entry.items()})
    go(ours, range(20, STEPS))
    for a, b in zip(ours.parameters, theirs_after(STEPS, 0.1)[0], strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_restored_moments_have_the_parameters_precision_and_order():
    ours, restored = AdamW(some_parameters(), BETAS, 0.1), AdamW(some_parameters(), BETAS, 0.1)
    go(ours, range(2))
    for parameter in restored.parameters:
        parameter.data = parameter.data.double()
    restored.restore(ours.tensors())
    for parameter, moment in zip(restored.parameters, restored.moments, strict=True):
        assert (moment.dtype, moment.stride()) == (torch.float64, torch.empty_like(parameter).stride())


@pytest.mark.parametrize("wrong", ["absent", "shape", "extra"])
def test_moments_of_another_model_are_refused(wrong):
    ours = AdamW(some_parameters(), BETAS, 0.1)
    tensors = ours.tensors()
    if wrong == "absent":
        del tensors["2.exp_avg_sq"]
    else:
        tensors["2.exp_avg" if wrong == "shape" else "99.exp_avg"] = torch.zeros(3)
    with pytest.raises(TrellisError, match="the moments of AdamW in this checkpoint are not those of this model"):
        ours.restore(tensors)
