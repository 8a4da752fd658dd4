"""Texts with missing tokens, under models with blocks: as under the same model held densely, in parts of any size."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.inference import transitions
from trellis.models import questions

from .makers import DENSE, FLAT, HIERARCHICAL, VOCABULARY, every_kind, every_kind_with_blocks, make_kind, random_ids

# Gaps at the beginning, at the end, side by side, throughout and not at all; and a row without tokens.
LENGTHS = torch.tensor([6, 2, 1, 5, 4, 0])
GAPS = {0: [0, 3, 4], 1: [1], 2: [0], 3: [], 4: [0, 1, 2, 3], 5: []}
MISSING = torch.tensor([[time in GAPS[row] for time in range(6)] for row in range(6)])


@pytest.fixture(params=["few at once", "many at once"])
def _at_once(request, monkeypatch):
    if request.param == "few at once":  # ten states left, into one block of 8 states or four of 2: never all there are
        monkeypatch.setattr(transitions, "FROM_AT_ONCE", 10)
        monkeypatch.setattr(transitions, "NUMBERS_AT_ONCE", 10 * 8)


def told(model, carried):
    """Padding and gaps hold any id, also ones that are no word's."""
    ids = random_ids(6, 6, VOCABULARY)
    ids[MISSING | (torch.arange(6) >= LENGTHS[:, None])] = 10**6
    state = None
    if carried:  # from a gap: every state carries belief
        before, gap = random_ids(6, 2, VOCABULARY, seed=5), torch.tensor([[False, True]]).expand(6, -1)
        _, state = model.score(before, missing_BT=gap)
    return {"ids_BT": ids, "state": state, "lengths_B": LENGTHS, "missing_BT": MISSING}


def assert_best_paths(paths, dense, about):
    """Those of the dense model, in its order; of paths of the same probability, which gaps make many, any."""
    k = paths.log_prob_BK.shape[1]
    want = dense.k_best(k=k + 1, **about)
    assert_close(paths.log_prob_BK, want.log_prob_BK[:, :k])
    apart = torch.nn.functional.pad(want.log_prob_BK.diff(dim=1).abs() > 1e-9, (1, 0), value=True)
    alone = (apart[:, :k] & apart[:, 1:]) | (paths.log_prob_BK == -torch.inf)
    assert torch.equal(paths.states_BKT[alone], want.states_BKT[:, :k][alone])
    for row, number in (~alone).nonzero().tolist():
        one = {name: None if given is None else given[row : row + 1] for name, given in about.items()}
        said = dense.score(**one, labels_BT=paths.states_BKT[row : row + 1, number])[0].sum()
        assert_close(said, paths.log_prob_BK[row, number], check_dtype=False)
        assert (paths.states_BKT[row] == paths.states_BKT[row, number]).all(1).sum() == 1


@every_kind_with_blocks
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.usefixtures("_at_once")
def test_every_question_is_answered_as_the_dense_model_answers(kind, carried):
    model = make_kind(**kind).eval()
    dense, about = model.dense(), told(model, carried)
    for found, want in zip(model.score(**about), dense.score(**about), strict=True):
        assert_close(found, want.detach(), rtol=1e-8, atol=1e-10)
    for question, place in (("filter", 1), ("smooth", 1)):
        found, want = getattr(model, question)(**about), getattr(dense, question)(**about)
        assert_close(found.log_prob_BT, want.log_prob_BT, rtol=1e-8, atol=1e-10)
        assert_close(found[place], want[place], rtol=1e-8, atol=1e-10)
        assert_close(found.state, want.state, rtol=1e-8, atol=1e-10)
        assert torch.equal(found.states_BTS[0, 0], torch.arange(model.config.states))
    for k in (1, 4):
        assert_best_paths(model.k_best(k=k, **about), dense, about)
    assert torch.equal(model.viterbi(**about).states_BT, dense.viterbi(**about).states_BT)
    assert_close(model.viterbi(**about).log_prob_B, dense.viterbi(**about).log_prob_B)
    assert_close(model.entropy(**about), dense.entropy(**about))


@pytest.mark.parametrize("carried", [False, True])
def test_beliefs_too_many_for_memory_are_asked_about_some_rows_at_a_time(carried, monkeypatch):
    model = make_kind().eval()
    about = told(model, carried)
    names = ("score", "filter", "smooth", "viterbi", "entropy")
    whole = [getattr(model, question)(**about) for question in names] + [model.k_best(k=3, **about)]
    monkeypatch.setattr(questions, "BELIEFS", 2 * 6 * model.config.states)
    parts = [getattr(model, question)(**about) for question in names] + [model.k_best(k=3, **about)]
    for found, want in zip(parts, whole, strict=True):
        assert type(found) is type(want)
        assert_close(found, want)


