from collections.abc import Iterator

import pytest
import torch

from trellis import ops

LEVELS = ops.levels()


@pytest.fixture(params=LEVELS or ["none"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every level that this processor and this build have, one after the other."""
    if not LEVELS:
        pytest.skip("the native kernels were not built")
    with ops.using(request.param):
        yield request.param


@pytest.fixture(params=[*LEVELS, None])
def way(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The same, and last PyTorch (None)."""
    with ops.using(request.param):
        yield request.param


@pytest.fixture
def hostile_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds NaN until something is written there."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _filled(getattr(owner, name)))


def _filled(make: object) -> object:
    def filled(*args: object, **kwargs: object) -> torch.Tensor:
        made = make(*args, **kwargs)  # type: ignore[operator]
        return made.fill_(torch.nan) if made.is_floating_point() else made

    return filled
