import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis import TrellisError
from trellis.models import HMM, HMMConfig, load_model
from trellis.models.hmm_config import LARGEST, budget_of
from trellis.settings import build

from .makers import KINDS, VOCABULARY, random_ids

NETWORK = {"vocab_size": 10, "emission": "low_rank", "encoder": "mlp"}
BROWN = {"support": "brown", "states": 24, "blocks": 3, "width": 6}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"vocab_size": 10, "states": 0}, "at least one state, not 0: set model.states"),
        ({"vocab_size": 1}, "a vocabulary of 1 word leaves nothing to predict"),
        (
            {"vocab_size": 10, "states": 4, "width": 5, "transition": "low_rank"},
            "model.width is 5, but must lie between",
        ),
        ({"vocab_size": 10, "states": 4, "width": 0, "emission": "low_rank"}, "model.width is 0"),
        ({"vocab_size": 10, "emission": "lowrank"}, "emission' cannot be 'lowrank': did you mean 'low_rank'"),
        ({"vocab_size": 10, "start": "low"}, "start' cannot be 'low': did you mean 'low_rank'"),
        ({"vocab_size": 10, "transition": "hierachical"}, "cannot be 'hierachical': did you mean 'hierarchical'"),
        ({"vocab_size": 10, "encoder": "residuals"}, "encoder' cannot be 'residuals': did you mean 'residual'"),
        ({"vocab_size": 10, "state": 3}, "unknown setting 'state': did you mean 'states'"),
        ({"vocab_size": 10, "rank": 3}, "unknown setting 'rank'"),
        ({"states": 10}, "lack 'vocab_size'"),
        ({"vocab_size": 10, "states": LARGEST + 1}, f"more than a dense HMM can hold: ask for {LARGEST} at most"),
        (
            {"vocab_size": 10, "encoder": "residual", "width": 1, "emission": "low_rank"},
            "model.width must be at least 2",
        ),
        ({"vocab_size": 10, "transition": "hierarchical"}, "needs blocks: set model.support=brown"),
        ({"vocab_size": 10, "transition": "hierarchical_scalar"}, "needs blocks: set model.support=brown"),
        ({"vocab_size": 10, "states": 2, "dropout": 0.9}, "would leave no state of the 2 in a block"),
        ({"vocab_size": 10, "dropout": -0.1}, "at least 0 and below 1, not -0.1"),
        ({"vocab_size": 10, "unclustered": "the"}, "for a support of a file"),
        (NETWORK | {"layers": 0}, "model.layers must be at least 1, not 0"),
        (NETWORK | {"width": 1}, "model.width must be at least 2"),
        (NETWORK | {"skip": "inputs"}, "skip' cannot be 'inputs': did you mean 'input'"),
        (
            NETWORK | {"encoder": "transformer", "width": 100},
            "model.width is 100, no multiple of 3 heads: set model.he",
        ),
        (NETWORK | {"encoder": "transformer", "width": 8, "heads": 0}, "model.width is 8, no multiple of 0 heads"),
        (NETWORK | {"encoder": "pretrained"}, "needs a network: set model.network to a model's folder"),
        (NETWORK | {"encoder": "pretrained", "network": "x", "shared": False}, "one embedding a state: leave model.sh"),
        (NETWORK | {"network": "x"}, "model.network and model.inputs are for a language model: set encoder=pretrained"),
        (NETWORK | {"inputs": "text"}, "model.network and model.inputs are for a language model"),
        (NETWORK | {"inputs": "words"}, "inputs' cannot be 'words': choose from states, text"),
        (NETWORK | {"parameters": "many"}, "must be a number such as 4194304 or 2.22, not 'many'"),
        (NETWORK | {"parameters": -4}, "must be a number such as 4194304"),
        ({"vocab_size": 10, "parameters": 400}, "model.parameters picks the width of vectors: make some part low_rank"),
    ],
)
def test_bad_configurations_are_refused(settings, sentence):
    with pytest.raises(TrellisError, match=sentence):
        build(HMMConfig, settings)
    if "vocab_size" in settings and not {"state", "rank"} & set(settings):  # whose name Python itself refuses
        with pytest.raises(TrellisError, match=sentence):
            HMMConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"states": 100, "blocks": 3}, "multiple of model.blocks, such as 99"),
        ({"states": 24, "blocks": 12}, "12 blocks are more than the vocabulary's 11 types"),
        ({"states": 8, "blocks": 4, "dropout": 0.9}, "would leave no state of the 2 in a block"),
        ({"blocks": 0}, "model.blocks must be at least 1, not 0"),
        ({"dropout": 1.0}, "below 1"),
        (
            {"support": "uniform", "transition": "hierarchical"},
            "uniform subsets are no blocks: set a flat model.transit",
        ),
        ({"support": "uniform", "encoder": "factored"}, "uniform subsets are no blocks: .* no factored encoder"),
        ({"unclustered": "the"}, "for a support of a file"),
        ({"states": 0}, "at least one state, not 0"),
    ],
)
def test_blocks_that_cannot_be_are_refused(settings, sentence):
    with pytest.raises(TrellisError, match=sentence):
        HMMConfig(VOCABULARY, **(BROWN | settings))