@every_kind
def test_missing_tokens_are_summed_over(kind):
    model = make_kind(**kind).eval()
    ids, missing = random_ids(2, 4, VOCABULARY), torch.zeros(2, 4, dtype=torch.bool)
    missing[0, 1] = missing[1, 3] = True
    found = model.score(ids, missing_BT=missing)[0].sum(1)
    for row, gap in ((0, 1), (1, 3)):
        filled = ids[row].repeat(VOCABULARY, 1)
        filled[:, gap] = torch.arange(VOCABULARY)
        total = model.score(filled)[0].sum(1).logsumexp(0)
        assert_close(found[row], total)


@pytest.mark.usefixtures("_at_once")
def test_more_paths_are_asked_for_than_there_are():
    model = make_kind(support="words").eval()
    ids, missing = torch.tensor([[3, 0]]), torch.tensor([[False, True]])
    paths, want = (asked.k_best(ids, 60, missing_BT=missing) for asked in (model, model.dense()))
    assert (paths.log_prob_BK > -torch.inf).sum() == 2 * 2 * VOCABULARY
    assert_close(paths.log_prob_BK, want.log_prob_BK)
    assert torch.equal(paths.states_BKT, want.states_BKT)


@pytest.mark.parametrize("support", ["brown", "uniform"])
@pytest.mark.usefixtures("_at_once")
def test_drawn_paths_have_the_posterior(support):
    model = make_kind(**FLAT["residual"], support=support).eval()
    ids, missing = random_ids(2, 4, VOCABULARY), torch.tensor([[False, True, True, False], [True, False, False, False]])
    lengths = torch.tensor([4, 3])
    seeded = torch.Generator().manual_seed(0)
    drawn = model.sample_posterior(ids, 4000, None, lengths, missing, generator=seeded)
    want = model.dense().smooth(ids, None, lengths, missing).posterior_BTS
    assert (drawn[1, :, 3] == -1).all()
    for row, length in enumerate(lengths):
        share = torch.nn.functional.one_hot(drawn[row, :, :length], model.config.states).double().mean(0)
        assert_close(share, want[row, :length], rtol=0, atol=0.03)
    pair = (drawn[0, :, 1] == drawn[0, 0, 1]) & (drawn[0, :, 2] == drawn[0, 0, 2])  # neighbours in gaps depend
    paths = model.dense().sample_posterior(ids[:1], 4000, missing_BT=missing[:1], generator=torch.Generator())
    same = (paths[0, :, 1] == drawn[0, 0, 1]) & (paths[0, :, 2] == drawn[0, 0, 2])
    assert_close(pair.double().mean(), same.double().mean(), rtol=0, atol=0.03)


def test_answers_have_the_model_s_precision():
    model = make_kind(torch.float32).eval()
    about = told(model, carried=False)
    dense = make_kind().eval().dense()
    log_prob, state = model.score(**about)
    assert log_prob.dtype == state.dtype == model.filter(**about).belief_BTS.dtype == torch.float32
    assert_close(log_prob.double(), dense.score(**about)[0].detach(), rtol=1e-5, atol=1e-6)
    assert model.entropy(**about).dtype == torch.float64


@pytest.mark.parametrize("kind", [{}, DENSE["dense residual"]], ids=["blocks", "dense"])
def test_a_batch_without_rows_or_tokens_is_answered(kind):
    model = make_kind(**kind).eval()
    for shape in ((0, 3), (2, 0)):
        ids, missing = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool)
        log_prob, state = model.score(ids, missing_BT=missing)
        assert (log_prob.shape, state.shape) == (shape, (shape[0], model.config.states))
        assert_close(state.detach(), model.dense().score(ids, missing_BT=missing)[1].detach())
        assert model.k_best(ids, 2, missing_BT=missing).states_BKT.shape == (shape[0], 2, shape[1])
        assert model.entropy(ids, missing_BT=missing).tolist() == [0.0] * shape[0]


