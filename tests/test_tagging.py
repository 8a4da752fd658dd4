"""Scores of states against tags are those of scikit-learn and of trying every mapping; states those of the model."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import homogeneity_completeness_v_measure

from trellis import HMM, HMMConfig, TrellisError
from trellis.tagging import accuracy, decode_sentences, majority_tags, tagging_scores
from trellis.text import CharacterTokenizer, WordTokenizer
from trellis.text.tagged import TaggedSentence

TAGS = "NVAD"
WORDS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(TAGS)), min_size=1, max_size=40)


def right(states, tags, mapping):
    return sum(mapping.get(state) == tag for state, tag in zip(states, tags, strict=True)) / len(states)


def slow_one_to_one(states, tags):
    """Every way to give each of five states a tag of its own, or none."""
    orders = itertools.permutations([*TAGS, None], 5)
    return max(right(states, tags, dict(enumerate(order))) for order in orders)


def slow_many_to_one(states, tags):
    """For every state by itself, the tag that gets most of its words right."""
    hits = (max(sum(pair == (state, tag) for pair in zip(states, tags, strict=True)) for tag in TAGS) for state in
            set(states))  # fmt: skip
    return sum(hits) / len(states)


@given(WORDS)
def test_scores_are_those_of_slow_twins(words):
    states, tags = map(list, zip(*words, strict=True))
    found = tagging_scores(states, tags)
    assert found.one_to_one == pytest.approx(slow_one_to_one(states, tags))
    assert found.many_to_one == pytest.approx(slow_many_to_one(states, tags))
    assert found.many_to_one == pytest.approx(right(states, tags, majority_tags(states, tags)))
    want = homogeneity_completeness_v_measure(tags, states)
    assert (found.homogeneity, found.completeness, found.v_measure) == pytest.approx(want, abs=1e-9)
    assert (found.words, found.states, found.tags) == (len(words), len(set(states)), len(set(tags)))
    assert found.one_to_one <= found.many_to_one + 1e-12


@given(WORDS, st.permutations(range(5)))
def test_names_of_states_do_not_matter(words, order):
    states, tags = map(list, zip(*words, strict=True))
    other = tagging_scores([order[state] for state in states], tags)
    for name, value in vars(tagging_scores(states, tags)).items():
        assert getattr(other, name) == pytest.approx(value)


def test_perfect_states_score_one_and_one_state_nothing():
    perfect, one = tagging_scores([3, 5, 3], ["N", "V", "N"]), tagging_scores([0, 0, 0, 0], ["N", "V", "N", "N"])
    assert (perfect.one_to_one, perfect.many_to_one, perfect.v_measure) == (1, 1, 1)
    assert (one.one_to_one, one.many_to_one, one.v_measure) == (0.75, 0.75, 0)


def test_words_without_a_state_are_wrong():
    found = tagging_scores([-1, -1, 0, 1], ["N", "N", "N", "V"])
    assert (found.one_to_one, found.many_to_one, found.states) == (0.5, 0.5, 2)
    assert majority_tags([-1, -1, 0, 1], ["N", "N", "N", "V"]) == {0: "N", 1: "V"}
    assert tagging_scores([-1, -1], ["N", "V"]).many_to_one == 0.0
    assert accuracy([-1, 0, 1], ["V", "N", "N"], ["N", "V"]) == pytest.approx(1 / 3)


def test_accuracy_is_that_of_named_states():
    assert accuracy([0, 1, 2, 2], ["N", "V", "N", "V"], ["N", "V", "N"]) == 0.75
    with pytest.raises(TrellisError, match="state 3 has no name among 3"):
        accuracy([0, 3], ["N", "V"], ["N", "V", "N"])


@pytest.mark.parametrize(
    ("states", "tags", "said"),
    [
        ([0, 1], ["N"], "give one of each a word"),
        ([[0, 1]], [["N", "V"]], "give one of each a word"),
        ([], [], "no words to score"),
        ([0.5, 1.0], ["N", "V"], "give whole numbers"),
    ],
)
def test_what_cannot_be_scored_is_refused(states, tags, said):
    with pytest.raises(TrellisError, match=said):
        tagging_scores(states, tags)


WORD = WordTokenizer(["<unk>", "<eos>", "the", "cat", "sat"])
SENTENCES = [
    TaggedSentence(["the", "cat", "sat", "on", "the", "cat"], list("DNVADN")),
    TaggedSentence(["sat"], ["V"]),
    TaggedSentence(["the", "cat", "the", "cat", "sat"], list("DNDNV")),
] * 30  # more than are decoded together


@pytest.mark.parametrize("posterior", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_states_are_those_of_each_sentence_alone(posterior, begun):
    model = HMM(HMMConfig(WORD.vocab_size, 4), seed=3).eval()
    begin = model.score(torch.tensor([[WORD.eos_id]]))[1].detach() if begun else None
    found = decode_sentences(model, WORD, SENTENCES, posterior=posterior, begin=begin, quiet=True)
    for sentence, states in zip(SENTENCES, found, strict=True):
        ids = torch.tensor([[*WORD.encode(" ".join(sentence.words)), WORD.eos_id]])
        if posterior:
            want = model.smooth(ids, begin).posterior_BTS[0].argmax(-1)
        else:
            want = model.viterbi(ids, begin).states_BT[0]
        assert states == want[:-1].tolist()


@pytest.mark.parametrize("posterior", [False, True])
def test_an_impossible_sentence_has_no_states(posterior):
    model = HMM(HMMConfig(WORD.vocab_size, 2), seed=0).eval()
    emission = np.full((2, 5), 0.25)
    emission[:, WORD.id("cat")] = 0
    model.set_tables(*(torch.from_numpy(table) for table in (np.full(2, 0.5), np.full((2, 2), 0.5), emission)))
    found = decode_sentences(model, WORD, SENTENCES[:2], posterior=posterior, quiet=True)
    assert found[0] == [-1] * 6
    assert found[1][0] in (0, 1)


def test_a_tokenizer_that_cuts_words_is_refused():
    tokenizer = CharacterTokenizer.train(["the cat sat on"])
    model = HMM(HMMConfig(tokenizer.vocab_size, 2), seed=0)
    with pytest.raises(TrellisError, match="use a model of words"):
        decode_sentences(model, tokenizer, SENTENCES, quiet=True)
