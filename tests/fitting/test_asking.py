import numpy as np
import pytest
import torch

from trellis.fitting import asking
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition

VOCABULARY = 7
BLOCKED = HMM(
    HMMConfig(VOCABULARY, 6, support="brown", blocks=3), 1, partition(torch.arange(VOCABULARY) % 3, 6, 3)
).eval()
DENSE = HMM(HMMConfig(VOCABULARY, 5), seed=0).eval()
SEQUENCES = [np.random.default_rng(length).integers(VOCABULARY, size=length) for length in (3, 40, 1, 17, 40, 2)]
BEGIN = torch.tensor([[0.1, 0.2, 0.3, 0.25, 0.15]])
CASES = [(DENSE, None), (DENSE, BEGIN), (BLOCKED, None)]


@pytest.fixture(params=[1 << 23, 50, 1], ids=["together", "some", "one by one"])
def _at_once(request, monkeypatch):
    """As many numbers at a time as memory allows; few, so that long sequences are read in pieces."""
    monkeypatch.setattr(asking, "AT_ONCE", request.param)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(("model", "begin"), CASES, ids=["dense", "from a belief", "blocked"])
def test_every_answer_is_that_to_the_sequence_alone(model, begin):
    scores = asking.log_likelihoods(model, SEQUENCES, begin)
    paths = asking.paths(model, SEQUENCES, begin)
    posteriors = asking.posteriors(model, SEQUENCES, begin)
    best = asking.most_probable_next(model, SEQUENCES, begin, 3)
    for at, sequence in enumerate(SEQUENCES):
        ids = torch.from_numpy(sequence)[None]
        with torch.no_grad():
            log_prob, state = model.score(ids, begin)
            probabilities = model.next_token(state)[0].exp()
        assert scores[at] == pytest.approx(float(log_prob.sum()), rel=1e-5)
        assert paths[at].tolist() == model.viterbi(ids, begin).states_BT[0].tolist()
        assert posteriors[at].shape == (len(sequence), model.config.states)
        np.testing.assert_allclose(posteriors[at].sum(1), 1.0, rtol=1e-5)
        plain = model.dense() if model is BLOCKED else model
        wanted = plain.smooth(ids, begin).posterior_BTS[0].numpy()
        np.testing.assert_allclose(posteriors[at], wanted, rtol=1e-4, atol=1e-6)
        order = probabilities.argsort(descending=True)[:3].tolist()
        assert [id for id, _ in best[at]] == order
        np.testing.assert_allclose([chance for _, chance in best[at]], probabilities[order], rtol=1e-4)


def test_more_next_tokens_than_there_are_is_all_of_them():
    assert len(asking.most_probable_next(DENSE, SEQUENCES[:1], None, 99)[0]) == VOCABULARY
