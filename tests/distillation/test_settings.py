"""Settings of distillation that cannot be are refused."""

import pytest

from trellis.distillation import DistillSettings
from trellis.errors import TrellisError


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"points": 0}, r"distill\.points must be at least 1, not 0"),
        ({"tokens": 0}, r"distill\.tokens must be at least 1"),
        ({"seed": -1}, r"distill\.seed cannot be negative"),
        ({"pca": 0}, r"distill\.pca must be at least 1"),
        ({"lr": 0.0}, r"distill\.lr must be above 0"),
        ({"frozen": 5}, r"distill\.frozen needs embeddings from a teacher"),
    ],
)
def test_refused(settings, sentence):
    with pytest.raises(TrellisError, match=sentence):
        DistillSettings(**settings)