def test_the_width_of_a_scalar_model_does_not_matter():
    assert HMMConfig(10, states=4, width=128).width == 128


def test_a_network_may_be_wider_than_there_are_states():
    HMM(HMMConfig(10, states=4, width=128, encoder="residual", emission="low_rank"))


def test_blocks_are_many_more_than_a_dense_model_may_have_states():
    assert HMMConfig(10_000, states=2 * LARGEST, support="brown").states == 2 * LARGEST


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_vectors_are_needed_for_what_is_not_scalar(kind):
    roles = HMMConfig(VOCABULARY, **({"states": 22, "blocks": 2, "width": 4} | kind)).roles()
    assert roles == (set() if kind["emission"] == "scalar" else {"leaving", "entering", "emitting", "starting"})


def test_roles_are_those_of_the_parts():
    low = {"width": 2}
    assert HMMConfig(10, 4, emission="low_rank", **low).roles() == {"emitting"}
    assert HMMConfig(10, 4, transition="low_rank", **low).roles() == {"leaving", "entering"}
    assert HMMConfig(10, 4, start="low_rank", **low).roles() == {"starting"}


def test_fresh_vectors_have_the_spread_that_was_asked_for():
    assert HMMConfig(10, 16, width=16, emission="low_rank").scale == 0.5
    assert HMMConfig(10, 16, width=16, emission="low_rank", encoder="residual").scale == 0.25
    assert HMMConfig(10, 16, width=16, emission="low_rank", init_scale=3.0).scale == 3.0
    assert HMMConfig(10, 16, width=16, emission="low_rank", encoder="mlp").scale == 0.25
    assert HMMConfig(10, 16, width=16, emission="low_rank", encoder="mlp", norm=False).scale == 0.5
    assert HMMConfig(10, 16, width=32, emission="low_rank", encoder="transformer").scale == 32**-0.5


def test_embeddings_are_merged_unless_they_are_a_table():
    assert not HMMConfig(10, 16).merged
    assert HMMConfig(10, 16, shared=True).merged
    assert HMMConfig(10, 16, encoder="mlp").merged
    assert not HMMConfig(10, 16, encoder="mlp", shared=False).merged


@pytest.mark.parametrize(("said", "number"), [(None, None), (500, 500), ("500", 500), ("2^22", 2**22), (" 10^3", 1000)])
def test_a_budget_is_a_number_or_a_power(said, number):
    assert budget_of(said) == number


@pytest.mark.parametrize(("width", "heads", "found"), [(16, None, 1), (128, None, 4), (128, 8, 8)])
def test_heads_are_of_32_unless_said_otherwise(width, heads, found):
    config = HMMConfig(10, 16, width=width, heads=heads, encoder="transformer", emission="low_rank")
    assert config.attention_heads == found


@pytest.mark.parametrize(("dropout", "kept"), [(0.0, 8), (0.5, 4), (0.3, 6), (0.9, 1)])
def test_dropout_is_a_share_of_a_block(dropout, kept):
    assert HMMConfig(VOCABULARY, **BROWN, dropout=dropout).kept(8) == kept


WRONG_KINDS = {
    "emission": "mlp", "start": None, "encoder": 3, "support": None, "unclustered": 3, "skip": "inputs",
    "inputs": "texts", "network": 4, "architecture": 4, "parameters": 2.5, "states": "4", "width": 2.5, "bias": 1,
    "shared": "yes", "dropout": float("nan"), "init_scale": float("inf"), "heads": True,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_KINDS)
def test_every_setting_is_checked_when_it_is_made(name):
    """What was taken here could be saved, and no longer loaded."""
    with pytest.raises(TrellisError, match=rf"'?model\.{name}'? (cannot|must) be .*not|'model\.{name}' cannot be"):
        HMMConfig(10, **({"states": 4} | {name: WRONG_KINDS[name]}))


def test_numbers_of_numpy_and_paths_are_what_they_stand_for():
    config = HMMConfig(
        np.int64(10), np.int32(4), support=Path("clusters.txt"), blocks=np.uint8(2), dropout=np.float32(0.5)
    )
    assert config == HMMConfig(10, 4, support="clusters.txt", blocks=2, dropout=0.5)
    assert {type(getattr(config, name)) for name in ("vocab_size", "states", "blocks")} == {int}
    assert (type(config.support), type(config.dropout)) == (str, float)
    assert HMMConfig(10, 4, init_scale=1, bias=np.True_).init_scale == 1.0


