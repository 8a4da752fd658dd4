"""Mixtures drawn from a seed have the form that is promised, and documents that of their mixture."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis import TrellisError, synthesis
from trellis.synthesis import SynthesisSettings, draw_documents, draw_mixture, permutation_mixture
from trellis.text import IntegerTokenizer, WordTokenizer

SMALL = {"concepts": 3, "states": 4, "vocab_size": 5}


def tables(**changes):
    return [model.tables() for model in draw_mixture(SynthesisSettings(**{**SMALL, **changes})).models]


@given(st.integers(1, 8), st.integers(1, 30), st.floats(0.01, 10), st.integers(0, 99))
@settings(max_examples=50)
def test_rows_and_columns_of_mixed_permutations_sum_to_one(states, permutations, temperature, seed):
    matrix = permutation_mixture(states, permutations, temperature, np.random.default_rng(seed))
    assert (matrix >= 0).all()
    assert matrix.sum(0) == pytest.approx(1)
    assert matrix.sum(1) == pytest.approx(1)
    if permutations == 1:
        assert sorted(matrix.argmax(1).tolist()) == list(range(states))
        assert matrix.max(1) == pytest.approx(1)


def test_low_temperatures_prefer_few_permutations():
    matrices = [permutation_mixture(30, 20, temperature, np.random.default_rng(0)) for temperature in (0.01, 100)]
    assert matrices[0].max() > 0.5
    assert matrices[1].max() < 0.5


@pytest.mark.parametrize("kind", ["dirichlet", "permutations"])
def test_a_seed_draws_the_same_and_another_draws_anew(kind):
    first, again, other = (tables(transitions=kind, seed=seed) for seed in (0, 0, 1))
    for one, two, three in zip(first, again, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(one, three, strict=True))
    more = tables(transitions=kind, concepts=4)
    assert all(torch.equal(a, b) for one, two in zip(first, more, strict=False) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("kind", ["dirichlet", "permutations"])
@pytest.mark.parametrize("shared", [True, False])
def test_concepts_differ_in_transitions_and_share_emissions_if_asked(kind, shared):
    one, two, _ = tables(transitions=kind, shared_emissions=shared)
    assert not torch.allclose(one.transition_SS, two.transition_SS)
    assert torch.equal(one.emission_SV, two.emission_SV) is shared
    if kind == "permutations":
        assert one.transition_SS.sum(0).tolist() == pytest.approx([1] * 4)


def test_concentrations_are_those_of_their_tables():
    even, few = (tables(concentration=one, emission_concentration=two)[0] for one, two in ((1e4, 1e-3), (1e-3, 1e4)))
    assert even.transition_SS.max() < 0.3
    assert even.emission_SV.max(1).values.min() > 0.9
    assert few.transition_SS.max(1).values.min() > 0.9
    assert few.emission_SV.max() < 0.25


@pytest.mark.parametrize("at_once", [1, 40, 1 << 18])
def test_documents_are_records_of_their_tokens(monkeypatch, at_once):
    monkeypatch.setattr(synthesis, "AT_ONCE", at_once)
    mixture = draw_mixture(SynthesisSettings(**SMALL))
    found = list(draw_documents(mixture, IntegerTokenizer(5), 23, 7, seed=4, quiet=True))
    assert len(found) == 23
    for one in found:
        assert one["text"] == " ".join(map(str, one["ids"]))
        assert len(one["ids"]) == len(one["states"]) == 7
        emission = mixture.models[one["concept"]].tables().emission_SV
        assert all(emission[state, id] > 0 for state, id in zip(one["states"], one["ids"], strict=True))
    assert found == list(draw_documents(mixture, IntegerTokenizer(5), 23, 7, seed=4, quiet=True))
    assert found != list(draw_documents(mixture, IntegerTokenizer(5), 23, 7, seed=5, quiet=True))


def test_the_end_of_a_document_is_no_part_of_its_text():
    tokenizer = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])
    found = list(draw_documents(draw_mixture(SynthesisSettings(**SMALL)), tokenizer, 50, 9, quiet=True))
    ended = [one for one in found if one["ids"][-1] == tokenizer.eos_id]
    assert ended
    assert all("<eos>" not in one["text"] for one in found)
    assert all(len(one["text"].split()) == len(one["ids"]) - 1 for one in ended)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concepts": 0}, {"states": 0}, {"vocab_size": 1}, {"permutations": 0}, {"seed": -1}, {"concentration": 0.0},
        {"temperature": -1.0}, {"emission_concentration": float("inf")}, {"concentration": float("nan")},
        {"transitions": "circular"},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(TrellisError, match=next(iter(wrong))):
        SynthesisSettings(**wrong)
