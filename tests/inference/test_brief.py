from typing import NamedTuple

import torch

from trellis.inference.brief import SMALL, brief


class Answer(NamedTuple):
    number_N: torch.Tensor
    name: str


def test_small_tensors_by_their_numbers_and_large_ones_by_their_shapes():
    assert brief(Answer(torch.tensor([[1, 2], [3, 4]]), "x")) == "Answer(number_N=tensor([[1, 2], [3, 4]]), name='x')"
    assert brief(Answer(torch.zeros(SMALL), "x")).startswith("Answer(number_N=tensor([0., 0., ")
    assert brief(Answer(torch.zeros(SMALL + 1), "x")) == f"Answer(number_N={SMALL + 1} float32, name='x')"
    assert brief(Answer(torch.zeros(2000, 3, dtype=torch.bool), "x")) == "Answer(number_N=2,000×3 bool, name='x')"
