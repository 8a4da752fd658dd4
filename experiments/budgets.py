"""What a run may cost. Every study is written once, and these say how large and how long.

paper    the published settings: flat transitions, N(0, 1) embeddings, 16 × 32 tokens a batch, 50 epochs
laptop   two cores: hierarchical transitions; long runs as shipped with Trellis, sweeps of SWEEP_EPOCHS epochs each
smoke    seconds: laptop's runs with tiny models, for the tests
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from experiments.recipes import Budget
from trellis.config import ANY_VOCABULARY, RunConfig, load
from trellis.configs import HERE as CONFIGS
from trellis.models.hmm_config import HMMConfig
from trellis.models.model import ModelConfig
from trellis.text.sources import DataSettings
from trellis.training import TrainingSettings

SWEEP_EPOCHS = 4.0  # of every point of every sweep, so that points compare
LONG_EPOCHS = 16.0  # of a run that a model may overfit in, as `trellis train ptb-blocked`
WIKITEXT_EPOCHS = 8.0  # a long run reads twice the text, so half as often as on the Penn Treebank

# Chiu & Rush 2020, section 5 and appendix A.2. AdamW's betas and the clipping are those of their code.
PUBLISHED = TrainingSettings(
    batching="streams",
    batch_size=16,
    length=32,
    epochs=50,
    lr=0.01,
    weight_decay=0.0,
    betas=(0.9, 0.999),
    clip=5,
    schedule="plateau",
    warmup=0,
    patience=8,
    factor=0.25,
    validations=4,
)
TINY: dict[str, dict[str, Any]] = {
    "kneser_ney": {"order": 3},
    "feed_forward": {"order": 3, "width": 8},
    "lstm": {"width": 8, "layers": 1},
    "awd_lstm": {"width": 8, "hidden": 10, "layers": 2},
    "hmm_rnn": {"states": 8, "width": 4},
    "hmm": {"width": 8},
}
TINY_BLOCKS = {1: 1, 4: 2, 8: 4, 32: 2, 64: 4, 128: 8, 256: 16}  # the words of the smoke text are few


@functools.cache
def shipped(name: str, corpus: str) -> RunConfig:
    """A configuration that comes with Trellis, there for the Penn Treebank, on either text."""
    config = load(CONFIGS / f"ptb-{name}.yaml")
    data = dataclasses.replace(config.data, corpus=corpus)
    return dataclasses.replace(config, data=data, out=None)


def published(corpus: str, model: ModelConfig, **changes: Any) -> RunConfig:
    """A model trained as in the paper, but for these changes."""
    return RunConfig(DataSettings(corpus=corpus), model, dataclasses.replace(PUBLISHED, **changes))


def sweep(model: ModelConfig, epochs: float = SWEEP_EPOCHS) -> RunConfig:
    """One of laptop's points on the Penn Treebank: as `trellis train ptb-blocked`, but fewer epochs."""
    config = shipped("blocked", "ptb")
    training = dataclasses.replace(config.training, epochs=epochs, keep=1)
    return dataclasses.replace(config, model=model, training=training)


def very_large(
    budget: Budget,
    states: int,
    blocks: int = 128,
    *,
    flat: bool,
    support: str = "brown",
    encoder: str | None = "residual",
    dropout: float = 0.5,
) -> HMMConfig:
    """The very large HMM, and what stands beside it: one block is no blocks, and no encoder is free logits."""
    own: dict[str, Any] = {} if encoder is None else {"width": 256, "init_scale": 1.0 if budget == "paper" else None}
    support, flat = ("dense", True) if blocks == 1 else (support, flat)
    return HMMConfig(ANY_VOCABULARY, states, support, blocks, dropout=dropout, **own, **parts(flat, encoder))


def parts(flat: bool, encoder: str | None) -> dict[str, Any]:
    """Settings of a very large HMM's three distributions: of an encoder's vectors, or of free logits."""
    if encoder is None:
        return {"start": "scalar", "transition": "scalar" if flat else "hierarchical_scalar", "emission": "scalar"}
    transition = "low_rank" if flat else "hierarchical"
    return {"start": "low_rank", "transition": transition, "emission": "low_rank", "encoder": encoder, "bias": True}


def tiny(config: RunConfig) -> RunConfig:
    """The same run in a second or two."""
    changes = dict(TINY[config.model.kind])
    if isinstance(config.model, HMMConfig):
        changes |= {"states": config.model.states // 64, "blocks": TINY_BLOCKS[config.model.blocks]}
    training = dataclasses.replace(
        config.training, batch_size=4, length=8, epochs=1, validations=2, precision="float32", checkpoint_every=20
    )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **changes), training=training)
