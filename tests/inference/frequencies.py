"""Whether draws come as often as they should."""

import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    """A generator that always gives the same numbers."""
    return torch.Generator().manual_seed(seed)


def assert_frequencies(index_N: Tensor, prob_K: Tensor) -> None:
    """Pearson's statistic of the draws is within five standard deviations of its mean."""
    count_K = torch.bincount(index_N.flatten(), minlength=len(prob_K)).double()
    expected_K = prob_K.double() * index_N.numel()
    assert (count_K[expected_K == 0] == 0).all()
    likely = expected_K > 0
    statistic = ((count_K - expected_K)[likely] ** 2 / expected_K[likely]).sum()
    freedom = max(1, int(likely.sum()) - 1)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def code(states_NT: Tensor, states: int) -> Tensor:
    """Number the paths as `enumerate_paths` lists them."""
    return (states_NT * states ** torch.arange(states_NT.shape[1] - 1, -1, -1)).sum(1)
