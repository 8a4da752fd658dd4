import pytest

from trellis.errors import TrellisError
from trellis.settings import build
from trellis.training import TrainingSettings


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_size": 0}, "training.batch_size must be at least 1, not 0"),
        ({"keep": 0}, "training.keep must be at least 1, not 0"),
        ({"checkpoint_every": -3}, "training.checkpoint_every must be at least 1, not -3"),
        ({"epochs": 0}, "training.epochs must be above 0, not 0.0"),
        ({"lr": -1.0}, "training.lr must be above 0"),
        ({"network_lr": 0.0}, "training.network_lr must be above 0, not 0.0"),
        ({"lr": "nan"}, "'lr' must be a finite number, not nan"),
        ({"smoothing": float("inf")}, "must be a finite number, not inf"),
        ({"seed": -1}, "training.seed must be a whole number from 0"),
        ({"seed": 2**63}, "'seed' is too large a number: give one below 2^63"),
        ({"clip": 0.0}, "training.clip must be above 0"),
        ({"step_size": 1.5}, "training.step_size must lie between 0 and 1, not 1.5"),
        ({"warmup": 2}, "training.warmup must lie between 0 and 1"),
        ({"final": -0.1}, "training.final must lie between 0 and 1"),
        ({"smoothing": -1e-9}, "training.smoothing cannot be negative"),
        ({"patience": -1}, "training.patience cannot be negative"),
        ({"betas": [0.9]}, "training.betas must be two numbers from 0 up to 1, not"),
        ({"betas": [0.9, 1.0]}, "training.betas must be two numbers"),
        ({"full_batch": True}, "set training.method=baum_welch too"),
        ({"method": "adam"}, "'method' cannot be 'adam': did you mean 'adamw'"),
        ({"objective": "joit"}, "'training.objective' cannot be 'joit': did you mean 'joint'?"),
        ({"init": "restart"}, "'training.init' cannot be 'restart': did you mean 'restarts'?"),
        ({"init": "zzz"}, "'training.init' cannot be 'zzz': choose from counts, distill, random, restarts"),
        ({"init": "restarts", "restarts": 0}, "training.restarts"),
        ({"restart_steps": 0}, "training.restart_steps must be at least 1, not 0"),
        ({"learning_rate": 0.1}, "unknown setting 'learning_rate'"),
    ],
)
def test_what_cannot_be_is_refused(change, sentence):
    with pytest.raises(TrellisError) as caught:
        build(TrainingSettings, change)
    assert sentence in str(caught.value)


def test_the_edges_are_allowed():
    edges = {"warmup": 0, "final": 1, "step_size": 1, "smoothing": 0, "patience": 0, "betas": [0, 0.999], "keep": 1}
    assert build(TrainingSettings, edges).betas == (0.0, 0.999)
