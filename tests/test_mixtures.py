"""Posteriors over concepts and Bayes-optimal predictions, by adding up every concept and every path of states."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis import HMM, HMMConfig, TrellisError, evaluate
from trellis.mixtures import Mixture, load_mixture, mixture_of
from trellis.models.pretrained import load_pretrained
from trellis.text import IdFile, IntegerTokenizer, WordTokenizer

V = 3
PRIOR = [0.2, 0.5, 0.3]


def some_hmm(seed, states, zeros=False, kind="scalar"):
    if kind != "scalar":
        parts = dict.fromkeys(("start", "transition", "emission"), kind)
        return HMM(HMMConfig(V, states, width=2, **parts), seed=seed).double().eval()
    rng, model = np.random.default_rng(seed), HMM(HMMConfig(V, states), seed=0).double().eval()
    tables = [rng.dirichlet(np.ones(size), rows) for size, rows in ((states, None), (states, states), (V, states))]
    if zeros:
        tables[2][:, 0] = 0
        tables[2] /= tables[2].sum(1, keepdims=True)
    model.set_tables(*(torch.from_numpy(table) for table in tables))
    return model


def a_mixture(zeros=False, prior=PRIOR):
    return Mixture([some_hmm(1, 2), some_hmm(2, 3, zeros), some_hmm(3, 2, kind="low_rank")], prior)


def slow(model, tokens):
    """p(tokens) of one HMM: every path of states."""
    tables, total = [table.tolist() for table in model.tables()], 0.0
    start, transition, emission = tables
    for path in itertools.product(range(len(start)), repeat=len(tokens)):
        chance = 1.0
        for at, (state, token) in enumerate(zip(path, tokens, strict=True)):
            chance *= (transition[path[at - 1]][state] if at else start[state]) * emission[state][token]
        total += chance
    return total


def slow_joint(mixture, tokens):
    """p(concept, tokens) of every concept."""
    return np.array([p * slow(m, tokens) for p, m in zip(mixture.prior_C.tolist(), mixture.models, strict=True)])


TOKENS = st.lists(st.integers(0, V - 1), min_size=1, max_size=5)


@given(TOKENS)
@settings(max_examples=40)
def test_every_answer_is_the_sum_over_concepts_and_paths(tokens):
    mixture, ids = a_mixture(), torch.tensor([tokens])
    log_prob, state = mixture.score(ids)
    posteriors, again = mixture.posteriors(ids)
    assert_close(state, again)
    before = 1.0
    for at in range(len(tokens)):
        joint = slow_joint(mixture, tokens[: at + 1])
        assert float(log_prob[0, at].exp()) == pytest.approx(joint.sum() / before, rel=1e-9)
        assert posteriors[0, at].tolist() == pytest.approx((joint / joint.sum()).tolist(), rel=1e-9)
        before = joint.sum()
    assert mixture.posterior(state)[0].tolist() == pytest.approx((joint / joint.sum()).tolist(), rel=1e-9)
    want = [slow_joint(mixture, [*tokens, token]).sum() / before for token in range(V)]
    assert mixture.next_token(state)[0].exp().tolist() == pytest.approx(want, rel=1e-9)


def test_before_any_token_there_is_the_prior():
    mixture = a_mixture()
    assert mixture.posterior()[0].tolist() == pytest.approx(PRIOR)
    assert mixture.next_token()[0].exp().tolist() == pytest.approx([slow_joint(mixture, [v]).sum() for v in range(V)])
    assert Mixture(mixture.models).prior_C.tolist() == pytest.approx([1 / 3] * 3)


@given(st.integers(0, 6), st.integers(0, 4))
@settings(max_examples=30)
def test_a_text_may_come_in_pieces(cut, short):
    """Ragged rows, one of them maybe without tokens; what lies past a row's end is never looked at."""
    mixture = a_mixture()
    ids = torch.randint(V, (3, 6), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([6, short, 3])
    whole, after = mixture.score(ids, None, lengths)
    padded = ids.masked_fill(torch.arange(6) >= lengths[:, None], 99)
    assert_close(mixture.score(padded, None, lengths)[0], whole)
    left, state = mixture.score(ids[:, :cut], None, lengths.clamp(max=cut))
    right, state = mixture.score(ids[:, cut:], state, (lengths - cut).clamp(min=0))
    assert_close(torch.cat([left, right], 1), whole)
    assert_close(state, after)
    for row, length in enumerate(lengths.tolist()):
        assert (whole[row, length:] == 0).all()
        assert_close(whole[row, :length], mixture.score(ids[row : row + 1, :length])[0][0])
        alone = mixture.posteriors(ids[row : row + 1, :length])[1]
        assert_close(mixture.posterior(after)[row], mixture.posterior(alone)[0])


def test_it_is_one_large_hmm():
    mixture = a_mixture()
    ids = torch.randint(V, (4, 40), generator=torch.Generator().manual_seed(1))
    assert_close(mixture.score(ids)[0], mixture.joined().score(ids)[0], rtol=1e-9, atol=1e-9)
    state = mixture.score(ids)[1]
    assert_close(mixture.next_token(state), mixture.joined().next_token(mixture.joined().score(ids)[1]))


@pytest.mark.parametrize("protocol", ["stream", "streams", "sequences"])
def test_it_is_measured_as_every_model(tmp_path, protocol):
    rng, mixture = np.random.default_rng(0), a_mixture()
    text = IdFile.from_arrays(
        tmp_path / "ids", [rng.integers(V, size=size) for size in (40, 3, 21)], IntegerTokenizer(V)
    )
    found = evaluate(mixture, text, protocol, quiet=True)
    assert found.nats == pytest.approx(evaluate(mixture.joined(), text, protocol, quiet=True).nats, rel=1e-6)


def test_a_concept_that_cannot_be_is_out_for_good():
    mixture = a_mixture(zeros=True)
    posteriors, state = mixture.posteriors(torch.tensor([[1, 0, 1]]))
    assert float(posteriors[0, 0, 1]) > 0
    assert posteriors[0, 1:, 1].tolist() == [0, 0]
    later, _ = mixture.posteriors(torch.tensor([[2, 1]]), state)
    assert later[0, :, 1].tolist() == [0, 0]


def test_what_no_concept_can_emit_is_impossible_and_never_nan():
    mixture = Mixture([some_hmm(2, 3, zeros=True), some_hmm(4, 2, zeros=True)])
    log_prob, state = mixture.score(torch.tensor([[1, 0, 1]]))
    assert log_prob[0, 1:].tolist() == [-torch.inf, -torch.inf]
    assert float(log_prob[0, 0]) > -torch.inf
    assert mixture.posteriors(torch.tensor([[1, 0, 1]]))[0][0, 1:].sum() == 0
    assert mixture.posterior(state).tolist() == [[0, 0]]
    assert mixture.score(torch.tensor([[1]]), state)[0].tolist() == [[-torch.inf]]
    assert not mixture.next_token(state).isnan().any()


def test_a_prior_of_zero_stays_zero():
    mixture = a_mixture(prior=[0.0, 1.0, 0.0])
    ids = torch.tensor([[0, 1, 2, 2]])
    assert mixture.posteriors(ids)[0][0, :, 1].tolist() == [1] * 4
    assert_close(mixture.score(ids)[0], mixture.models[1].score(ids)[0])
    assert mixture.sample(20, 3).concepts_B.tolist() == [1] * 20


def test_draws_have_the_probabilities_of_the_mixture():
    mixture, draws = a_mixture(), 40_000
    drawn = mixture.sample(draws, 2, generator=torch.Generator().manual_seed(0))
    found = Counter(zip(drawn.concepts_B.tolist(), map(tuple, drawn.tokens_BT.tolist()), strict=True))
    for pair in itertools.product(range(V), repeat=2):
        for concept, want in enumerate(slow_joint(mixture, pair)):
            error = 5 * (want * (1 - want) / draws) ** 0.5
            assert found[concept, pair] / draws == pytest.approx(want, abs=error)
    sizes = torch.tensor([2, 3, 2])
    assert (drawn.states_BT < sizes[drawn.concepts_B][:, None]).all()


def test_a_document_ends_where_it_is_told_to():
    drawn = a_mixture().sample(200, 5, end=1, generator=torch.Generator().manual_seed(0))
    for tokens, length in zip(drawn.tokens_BT.tolist(), drawn.lengths_B.tolist(), strict=True):
        assert 1 not in tokens[: length - 1]
        assert length == 5 or tokens[length - 1] == 1
        assert tokens[length:] == [-1] * (5 - length)
    again = a_mixture().sample(200, 5, end=1, generator=torch.Generator().manual_seed(0))
    assert_close(again.tokens_BT, drawn.tokens_BT)


def test_a_mixture_is_read_back_as_it_was_written(tmp_path):
    mixture = a_mixture()
    mixture.save_pretrained(tmp_path / "mixture", IntegerTokenizer(V))
    again, tokenizer = load_mixture(tmp_path / "mixture")
    ids = torch.randint(V, (2, 9), generator=torch.Generator().manual_seed(0))
    assert_close(again.score(ids)[0].double(), mixture.score(ids)[0], rtol=1e-6, atol=1e-6)
    assert tokenizer.vocab_size == V
    path = tmp_path / "mixture" / "mixture.json"
    for broken in ({"concepts": ["concept-0"]}, {"concepts": 3, "prior": [1]}, {"prior": [1.0], "concepts": [None]}):
        path.write_text(json.dumps(broken))
        with pytest.raises(TrellisError):
            load_mixture(tmp_path / "mixture")
    with pytest.raises(TrellisError, match=r"there is no mixture\.json"):
        load_mixture(tmp_path)


def test_what_cannot_be_mixed_is_refused(tmp_path):
    with pytest.raises(TrellisError, match="give at least one"):
        Mixture([])
    with pytest.raises(TrellisError, match="vocabularies of 3 and 5 cannot be mixed"):
        Mixture([some_hmm(1, 2), HMM(HMMConfig(5, 2), seed=0)])
    for prior in ([0.5, 0.6, 0.2], [1.0], [1.5, -0.5, 0.0], [float("nan"), 0.5, 0.5]):
        with pytest.raises(TrellisError, match="prior_C"):
            a_mixture(prior=prior)
    with pytest.raises(TrellisError, match="give the one that the last call returned"):
        a_mixture().score(torch.tensor([[0]]), torch.zeros(1, 4))
    with pytest.raises(TrellisError, match="give the one that the last call returned"):
        a_mixture().posterior(torch.zeros(1, 4))
    words = WordTokenizer(["<unk>", "<eos>", "a", "b"]), WordTokenizer(["<unk>", "<eos>", "a", "c"])
    found = []
    for number, tokenizer in enumerate(words):
        HMM(HMMConfig(4, 2), seed=0).save_pretrained(tmp_path / str(number), tokenizer)
        found.append(load_pretrained(tmp_path / str(number)))
    with pytest.raises(TrellisError, match="another tokenizer"):
        mixture_of(found)
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]):
        with pytest.raises(TrellisError, match="as many weights"):
            mixture_of(found[:1] * 2, weights)
    assert mixture_of(found[:1] * 2, [3, 1])[0].prior_C.tolist() == pytest.approx([0.75, 0.25])
