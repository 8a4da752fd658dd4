import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import adamw as module
from trellis.ops.adamw import AdamSteps, adamw_

from .measures import drawn, in_threads

BETAS, STEPS = (0.9, 0.95), 60


class Learner:
    """Parameters that take their steps together."""

    def __init__(self, parameters: list[Tensor], decay: float = 0.1) -> None:
        self.parameters, self.steps = parameters, AdamSteps(BETAS, decay)
        self.moments, self.squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))

    def step(self, gradients: list[Tensor], rate: float, scale: float = 1.0) -> None:
        self.steps.take()
        for tensors in zip(self.parameters, gradients, self.moments, self.squares, strict=True):
            adamw_(*tensors, self.steps, rate, scale=scale)

    def go(self, steps: range) -> None:
        for step in steps:
            self.step(gradients_of(self.parameters, step), *rate_and_scale(step))


def some_parameters() -> list[Tensor]:
    """Vectors and tables of many sizes and both precisions, none and one number, and rows that lie apart."""
    whole = [drawn(300, 130), drawn(37), drawn(5, 4, 3), drawn(), drawn(0, 7), drawn(33, 2, dtype=torch.float64)]
    return [torch.nn.Parameter(p) for p in [*whole, drawn(6, 40).T, drawn(9, 20)[:, ::2]]]


def gradients_of(parameters: list[Tensor], step: int) -> list[Tensor]:
    """Of sizes from large to next to nothing; one in five is zero."""
    size = 10.0 ** (1 - step % 9)
    return [
        drawn(*p.shape, seed=100 * step + i, dtype=p.dtype) * size * (step % 5 > 0) for i, p in enumerate(parameters)
    ]


def rate_and_scale(step: int) -> tuple[float, float]:
    return 0.1 / (1 + step % 7), 1.0 if step % 3 else 0.01 * (1 + step)


