import pytest
import torch
from torch import Tensor

from trellis import kernels
from trellis.errors import TrellisError


def table(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1,), (37, 5), (300, 130)])
def test_updates_are_those_of_torch(level: str, shape: tuple[int, ...]) -> None:
    param, theirs = table(*shape), torch.nn.Parameter(table(*shape))
    moment, square = torch.zeros(shape), torch.zeros(shape)
    optimizer = torch.optim.AdamW([theirs], betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    steps = kernels.AdamSteps((0.9, 0.95), 0.1)
    for step in range(1, 8):
        grad = table(*shape, seed=step) * 10.0**-step
        optimizer.param_groups[0]["lr"] = 0.1 / step
        theirs.grad = grad * 0.5
        optimizer.step()
        steps.take(0.1 / step)
        kernels.adamw_(param, grad, moment, square, steps, scale=0.5)
    torch.testing.assert_close(param, theirs.detach(), rtol=1e-6, atol=1e-7)
    state = optimizer.state[theirs]
    torch.testing.assert_close(moment, state["exp_avg"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(square, state["exp_avg_sq"], rtol=1e-6, atol=1e-9)


def test_untouched_rows_catch_up_to_the_very_number(level: str) -> None:
    V, R = 40, 19
    dense, sparse = (
        [table(V, R), torch.zeros(V, R), torch.zeros(V, R)],
        [table(V, R), torch.zeros(V, R), torch.zeros(V, R)],
    )
    seen, steps = torch.zeros(V, dtype=torch.int64), kernels.AdamSteps((0.9, 0.95), 0.1)
    for step in range(100):
        rows = torch.randperm(V, generator=torch.Generator().manual_seed(step))[: 1 + step % 5].sort().values
        grad = torch.zeros(V, R)
        grad[rows] = table(len(rows), R, seed=step)
        steps.take(0.1 / (1 + step))
        kernels.adamw_(dense[0], grad, *dense[1:], steps)
        kernels.adamw_rows_(sparse[0], rows, grad[rows], *sparse[1:], seen, steps)
        assert torch.equal(sparse[0][rows], dense[0][rows])
    assert not torch.equal(sparse[0], dense[0])
    for _ in range(2):  # the second time there is nothing to do
        kernels.adamw_rows_(sparse[0], torch.arange(V), None, *sparse[1:], seen, steps)
        assert all(torch.equal(a, b) for a, b in zip(sparse, dense, strict=True))


def test_rows_that_have_caught_up_need_no_history(level: str) -> None:
    V, R = 6, 5
    told, forgotten = ([table(V, R), torch.zeros(V, R), torch.zeros(V, R)] for _ in range(2))
    remember, forget = kernels.AdamSteps((0.9, 0.95), 0.1), kernels.AdamSteps((0.9, 0.95), 0.1)
    seen = [torch.zeros(V, dtype=torch.int64) for _ in range(2)]
    for step in range(8):
        rows = torch.tensor([step % V])
        for tensors, steps, seen_V in ((told, remember, seen[0]), (forgotten, forget, seen[1])):
            steps.take(0.1)
            kernels.adamw_rows_(tensors[0], rows, table(1, R, seed=step), *tensors[1:], seen_V, steps)
        if step == 4:
            kernels.adamw_rows_(forgotten[0], torch.arange(V), None, *forgotten[1:], seen[1], forget)
            forget.forget()
            seen[1].zero_()
    for tensors, steps, seen_V in ((told, remember, seen[0]), (forgotten, forget, seen[1])):
        kernels.adamw_rows_(tensors[0], torch.arange(V), None, *tensors[1:], seen_V, steps)
    assert (len(remember.recent), len(forget.recent)) == (8, 3)
    assert all(torch.equal(a, b) for a, b in zip(told, forgotten, strict=True))


def test_what_does_not_fit_is_refused(level: str) -> None:
    param, steps = torch.zeros(4, 3), kernels.AdamSteps((0.9, 0.95), 0.1)
    state = (torch.zeros(4, 3), torch.zeros(4, 3))
    with pytest.raises(TrellisError, match="no step has begun"):
        kernels.adamw_(param, param, *state, steps)
    steps.take(0.1)
    with pytest.raises(TrellisError, match="contiguous"):
        kernels.adamw_(torch.zeros(3, 4).T, param, *state, steps)
    for rows in ([4], [-1], [1, 1], [2, 1]):
        with pytest.raises(IndexError):
            kernels.adamw_rows_(param, torch.tensor(rows), None, *state, torch.zeros(4, dtype=torch.int64), steps)