SUPPORTS = ["dense", "brown", "words", "uniform", "some/clusters.txt"]
SETTINGS = {
    "states": st.integers(1, 12) | st.integers(-1, 0),
    "support": st.sampled_from(SUPPORTS),
    "blocks": st.integers(1, 4),
    "unclustered": st.none() | st.text(max_size=2),
    "start": st.sampled_from(["scalar", "low_rank", "mlp"]),
    "transition": st.sampled_from(["scalar", "low_rank", "hierarchical", "hierarchical_scalar", ""]),
    "emission": st.sampled_from(["scalar", "low_rank", "mlp"]),
    "encoder": st.sampled_from(["table", "residual", "factored", "mlp", "transformer", "pretrained"]),
    "width": st.integers(0, 6) | st.just(64),
    "parameters": st.none() | st.sampled_from([300, "2^9", "2^4"]),
    "shared": st.none() | st.booleans(),
    "monolithic": st.booleans(),
    "layers": st.integers(0, 2),
    "skip": st.sampled_from(["none", "input", "linear", "both"]),
    "relu": st.booleans(),
    "norm": st.booleans(),
    "heads": st.none() | st.integers(0, 3),
    "network": st.none() | st.just("nowhere"),
    "inputs": st.sampled_from(["states", "text"]),
    "architecture": st.none() | st.just("llama"),
    "bias": st.booleans(),
    "memory": st.integers(0, 4),
    "memory_dropout": st.sampled_from([0.0, 0.5, 1.0]),
    "memory_words": st.none() | st.sampled_from([0, 2, 9]),
    "ngrams": st.sampled_from([0, 1, 2, 3]),
    "cache": st.sampled_from([0, -1, 2, 9]),
    "dropout": st.sampled_from([0.0, 0.5, 0.9]),
    "init_scale": st.none() | st.sampled_from([-1.0, 0.0, 0.25, 2]),
}


@st.composite
def sensible(draw):
    """A vocabulary and settings that go together."""
    support, vocab_size = draw(st.sampled_from(SUPPORTS)), draw(st.integers(3, 7))
    blocks = draw(st.integers(1, 3))
    hierarchies = [] if support in ("dense", "uniform") else ["hierarchical", "hierarchical_scalar"]
    encoders = ["table", "residual", "mlp", "transformer", *(["factored"] * (support != "uniform"))]
    told = {
        "support": support,
        "blocks": blocks,
        "states": draw(st.integers(2, 4)) * (vocab_size if support == "words" else blocks),
        "transition": draw(st.sampled_from(["scalar", "low_rank", *hierarchies])),
        "encoder": draw(st.sampled_from(encoders)),
        **{part: draw(st.sampled_from(["scalar", "low_rank"])) for part in ("start", "emission")},
        **{name: draw(SETTINGS[name]) for name in ("shared", "monolithic", "relu", "norm", "bias", "init_scale")},
        "width": 2,
        "layers": draw(st.integers(1, 2)),
        "skip": draw(st.sampled_from(["none", "input", "linear"])),
        "dropout": draw(st.sampled_from([0.0, 0.5])),
    }
    if support == "dense" and told["transition"] == "low_rank" and not told["dropout"]:
        told["memory"] = draw(st.integers(0, 2))
    if "low_rank" in (told["start"], told["transition"], told["emission"]):
        told["parameters"] = draw(st.none() | st.sampled_from([50_000, "2^16"]))
    return vocab_size, told


def saved_and_loaded(model, seed):
    ids = random_ids(2, 5, model.config.vocab_size, seed)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "model")
        again = load_model(Path(folder) / "model")
    assert again.config == model.config
    assert torch.equal(again.score(ids)[0], model.score(ids)[0])


@given(sensible(), st.integers(0, 9))
@settings(max_examples=40)
def test_every_kind_of_model_can_be_saved_and_loaded(made, seed):
    vocab_size, told = made
    saved_and_loaded(HMM(HMMConfig(vocab_size, **told), seed).eval(), seed)


@given(st.integers(1, 7), st.fixed_dictionaries({}, optional=SETTINGS), st.integers(0, 9))
@settings(max_examples=100)
def test_whatever_can_be_made_can_be_saved_and_loaded(vocab_size, told, seed):
    """And what cannot be made is refused in a sentence, never by another error."""
    try:
        model = HMM(HMMConfig(vocab_size, **told), seed).eval()
    except TrellisError:
        return
    saved_and_loaded(model, seed)
