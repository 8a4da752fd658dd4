import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.inference import Chain, k_best, paths, viterbi

from .. import reference
from .blocked_models import (
    EXAMPLES,
    KINDS,
    a_large_case,
    an_improbable_beginning,
    an_improbable_case,
    cases,
    improbable_cases,
)
from .models import ragged, random_belief, random_hmm, random_log_emission, rows_of

T = torch.tensor


def joint(log_start_S, log_transition_SS, log_emission_TS, states, log_belief_S=None):
    """log p(z, o) of one path, read off the tables."""
    first = reference.first_state(log_start_S, log_transition_SS, log_belief_S)
    total = first[states[0]] + log_transition_SS[states[:-1], states[1:]].sum()
    return float(total + log_emission_TS[torch.arange(len(states)), states].sum())


def check_row(model, best, k):
    """One row of a KBest against the list of all paths."""
    truth = reference.enumerate_paths(*model).best(k)
    time = len(model[2])
    log_prob_K, states_KT = best
    found = int(log_prob_K.isfinite().sum())
    assert found == len(truth)
    assert_close(log_prob_K[:found], T([path.log_prob for path in truth], dtype=log_prob_K.dtype))
    assert (log_prob_K[found:] == -torch.inf).all()
    assert (states_KT[found:] == -1).all()
    assert (states_KT[:, time:] == -1).all()
    assert len({tuple(states.tolist()) for states in states_KT[:found]}) == found
    for log_prob, states in zip(log_prob_K[:found], states_KT[:found, :time], strict=True):
        if time:
            assert float(log_prob) == pytest.approx(joint(*model[:3], states, model[3]))


@pytest.mark.parametrize("k", [2, 3, 7, 300])
@given(ragged())
def test_k_best_are_the_best_of_all_paths(k, model):
    best = k_best(Chain.dense(*model), k)
    for b, row in enumerate(rows_of(*model)):
        check_row(row, (best.log_prob_BK[b], best.states_BKT[b]), k)


@given(ragged())
def test_viterbi_is_the_best_of_all_paths(model):
    best = viterbi(Chain.dense(*model))
    for b, row in enumerate(rows_of(*model)):
        check_row(row, (best.log_prob_B[b : b + 1], best.states_BT[b : b + 1]), 1)


@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_ties_are_all_found(k):
    """With everything uniform all 27 paths tie: they must be distinct, and no more than there are."""
    log_third = T(1 / 3).log()
    model = (log_third.expand(3), log_third.expand(3, 3), torch.zeros(3, 3), None)
    best = k_best(Chain.dense(*model[:2], model[2][None]), k)
    check_row(model, (best.log_prob_BK[0], best.states_BKT[0]), k)


@pytest.mark.parametrize("chunk", [1, 700, 1 << 21])
@pytest.mark.parametrize("k", [1, 6])
def test_large_models_agree_with_the_reference(k, chunk, monkeypatch):
    monkeypatch.setattr(paths, "CHUNK", chunk)
    start, transition = random_hmm(25 if chunk == 1 else 50, seed=0, zeros=0.3)
    states = len(start)
    log_emission_BTS = random_log_emission(3, 30, states, seed=0, zeros=0.1)
    lengths_B, belief_BS = T([30, 7, 1]), random_belief(3, states, seed=0)
    best = k_best(Chain.dense(start, transition, log_emission_BTS, lengths_B, belief_BS), k)
    for b, length in enumerate(lengths_B.tolist()):
        truth = reference.k_best(start, transition, log_emission_BTS[b, :length], k, belief_BS[b].log())
        assert_close(best.log_prob_BK[b], T([path.log_prob for path in truth], dtype=torch.float64))
        assert [tuple(z) for z in best.states_BKT[b, :, :length].tolist()] == [path.states for path in truth]


def test_float32_finds_the_path_of_a_long_sequence():
    """Sums of 3000 log-probabilities have lost the digits that tell paths apart, unless kept relative."""
    start, transition = random_hmm(6, seed=1)
    log_emission_BTS = random_log_emission(1, 3000, 6, seed=1)
    exact = viterbi(Chain.dense(start, transition, log_emission_BTS))
    single = viterbi(Chain.dense(start.float(), transition.float(), log_emission_BTS.float()))
    assert single.log_prob_B.dtype == torch.float32
    assert_close(single.log_prob_B, exact.log_prob_B.float(), rtol=1e-6, atol=0)
    assert torch.equal(single.states_BT, exact.states_BT)


