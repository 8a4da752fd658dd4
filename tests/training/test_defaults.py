import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.training.runs import WORDS, make_model, settings, text

from trellis.evaluation import evaluate
from trellis.models import HMM, HMMConfig
from trellis.models.ngram import Bigram, Unigram
from trellis.text import MemoryCorpus, WordTokenizer, prepare
from trellis.training import TrainingSettings, train
from trellis.training.defaults import (
    CHOSEN,
    SIZES,
    UPDATES,
    batching_for,
    epochs_for,
    model_for,
    rate_for,
    training_for,
)
from trellis.training.settings import CompleteSettings


def test_what_is_told_stands_and_the_rest_is_chosen(tmp_path):
    told = TrainingSettings(epochs=3, clip=2.0)
    found = training_for(told, text(tmp_path), make_model(0).config)
    assert isinstance(found, CompleteSettings)
    assert (found.epochs, found.clip) == (3, 2.0)
    assert all(getattr(found, name) is not None for name in CHOSEN)
    assert found == training_for(found, text(tmp_path), make_model(0).config)


def test_every_size_of_text_has_a_rule_and_larger_ones_more_states():
    assert SIZES[-1].tokens == math.inf
    assert [size.tokens for size in SIZES] == sorted(size.tokens for size in SIZES)
    assert [size.states for size in SIZES] == sorted(size.states for size in SIZES)
    for tokens in (1, 10**4, 10**5, 10**6, 10**9):
        HMMConfig(1000, **model_for(tokens, 1000, {}))


def test_a_model_is_chosen_where_no_more_than_its_states_is_told():
    assert model_for(10**6, 10**4, {"states": 8})["states"] == 8
    assert model_for(10**6, 10**4, {"states": 8})["width"] == 8
    assert model_for(10**6, 10**4, {"memory": 1})["transition"] == "low_rank"
    assert model_for(10**6, 10**4, {"support": "brown"}) == {}
    assert model_for(10**6, 10**4, {"kind": "lstm"}) == {}
    assert model_for(10**6, 10**4, {}, scalar=True).keys() == {"states"}


def test_states_remember_a_word_of_a_long_text_of_words():
    long, short = model_for(10**6, 10**4, {}), model_for(10**5, 10**4, {})
    assert (long["memory"], short["memory"], short["memory_dropout"]) == (1, 0, 0.0)
    assert 0 < long["memory_dropout"] < 1
    assert model_for(10**6, 20, {})["memory"] == 0, "symbols, whose tables people want"
    assert model_for(10**6, 10**4, {"memory": 0})["memory_dropout"] == 0.0
    assert model_for(10**6, 10**4, {"dropout": 0.5})["memory"] == 0, "which would not go together"
    assert model_for(10**5, 10**4, {"memory": 2, "memory_dropout": 0.1})["memory_dropout"] == 0.1
    for looking_back in ({"ngrams": 5}, {"ngrams": 5, "cache": 500}, {"memory_words": 9}):
        assert model_for(10**5, 10**4, {"memory": 1, **looking_back})["transition"] == "low_rank"
    for told in ({}, {"memory": 0}, {"memory": 2}, {"dropout": 0.5}, {"states": 4}):
        HMMConfig(10**4, **(model_for(10**6, 10**4, told) | told))


def test_a_rate_suits_the_parameters():
    scalar, low_rank = HMMConfig(9, 4), HMMConfig(9, 4, transition="low_rank", width=2)
    network = dataclasses.replace(low_rank, encoder="residual")
    assert rate_for(scalar) > rate_for(low_rank) > rate_for(network)


def test_a_long_text_is_read_as_often_as_minutes_allow_and_a_small_one_not_too_often():
    assert epochs_for(10**6, 10_000) > epochs_for(10**6, 40_000) >= epochs_for(3 * 10**6, 40_000) >= 1
    assert epochs_for(10**8, 32_000) == pytest.approx(epochs_for(10**9, 32_000) * 10, rel=0.05)
    assert epochs_for(10**8, 32_000) < 0.1
    assert epochs_for(10**4, 1_000) == SIZES[0].epochs
    assert epochs_for(4, 5) == UPDATES, "a text of one batch has an update an epoch"
    assert epochs_for(500, 100) * 500 == pytest.approx(UPDATES * SIZES[0].rows * SIZES[0].length, rel=0.05)


def test_sequences_where_nothing_ends_a_document(tmp_path):
    ids = text(tmp_path)
    assert batching_for(ids) == "streams"
    ids.meta = dataclasses.replace(ids.meta, eos_id=None)
    assert batching_for(ids) == "sequences"
    ids.meta = dataclasses.replace(ids.meta, documents=1)
    assert batching_for(ids) == "streams"


def test_defaults_learn_a_text_of_a_few_thousand_words_better_than_a_bigram(tmp_path, capsys):
    """Text of an HMM whose states are cycles of words: two words tell which, which no bigram remembers."""
    generator = np.random.default_rng(0)

    def sentences(count):
        for _ in range(count):
            kind = generator.integers(4)
            yield " ".join(f"w{generator.integers(3)}" if place % 2 else f"k{kind}" for place in range(10))

    corpora = {split: MemoryCorpus(split, tuple(sentences(count))) for split, count in (("train", 600), ("valid", 60))}
    tokenizer = WordTokenizer.train(corpora["train"])
    ids = {split: prepare(corpus, tokenizer, tmp_path, quiet=True) for split, corpus in corpora.items()}
    shape = HMMConfig(tokenizer.vocab_size, **model_for(len(ids["train"]), tokenizer.vocab_size, {}))
    trained = train(
        lambda seed: HMM(shape, seed), tokenizer, ids["train"], ids["valid"], TrainingSettings(), tmp_path / "run"
    )  # fmt: skip
    unigram, bigram = (
        evaluate(kind.fit(ids["train"], tokenizer.vocab_size), ids["valid"], "streams", quiet=True).perplexity
        for kind in (Unigram, Bigram)
    )
    assert trained.unigram == pytest.approx(unigram)
    assert trained.perplexity < 0.9 * bigram
    assert "worse than a unigram" not in capsys.readouterr().err


def test_a_run_that_learnt_nothing_says_so_and_what_to_do(tmp_path, capsys):
    def wrong(seed):
        model = make_model(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(30.0)
        return model

    told = settings(epochs=0.1, lr=1e-6)
    trained = train(wrong, WORDS, text(tmp_path / "a"), text(tmp_path / "a", 8, seed=1), told, tmp_path / "run")
    assert trained.perplexity > trained.unigram
    said = capsys.readouterr().err
    assert f"{trained.perplexity:.1f}, is worse than a unigram's, {trained.unigram:.1f}" in said
    assert "training.lr, here 1e-06" in said
