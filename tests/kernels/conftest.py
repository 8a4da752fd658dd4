from collections.abc import Iterator

import pytest

from trellis import kernels

LEVELS = kernels.levels()


@pytest.fixture(params=LEVELS or ["none"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every level that this processor and this build have, one after the other."""
    if not LEVELS:
        pytest.skip("the native kernels were not built")
    with kernels.using(request.param):
        yield request.param
