import math

import pytest
import torch

from trellis import TrellisError
from trellis.inspection import StateWords, explained, inspect_states, state_names, stationary
from trellis.models import HMM, HMMConfig, Tables
from trellis.models.supports import partition, uniform_subsets
from trellis.text import MemoryCorpus, WordTokenizer, prepare

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b"])
# States 0 and 1 turn in a circle, state 2 is left at once and never found again.
TABLES = Tables(
    start_S=torch.tensor([0.0, 0.0, 1.0]),
    transition_SS=torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]),
    emission_SV=torch.tensor([[0.0, 0.1, 0.6, 0.3], [0.0, 0.3, 0.1, 0.6], [0.25, 0.25, 0.25, 0.25]]),
)


@pytest.fixture
def model():
    hmm = HMM(HMMConfig(4, states=3))
    hmm.set_tables(*TABLES)
    return hmm


def test_the_long_run_of_a_chain_that_turns_in_circles():
    assert stationary(*TABLES[:2]).tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-9)


def test_the_long_run_is_a_fixed_point():
    transition_SS = torch.rand(20, 20, generator=torch.Generator().manual_seed(0)).softmax(-1)
    usage_S = stationary(torch.full((20,), 0.05), transition_SS)
    torch.testing.assert_close(usage_S @ transition_SS.double(), usage_S, rtol=0, atol=1e-7)
    assert float(usage_S.sum()) == pytest.approx(1)


def test_states_by_hand():
    found = inspect_states(TABLES, stationary(*TABLES[:2]), words=2, successors=2)
    assert {state.state for state in found.states[:2]} == {0, 1}
    assert [state.dead for state in found.states] == [False, False, True]
    assert found.dead == 1
    assert found.threshold == pytest.approx(1 / 300)
    assert found.effective == pytest.approx(2)
    first = next(state for state in found.states if state.state == 0)
    assert [(word.id, round(word.probability, 4)) for word in first.words] == [(2, 0.6), (3, 0.3)]
    assert (first.successors[0].id, first.successors[0].probability) == (1, 1.0)


def test_distinct_words_are_those_the_rest_of_the_model_lacks():
    emission_SV = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    tables = Tables(torch.tensor([0.5, 0.5]), torch.full((2, 2), 0.5), emission_SV)
    found = inspect_states(tables, torch.tensor([0.5, 0.5]), words=1, distinct=True)
    assert {state.state: state.words[0].id for state in found.states} == {0: 1, 1: 2}
    assert found.states[0].words[0].probability == 0.5


def test_more_words_and_states_than_there_are():
    found = inspect_states(TABLES, stationary(*TABLES[:2]), words=99, successors=99)
    assert all(len(state.words) == 4 and len(state.successors) == 3 for state in found.states)


def test_usage_on_a_text_is_the_mean_posterior(model, tmp_path):
    ids = prepare(MemoryCorpus("x", ("a b a a b", "b a")), WORDS, tmp_path)
    posterior_TS = model.smooth(torch.tensor([ids.ids.tolist()])).posterior_BTS[0]
    usage_S = explained(model, ids, quiet=True)
    assert usage_S.tolist() == pytest.approx(posterior_TS.mean(0).tolist(), abs=1e-6)
    assert usage_S.dtype == torch.float64
    assert usage_S[2] == pytest.approx(1 / len(ids))  # the first token, and no other


def test_usage_on_a_long_text_carries_the_belief(model, tmp_path):
    ids = prepare(MemoryCorpus("x", ("a b",) * 500), WORDS, tmp_path)
    usage_S = explained(model, ids, quiet=True)
    assert float(usage_S.sum()) == pytest.approx(1)
    assert usage_S[2] == pytest.approx(5 / len(ids), abs=1e-6)  # 1,500 tokens are five streams, each with a start
    assert not math.isnan(float(usage_S[0]))


def most_probable(model, state, words):
    probabilities = model.emission_rows(torch.tensor([state]))[0]
    best = [id for id in probabilities.argsort(descending=True).tolist()[:words] if probabilities[id] > 0]
    return " ".join(WORDS.token(id) for id in best)


LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4}
KINDS = {
    "dense": lambda: HMM(HMMConfig(4, states=6), seed=0),
    "memory": lambda: HMM(HMMConfig(4, states=6, memory=1, **LOW_RANK), seed=0),
    "brown": lambda: HMM(
        HMMConfig(4, states=6, support="brown", blocks=2), seed=0, support=partition(torch.tensor([0, 1, 0, 1]), 6, 2)
    ),
    "uniform": lambda: HMM(
        HMMConfig(4, states=6, support="uniform", blocks=2), seed=0, support=uniform_subsets(4, 6, 3, seed=0)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_named_by_their_most_probable_words(kind):
    hmm = KINDS[kind]().eval()
    assert state_names(hmm, WORDS, [5, 0, 5], words=2) == [most_probable(hmm, state, 2) for state in (5, 0, 5)]
    for state, found in enumerate(state_names(hmm, WORDS, torch.arange(6), words=9)):
        assert found == most_probable(hmm, state, 9)  # words that a state never emits are not among its own
    if kind == "brown":
        assert {len(found.split()) for found in state_names(hmm, WORDS, range(6))} == {2}


def test_the_words_of_a_state_are_found_once(model, monkeypatch):
    asked = []
    rows = model.emission_rows
    monkeypatch.setattr(model, "emission_rows", lambda states_N: asked.append(states_N.tolist()) or rows(states_N))
    names = StateWords(model, WORDS, 1)
    assert names.of([2, 0, 2]) == names.of([2, 0, 2])
    assert names.of([]) == []
    assert names.of([1]) == [("b",)]
    assert asked == [[0, 2], [1]]


@pytest.mark.parametrize("state", [-1, 3])
def test_there_is_no_such_state(model, state):
    with pytest.raises(TrellisError, match=f"there is no state {state}: give 0 to 2"):
        state_names(model, WORDS, [0, state])