def test_pointers_beyond_int16_still_lead_back():
    start, transition = random_hmm(50, seed=2)
    log_emission_BTS = random_log_emission(1, 3, 50, seed=2)
    wide = k_best(Chain.dense(start, transition, log_emission_BTS), 700)
    narrow = k_best(Chain.dense(start, transition, log_emission_BTS), 20)
    assert_close(wide.log_prob_BK[:, :20], narrow.log_prob_BK)
    assert torch.equal(wide.states_BKT[:, :20], narrow.states_BKT)


def test_no_rows_and_no_tokens():
    start, transition = random_hmm(3, seed=3)
    assert viterbi(Chain.dense(start, transition, torch.empty(0, 4, 3))).states_BT.shape == (0, 4)
    empty = k_best(Chain.dense(start, transition, torch.empty(2, 0, 3)), 2)
    assert empty.states_BKT.shape == (2, 2, 0)
    assert empty.log_prob_BK.tolist() == [[0.0, -torch.inf]] * 2


def test_k_must_be_positive():
    start, transition = random_hmm(3, seed=4)
    with pytest.raises(ValueError, match="cannot be 0: give 1 or more"):
        k_best(Chain.dense(start, transition, torch.zeros(1, 2, 3)), 0)


def test_a_length_beyond_the_row_is_refused():
    start, transition = random_hmm(3, seed=4)
    with pytest.raises(TrellisError, match="a length of 3 is more than the 2 tokens"):
        viterbi(Chain.dense(start, transition, torch.zeros(1, 2, 3), T([3])))


# Chains of every kind


def check_case(case, k):
    """Every row of a chain of each kind against the list of all paths of the dense model."""
    rows = [(*row, None) for row in case.rows()]
    for _, chain in case.chains():
        best = k_best(chain, k)
        for b, row in enumerate(rows):
            check_row(row, (best.log_prob_BK[b], best.states_BKT[b]), k)


@pytest.mark.parametrize("k", [1, 2, 5, 100])
@given(cases())
@settings(max_examples=EXAMPLES)
def test_paths_of_every_kind_are_the_best_of_all_paths_of_the_dense_model(k, case):
    check_case(case, k)


@pytest.mark.parametrize("k", [1, 4])
@given(cases(labelled=True))
@settings(max_examples=EXAMPLES)
def test_paths_of_labelled_rows_are_the_best_of_those_that_agree(k, case):
    check_case(case, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 100, 1 << 21])
@pytest.mark.parametrize("k", [1, 6])
def test_paths_of_every_kind_agree_with_dense_ones_however_chunked(k, chunk, kind, monkeypatch):
    case = a_large_case()
    if chunk == 1 and kind != "blocks":  # as many chunks as there are pairs of states
        case = case._replace(tokens_BT=case.tokens_BT[:, :5], lengths_B=case.lengths_B.clamp_max(5))
    dense = k_best(case.dense(), k)
    monkeypatch.setattr(paths, "CHUNK", chunk)
    best = k_best(case.chain(kind), k)
    assert_close(best.log_prob_BK, dense.log_prob_BK)
    assert torch.equal(best.states_BKT, dense.states_BKT)


@pytest.mark.parametrize("kind", KINDS)
def test_viterbi_is_the_first_of_the_k_best(kind):
    chain = a_large_case(seed=1).chain(kind)
    first, best = viterbi(chain), k_best(chain, 3)
    assert torch.equal(first.log_prob_B, best.log_prob_BK[:, 0])
    assert torch.equal(first.states_BT, best.states_BKT[:, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
@pytest.mark.parametrize("make", [an_improbable_case, an_improbable_beginning])
def test_paths_take_steps_that_float32_has_no_probability_for(make, surprise, kind):
    case = make(surprise)
    best = viterbi(case.chain(kind))
    for b, row in enumerate(case.rows()):
        truth = reference.viterbi(*row)
        assert float(best.log_prob_B[b]) == pytest.approx(truth.log_prob, rel=1e-6)
        assert tuple(best.states_BT[b, : len(row[2])].tolist()) == truth.states


@given(improbable_cases())
@settings(max_examples=EXAMPLES)
def test_paths_of_what_float32_cannot_hold_are_the_best_of_all(case):
    for kind, chain in case.chains():
        best = viterbi(chain)
        for b, row in enumerate(case.rows()):
            truth, states_T = reference.viterbi(*row), best.states_BT[b, : len(row[2])]
            assert float(best.log_prob_B[b]) == pytest.approx(truth.log_prob, rel=1e-5, abs=1e-5), kind
            if len(row[2]) and truth.log_prob > -torch.inf:
                assert joint(*row, states_T) == pytest.approx(truth.log_prob, rel=1e-5, abs=1e-5), kind