@pytest.mark.parametrize("shape", [(1,), (37, 5), (300, 130)])
def test_updates_are_those_of_torch(way: str | None, shape: tuple[int, ...]) -> None:
    ours, theirs = Learner([drawn(*shape)]), torch.nn.Parameter(drawn(*shape))
    optimizer = torch.optim.AdamW([theirs], betas=BETAS, weight_decay=0.1, fused=True)
    for step in range(1, 8):
        grad = drawn(*shape, seed=step) * 10.0**-step
        optimizer.param_groups[0]["lr"] = 0.1 / step
        theirs.grad = grad * 0.5
        optimizer.step()
        ours.step([grad], 0.1 / step, scale=0.5)
    assert_close(ours.parameters[0], theirs.detach(), rtol=1e-6, atol=1e-7)
    state = optimizer.state[theirs]
    assert_close(ours.moments[0], state["exp_avg"], rtol=1e-6, atol=1e-9)
    assert_close(ours.squares[0], state["exp_avg_sq"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_many_steps_of_any_tensor_are_those_of_torch(way: str | None, decay: float) -> None:
    theirs = some_parameters()
    optimizer = torch.optim.AdamW(theirs, betas=BETAS, weight_decay=decay)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"], scale = rate_and_scale(step)
        for parameter, gradient in zip(theirs, gradients_of(theirs, step), strict=True):
            parameter.grad = gradient * scale
        optimizer.step()
    ours = Learner(some_parameters(), decay)
    ours.go(range(STEPS))
    for a, b, start in zip(ours.parameters, theirs, some_parameters(), strict=True):
        assert_close(a, b, rtol=1e-6, atol=1e-6 if a.dtype == torch.float32 else 1e-12)
        assert not a.numel() or not torch.equal(a, start)
    for moment, square, theirs_p in zip(ours.moments, ours.squares, theirs, strict=True):
        assert_close(moment, optimizer.state[theirs_p]["exp_avg"], rtol=1e-6, atol=1e-7)
        assert_close(square, optimizer.state[theirs_p]["exp_avg_sq"], rtol=1e-6, atol=1e-7)


def test_native_steps_are_those_of_their_twin(level: str) -> None:
    ours, twin = Learner(some_parameters()), Learner(some_parameters())
    ours.go(range(STEPS))
    with ops.using(None):
        twin.go(range(STEPS))
    assert_close(ours.parameters, twin.parameters, rtol=1e-6, atol=1e-6)
    assert_close([*ours.moments, *ours.squares], [*twin.moments, *twin.squares], rtol=1e-6, atol=1e-7)


def test_native_code_takes_what_it_can(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, list[tuple[int, ...]]] = {"native": [], "torch": []}
    for way, name in (("native", "_native_step"), ("torch", "_torch_step")):
        monkeypatch.setattr(module, name, lambda param, *_, way=way: taken[way].append(tuple(param.shape)))
    some = some_parameters()
    Learner(some).step(gradients_of(some, 1), 0.1)
    assert taken == {"native": [(300, 130), (37,), (5, 4, 3), (), (0, 7)], "torch": [(33, 2), (40, 6), (9, 10)]}


def test_moments_that_lie_apart_are_not_mixed_up(way: str | None) -> None:
    apart, together = Learner([drawn(40, 6)]), Learner([drawn(40, 6)])
    apart.moments, apart.squares = ([torch.zeros(6, 40).T] for _ in range(2))
    for step in range(3):
        for learner in (apart, together):
            learner.step([drawn(40, 6, seed=step)], 0.1)
    assert_close(apart.parameters + apart.moments, together.parameters + together.moments, rtol=1e-6, atol=1e-6)


def test_gradients_are_left_as_they_are_in_any_order_of_memory(way: str | None) -> None:
    apart, together = (Learner([torch.nn.Parameter(drawn(40, 6))]) for _ in range(2))
    transposed = drawn(6, 40, seed=3).T
    for _ in range(3):
        apart.step([transposed], 0.1, 0.3)
        together.step([transposed.contiguous()], 0.1, 0.3)
    assert torch.equal(transposed, drawn(6, 40, seed=3).T)
    assert_close(apart.parameters, together.parameters, rtol=1e-6, atol=1e-6)


def test_versions_count_updates(way: str | None) -> None:
    """Of tensors of every kind, and of views of them: caches of what follows from parameters look at their versions."""
    ours = Learner(some_parameters())
    kept = [*ours.parameters, *ours.moments, *ours.squares]
    views = [tensor.detach() for tensor in kept]
    for step in range(3):
        before = [tensor._version for tensor in kept + views]
        ours.step(gradients_of(ours.parameters, step), 0.1)
        assert all(tensor._version > version for tensor, version in zip(kept + views, before, strict=True))


def test_an_update_after_the_way_there_is_noticed_on_the_way_back(way: str | None) -> None:
    parameter = torch.nn.Parameter(drawn(3))
    square_sum = (parameter**2).sum()
    Learner([parameter]).step([drawn(3)], 0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square_sum.backward()


def test_threads_change_nothing(level: str) -> None:
    def everything() -> list[Tensor]:
        learner = Learner([drawn(300, 400)])
        learner.step([drawn(300, 400, seed=1)], 0.1)
        return learner.parameters + learner.moments + learner.squares

    alone, together = in_threads(1, everything), in_threads(3, everything)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_what_does_not_fit_is_refused(way: str | None) -> None:
    param, steps = torch.zeros(4, 3), AdamSteps(BETAS, 0.1)
    state = (torch.zeros(4, 3), torch.zeros(4, 3))
    with pytest.raises(TrellisError, match="no step has begun"):
        adamw_(param, param, *state, steps, 0.1)
    steps.take()
    for wrong in range(4):
        tensors = [param, param, *state]
        tensors[wrong] = torch.zeros(3, 4)
        with pytest.raises(TrellisError, match="have the same shape"):
            adamw_(*tensors, steps, 0.1)