def improbable(nats, dtype=torch.float64):
    """A scalar model that goes from the states of word 0 to those of word 1 once in exp(nats) times."""
    model = make_kind(dtype, **HIERARCHICAL["hierarchical scalar"] | {"support": "words"}).eval()
    with torch.no_grad():
        model.transition.blocks[:2, 1] = -nats
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nats", [50.0, 300.0, 650.0, torch.inf])
def test_what_float32_would_lose_is_told(nats, dtype):
    """Also of a text beside it that has no gaps; what cannot be has probability zero and no posterior."""
    ids, missing = torch.tensor([[4, 0, 1, 3], [4, 0, 1, 3], [3, 3, 0, 1]]), torch.zeros(3, 4, dtype=torch.bool)
    missing[0, 0] = missing[2, 1] = True
    model, dense, about = improbable(nats, dtype), improbable(nats).dense(), {"missing_BT": missing}
    near = {"rtol": 1e-5, "atol": 1e-5}
    log_prob, state = model.score(ids, **about)
    want, want_state = dense.score(ids, **about)
    assert log_prob[0, 2] <= -nats + 10
    assert_close(log_prob.double(), want.detach(), **near)
    assert_close(state.double(), want_state.detach(), **near)
    assert_close(model.filter(ids, **about).belief_BTS.double(), dense.filter(ids, **about).belief_BTS, **near)
    assert_close(model.smooth(ids, **about).posterior_BTS.double(), dense.smooth(ids, **about).posterior_BTS, **near)
    assert_close(model.viterbi(ids, **about).log_prob_B.double(), dense.viterbi(ids, **about).log_prob_B, **near)
    assert_close(model.entropy(ids, **about), dense.entropy(ids, **about), **near)
    drawn = model.sample_posterior(ids, 50, missing_BT=missing, generator=torch.Generator().manual_seed(0))
    if nats < torch.inf:
        assert (drawn[0, :, 1:] // 2 == torch.tensor([0, 1, 3])).all()
    else:
        assert (drawn == -1).all()


def test_a_text_without_gaps_is_scored_as_ever_beside_one_that_has_some():
    """At 2,000 nats, which no probability can hold."""
    model, ids = improbable(2000.0), torch.tensor([[4, 0, 1, 3], [4, 0, 1, 3]])
    missing = torch.tensor([[True, False, False, False], [False] * 4])
    alone, beside = model.score(ids[1:])[0][0], model.score(ids, missing_BT=missing)[0]
    assert alone[2] < -1990
    assert_close(beside[1], alone.detach())
    assert -2020 < beside[0, 2] < -1990


def test_gaps_do_not_depend_on_what_is_learnt():
    """No dropout, no gradient, and in half precision next to the same."""
    model = make_kind(torch.float32, dropout=0.5)
    about = told(model.eval(), carried=False)
    want = model.score(**about)[0]
    found = model.train().score(**about)[0]
    assert torch.equal(found, want)
    assert not found.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(model.eval().score(**about)[0], want, rtol=0.05, atol=0.05)


def test_a_length_past_the_last_token_is_refused():
    model, ids = make_kind().eval(), random_ids(2, 4, VOCABULARY)
    for told in ({}, {"missing_BT": torch.ones(2, 4, dtype=torch.bool)}):
        with pytest.raises(TrellisError, match="a length of 5 is more than the 4 tokens"):
            model.score(ids, lengths_B=torch.tensor([4, 5]), **told)


def test_a_belief_spread_by_a_gap_goes_on():
    model = make_kind().eval()
    ids, missing = random_ids(1, 5, VOCABULARY), torch.tensor([[False, False, False, True, False]])
    whole = model.score(ids, missing_BT=missing)[0]
    _, state = model.score(ids[:, :4], missing_BT=missing[:, :4])
    assert_close(model.score(ids[:, 4:], state)[0][0, 0], whole[0, 4])


@every_kind
def test_a_belief_that_a_gap_spread_is_gone_on_from(kind):
    """Piece by piece or, where gradients are wanted, at once; and a belief of nothing, after what cannot be."""
    model = make_kind(**kind).eval()
    dense, ids = model.dense(), random_ids(3, 4, VOCABULARY)
    gap = torch.tensor([[False, True]]).expand(3, -1)
    state = model.score(random_ids(3, 2, VOCABULARY, seed=5), missing_BT=gap)[1].detach()
    assert (state > 0).all()
    state[2] = 0.0
    want, want_state = dense.score(ids, state)
    assert (want[2] == -torch.inf).all()
    learnt = model.score(ids, state)
    with torch.no_grad():
        asked = model.score(ids, state)
    missing = torch.zeros_like(ids, dtype=torch.bool)
    for found, after in (learnt, asked, model.score(ids, state, missing_BT=missing)):
        assert_close(found.detach(), want.detach())
        assert_close(after.detach(), want_state.detach())
    assert_close(model.next_token(state), dense.next_token(state))
