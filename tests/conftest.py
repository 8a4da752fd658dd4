import os

import pytest
import torch
from hypothesis import settings

# The models here are tiny: handing a step to other threads costs more than the step, and on a busy machine a hundred
# times more.
torch.set_num_threads(1)

# The first example pays for torch's warm-up, so a deadline would only measure that; fixed examples make a failure on
# one machine a failure on all.
settings.register_profile("exact", deadline=None, derandomize=True, max_examples=150)
settings.load_profile("exact")


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory):
    """Nothing the tests make lands in the user's cache, and nothing there helps them."""
    os.environ["TRELLIS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
