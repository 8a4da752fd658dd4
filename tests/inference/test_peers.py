"""The same questions to hmmlearn and dynamax: likelihood, beliefs, posteriors, counts and best paths."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis.inference import Chain, filter, smooth, viterbi

from .. import reference
from .models import dense_counts, random_hmm

STATES, TOKENS, TIME, BATCH = 6, 11, 25, 4


class Case:
    """A model with a table of emissions, and rows drawn at random."""

    def __init__(self, seed, zeros):
        generator = torch.Generator().manual_seed(seed)
        self.log_start_S, self.log_transition_SS = random_hmm(STATES, seed, zeros)
        logits = 2 * torch.randn(STATES, TOKENS, generator=generator, dtype=torch.float64)
        self.log_emission_SV = logits.log_softmax(-1)
        self.tokens_BT = torch.randint(TOKENS, (BATCH, TIME), generator=generator)
        self.log_emission_BTS = self.log_emission_SV.T[self.tokens_BT]

    @property
    def batch(self):
        return self.log_start_S, self.log_transition_SS, self.log_emission_BTS

    def rows(self):
        for log_emission_TS in self.log_emission_BTS:
            yield self.log_start_S, self.log_transition_SS, log_emission_TS


@pytest.fixture(params=[0.0, 0.3], ids=["dense", "zeros"])
def case(request):
    return Case(seed=5, zeros=request.param)


@pytest.fixture
def hmmlearn(case):
    hmm = pytest.importorskip("hmmlearn.hmm")
    model = hmm.CategoricalHMM(n_components=STATES, n_features=TOKENS, init_params="", implementation="log")
    model.startprob_ = case.log_start_S.exp().numpy()
    model.transmat_ = case.log_transition_SS.exp().numpy()
    model.emissionprob_ = case.log_emission_SV.exp().numpy()
    return model


@pytest.fixture
def dynamax():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield pytest.importorskip("dynamax.hidden_markov_model")


def theirs(array):
    return torch.from_numpy(np.array(array, dtype=np.float64))


def test_hmmlearn_agrees_on_likelihood_and_posteriors(case, hmmlearn):
    column, lengths = case.tokens_BT.reshape(-1, 1).numpy(), [TIME] * BATCH
    total, posterior = hmmlearn.score_samples(column, lengths)
    ours = smooth(Chain.dense(*case.batch))
    assert float(ours.log_prob_BT.sum()) == pytest.approx(total)
    assert hmmlearn.score(column, lengths) == pytest.approx(total)
    assert_close(ours.posterior_BTS.flatten(0, 1), theirs(posterior))
    assert_close(torch.cat([reference.smooth(*row) for row in case.rows()]), theirs(posterior))
    assert_close(theirs(hmmlearn.predict_proba(column, lengths)), theirs(posterior))


def test_hmmlearn_agrees_on_the_best_path(case, hmmlearn):
    best = viterbi(Chain.dense(*case.batch))
    for tokens_T, log_prob, states_T in zip(case.tokens_BT, *best, strict=True):
        their_log_prob, their_states = hmmlearn.decode(tokens_T[:, None].numpy(), algorithm="viterbi")
        assert float(log_prob) == pytest.approx(their_log_prob)
        assert states_T.tolist() == their_states.tolist()


def test_dynamax_agrees_on_filtering(case, dynamax):
    ours = filter(Chain.dense(*case.batch))
    for b, (log_start_S, log_transition_SS, log_emission_TS) in enumerate(case.rows()):
        post = dynamax.hmm_filter(log_start_S.exp().numpy(), log_transition_SS.exp().numpy(), log_emission_TS.numpy())
        assert float(ours.log_prob_BT[b].sum()) == pytest.approx(float(post.marginal_loglik))
        assert_close(ours.belief_BTS[b], theirs(post.filtered_probs))
        filtered = reference.filter(log_start_S, log_transition_SS, log_emission_TS)
        assert_close(filtered.log_belief_TS.exp(), theirs(post.filtered_probs))


def test_dynamax_agrees_on_posteriors_and_counts(case, dynamax):
    smoothed, total_SS = smooth(Chain.dense(*case.batch)), torch.zeros(STATES, STATES, dtype=torch.float64)
    for b, (log_start_S, log_transition_SS, log_emission_TS) in enumerate(case.rows()):
        counts = reference.expected_counts(log_start_S, log_transition_SS, log_emission_TS)
        post = dynamax.hmm_smoother(log_start_S.exp().numpy(), log_transition_SS.exp().numpy(), log_emission_TS.numpy())
        assert_close(counts.posterior_TS, theirs(post.smoothed_probs))
        assert_close(counts.transition, theirs(post.trans_probs))
        assert float(counts.log_prob_T.sum()) == pytest.approx(float(post.marginal_loglik))
        assert_close(smoothed.posterior_BTS[b], theirs(post.smoothed_probs))
        total_SS += theirs(post.trans_probs)
    assert_close(dense_counts(*case.batch)[1], total_SS)


def test_dynamax_agrees_on_the_best_path(case, dynamax):
    best = viterbi(Chain.dense(*case.batch))
    for states_T, row in zip(best.states_BT, case.rows(), strict=True):
        mode = dynamax.hmm_posterior_mode(row[0].exp().numpy(), row[1].exp().numpy(), row[2].numpy())
        assert states_T.tolist() == mode.tolist()
