import pytest
import torch

from trellis.errors import TrellisError
from trellis.models.hmm_rnn import HMMRNN, SPREAD, HMMRNNConfig

from .makers import random_ids
from .scoring import (
    assert_it_survives_the_disk,
    assert_padding_does_not_matter,
    assert_pieces_make_the_whole,
    total_probability,
)


def make(rank=None):
    """A small float64 model whose RNN matters."""
    model = HMMRNN(HMMRNNConfig(7, states=4, width=3, dropout=0.5, rank=rank), seed=0).double()
    with torch.no_grad():
        for parameter in (model.vectors, model.lead.weight, *model.recurrence.parameters()):
            parameter.mul_(6.0)
    return model


def slow(model, ids):
    """The forward algorithm in log space, with a whole transition matrix for every token."""
    hidden, _ = model.recurrence(model.vectors[ids][None], None)
    if model.config.rank is None:
        log_emission = (SPREAD * model.emission_logits).log_softmax(0)
    else:
        log_emission = (model.emitted @ model.emitting.T + model.emitted_bias[:, None]).log_softmax(0)
    log_alpha, total, scores = None, 0.0, []
    for word, h in zip(ids.tolist(), hidden[0], strict=True):
        log_transition = (SPREAD * model.transition_logits + model.lead.weight @ h).log_softmax(1)
        start = (SPREAD * model.start_logits).log_softmax(0)
        arrived = start if log_alpha is None else torch.logsumexp(log_alpha[:, None] + log_transition, 0)
        log_alpha = arrived + log_emission[word]
        after = torch.logsumexp(log_alpha, 0)
        scores.append(after - total)
        total = after
    return torch.stack(scores)


@pytest.mark.parametrize("rank", [None, 3])
def test_it_is_the_forward_algorithm_with_its_gradients(rank):
    model, ids = make(rank).eval(), random_ids(3, 8, 7)
    weights, parameters = torch.arange(24, dtype=torch.float64), list(model.parameters())
    found = []
    for scores in (model.score(ids)[0].flatten(), torch.cat([slow(model, row) for row in ids])):
        found.append([scores, *torch.autograd.grad(scores @ weights, parameters)])
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(*found, strict=True))
    assert all(float(gradient.abs().max()) > 1e-6 for gradient in found[0][1:])  # all of it takes part


@pytest.mark.parametrize("rank", [None, 3])
def test_the_state_is_all_there_is_to_know(rank, tmp_path):
    model = make(rank).eval()
    assert_pieces_make_the_whole(model, 7, tolerance=1e-12)
    assert_padding_does_not_matter(model, 7, tolerance=1e-12)
    assert_it_survives_the_disk(model, 7, tmp_path)


def test_probabilities_sum_to_one():
    model = make().eval()
    states = [None, *(model.score(random_ids(1, length, 7))[1] for length in (1, 3, 8))]
    assert [total_probability(model, state, 7) for state in states] == pytest.approx([1.0] * 4, abs=1e-12)


def test_float32_is_near():
    model, ids = make().eval(), random_ids(5, 40, 7)
    exact = model.score(ids)[0]
    assert (model.float().score(ids)[0] - exact).abs().max() < 1e-4


def test_what_float32_cannot_hold_has_the_least_probability_and_a_gradient():
    """Words that only the other state emits, in states that never change."""
    model = HMMRNN(HMMRNNConfig(2, states=2, width=2, dropout=0.0), seed=0).eval()
    with torch.no_grad():
        model.transition_logits.copy_(50.0 * torch.eye(2))
        model.emission_logits.copy_(50.0 * torch.eye(2))
    scores = model.score(torch.tensor([[0, 1, 1, 0]]))[0]
    assert bool((scores > -torch.inf).all())
    assert float(scores[0, 1].detach()) < -60.0
    scores.sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_words_long_past_still_matter():
    """What an HMM of this belief could not know: the belief is the same, and the RNN is not."""
    model = make().eval()
    state = model.score(random_ids(1, 6, 7))[1]
    other = state.clone()
    other[:, 4:] = model.score(random_ids(1, 6, 7, seed=1))[1][:, 4:]
    word = torch.tensor([[2]])
    assert not torch.allclose(model.score(word, state)[0], model.score(word, other)[0], atol=1e-4)


def test_rows_without_tokens_have_not_begun():
    model, ids = make().eval(), random_ids(3, 4, 7)
    scores, state = model.score(ids, lengths_B=torch.tensor([0, 4, 2]))
    assert not scores[0].any()
    assert torch.allclose(model.score(ids[:1], state[:1])[0], model.score(ids[:1])[0], atol=1e-12)


def test_learning_drops():
    model, ids = make(), random_ids(2, 6, 7)
    assert not torch.equal(model.score(ids)[0], model.score(ids)[0])


@pytest.mark.parametrize("changes", [{"states": 0}, {"width": 0}, {"dropout": 1.0}, {"rank": 0}])
def test_shapes_that_cannot_be(changes):
    with pytest.raises(TrellisError, match=f"model.{next(iter(changes))} must be"):
        HMMRNNConfig(9, **changes)
