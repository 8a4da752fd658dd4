"""Embeddings that begin as a teacher's: the centres of its clusters for states, its output head for words."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trellis.distillation.settings import Distilled, DistillSettings
from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.models.emissions import LowRankEmission


def taught_embeddings(model: HMM, settings: DistillSettings) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that begin as the centres, one row a state, and as the head, one row a word; refused if none."""
    states: list[nn.Parameter] = []
    words: list[nn.Parameter] = []
    if settings.centroids:
        networks = {id(parameter) for parameter in model.network_parameters()}
        own = [parameter for parameter in model.encoder.parameters() if id(parameter) not in networks]
        states = [parameter for parameter in own if len(parameter) == model.config.states]  # and not one row a block
        if not states:
            raise TrellisError(
                "distill.centroids needs states with embeddings: make model.transition or model.emission low_rank, or "
                "leave it out."
            )
    if settings.head:
        if not isinstance(model.emission, LowRankEmission):
            raise TrellisError("distill.head needs words with vectors: set model.emission=low_rank, or leave it out.")
        words = [model.emission.words]
    return states, words


def begin_with_embeddings(model: HMM, distilled: Distilled) -> None:
    """Copy a teacher's vectors, divided so that their root mean square is that of the fresh ones they replace."""
    states, words = taught_embeddings(model, distilled.settings)
    if words and distilled.head_VR is None:
        raise TrellisError("this teacher has no output vectors for these words: leave out distill.head.")
    for parameter in states:
        _copy(parameter, distilled.centroids_SR, "centres")
    for parameter in words:
        _copy(parameter, distilled.head_VR, "output vectors")


@torch.no_grad()
def _copy(parameter: nn.Parameter, given: NDArray[Any] | None, what: str) -> None:
    teachers = torch.as_tensor(given).to(parameter)
    if len(teachers) != len(parameter):
        raise TrellisError(
            f"the teacher's {what} are {len(teachers):,} vectors and the model wants {len(parameter):,}: distil for "
            "this model and this vocabulary."
        )
    if teachers.shape[1] != parameter.shape[1]:
        raise TrellisError(
            f"the teacher's {what} have {teachers.shape[1]} dimensions and the model's embeddings "
            f"{parameter.shape[1]}: set distill.pca={parameter.shape[1]}, or model.width so that they have "
            f"{teachers.shape[1]}."
        )
    parameter.copy_(teachers * (_size(parameter) / _size(teachers).clamp_min(1e-12)))


def _size(vectors: Tensor) -> Tensor:
    """The root of the mean square of all numbers."""
    return vectors.square().mean().sqrt()
