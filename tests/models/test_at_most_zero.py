"""No log-probability is above zero, whatever the kind of model and however sure it is."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis.mixtures import Mixture
from trellis.models.feed_forward import FeedForward, FeedForwardConfig
from trellis.models.hmm_rnn import HMMRNN, HMMRNNConfig
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig
from trellis.models.ngram import Bigram, Unigram
from trellis.models.transformer import TransformerLM, TransformerLMConfig
from trellis.ops.precision import at_most_zero

from .makers import random_ids
from .test_any_logits import KINDS, extreme

NETWORKS = {
    "feed-forward": lambda: FeedForward(FeedForwardConfig(7, width=8), seed=0),
    "lstm": lambda: LSTM(LSTMConfig(7, width=8), seed=0),
    "awd-lstm": lambda: AWDLSTM(AWDLSTMConfig(7, width=8, hidden=8), seed=0),
    "transformer": lambda: TransformerLM(TransformerLMConfig(7, width=8, heads=2, context=8), seed=0),
    "hmm-rnn": lambda: HMMRNN(HMMRNNConfig(7, states=5, width=8), seed=0),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
@torch.no_grad()
def test_networks_that_are_sure_are_not_surer_than_sure(name, scale):
    model = NETWORKS[name]().eval()
    for parameter in model.parameters():
        parameter.mul_(scale)
    log_prob_BT, _ = model.score(random_ids(40, 30, 7))
    assert (log_prob_BT <= 0).all()
    assert log_prob_BT.isfinite().all()


@pytest.mark.parametrize("kind", sorted(KINDS))
@torch.no_grad()
def test_hmms_of_any_kind(kind):
    for scale in (1.0, 30.0, 300.0):
        models = [extreme(kind, scale, seed) for seed in range(3)]
        ids_BT = random_ids(4, 7, 5)
        for model in models:
            assert (model.score(ids_BT)[0] <= 0).all()
            assert (model.filter(ids_BT).log_prob_BT <= 0).all()
            assert (model.smooth(ids_BT).log_prob_BT <= 0).all()
            assert (model.viterbi(ids_BT).log_prob_B <= 0).all()
            assert (model.k_best(ids_BT, 2).log_prob_BK <= 0).all()
            assert (model.next_token(model.score(ids_BT)[1]) <= 0).all()
        if "memory" not in kind:
            assert (Mixture(models).score(ids_BT)[0] <= 0).all()


def test_models_that_count_a_text_of_one_word():
    ids, ids_BT = np.zeros(50, dtype=np.int64), torch.zeros(2, 9, dtype=torch.int64)
    for model in (Unigram.fit(ids, 2), Bigram.fit(ids, 2), KneserNey.fit(KneserNeyConfig(2), ids, quiet=True)):
        assert (model.score(ids_BT)[0] <= 0).all()


def test_what_is_above_zero_has_its_gradient_still():
    log_prob = torch.tensor([1e-6, -1.0, -torch.inf, 0.0], requires_grad=True)
    found = at_most_zero(log_prob)
    assert_close(found, torch.tensor([0.0, -1.0, -torch.inf, 0.0]), rtol=0, atol=0)
    found[:2].sum().backward()
    assert_close(log_prob.grad, torch.tensor([1.0, 1.0, 0.0, 0.0]))
