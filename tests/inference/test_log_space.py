"""Rows in float64 log space, and what underflows in float32 and is done again there."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from trellis import ops
from trellis.errors import TrellisError
from trellis.inference import (
    BlockPairs,
    Chain,
    entropy,
    filter,
    log_space,
    sample_posterior,
    score,
    smooth,
    viterbi,
)
from trellis.inference.chain import log_carried
from trellis.inference.recursion import walk

from .. import reference
from .blocked_models import (
    EXAMPLES,
    KINDS,
    Case,
    an_improbable_beginning,
    an_improbable_case,
    an_improbable_hmm,
    cases,
    improbable_cases,
    random_blocked_hmm,
    spread,
    spread_steps,
)
from .frequencies import assert_frequencies, code
from .models import InPieces, counts, rows_of

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def rows_in_log_space(chain):
    """Every row of a chain as log space takes it, with the states of its tokens."""
    columns = chain.columns()
    for b, length in enumerate(chain.lengths().tolist()):
        yield log_space.row_of(chain, *columns, b, length), chain.states()[b, :length]


def steps_of(found, states_TS, states):
    """Expected counts of all steps [from, to], from those of the pieces [to, from]."""
    total_SS = torch.zeros(states, states, dtype=torch.float64)
    for t, piece, count_CN in found.steps():
        from_N, to_C = states_TS[t - 1][piece.from_], states_TS[t][piece.to]
        total_SS[from_N[:, None], to_C] += count_CN.T
    return total_SS


@given(cases())
@settings(max_examples=EXAMPLES)
def test_rows_of_every_kind_are_filtered_as_by_the_reference(case):
    """These are what underflowed rows are sent away with."""
    truth, states = [reference.filter(*row) for row in case.rows()], len(case.hmm.log_start_S)
    for kind, chain in case.chains():
        for (row, states_TS), wanted in zip(rows_in_log_space(chain), truth, strict=True):
            log_prob_T, log_belief_TS = log_space.filtered(row)
            assert_close(log_prob_T, wanted.log_prob_T, **EXACT, msg=kind)
            assert_close(spread(states, states_TS, log_belief_TS.exp()), wanted.log_belief_TS.exp(), **EXACT, msg=kind)


@given(cases())
@settings(max_examples=EXAMPLES)
def test_counts_and_entropies_of_every_kind_are_those_of_the_reference(case):
    truth, states = [reference.expected_counts(*row) for row in case.rows()], len(case.hmm.log_start_S)
    entropies = [reference.posterior_entropy(*row) for row in case.rows()]
    for kind, chain in case.chains():
        for (row, states_TS), wanted, uncertainty in zip(rows_in_log_space(chain), truth, entropies, strict=True):
            assert_close(log_space.entropy(row), uncertainty, **EXACT, msg=kind)
            found = log_space.counts(row, torch.tensor(3.0, dtype=torch.float64))
            assert_close(spread(states, states_TS, found.posterior_TS), 3 * wanted.posterior_TS, **EXACT, msg=kind)
            assert_close(steps_of(found, states_TS, states), 3 * wanted.transition, **EXACT, msg=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_rows_come_as_often_as_their_posterior(kind):
    case = an_improbable_case(60.0)
    generator = torch.Generator().manual_seed(0)
    for (row, states_TS), truth in zip(rows_in_log_space(case.chain(kind)), case.rows(), strict=True):
        places_NT = log_space.draw_paths(row, 5_000, generator)
        states_NT = states_TS.expand(5_000, -1, -1).gather(2, places_NT[..., None]).squeeze(-1)
        assert_frequencies(code(states_NT, 4), reference.enumerate_paths(*truth).weights())


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
def test_what_underflows_in_float32_is_done_again_exactly(surprise, native, in_pieces):
    """Two states that hardly ever switch, and a token that only the unlikely one explains."""
    start = torch.tensor([0.0, -surprise])
    transition = torch.tensor([[0.0, -surprise], [-surprise, 0.0]])
    log_emission = torch.zeros(2, 5, 2)
    log_emission[0, 2:4, 0] = -math.inf
    inputs = [x.clone().requires_grad_() for x in (start, transition, log_emission)]
    chain = Chain.dense(*inputs)
    if in_pieces:
        chain = chain._replace(transition=InPieces(transition))
    with ops.using(ops.status().level if native else None):
        log_prob, final = score(chain)
        (2.0 * log_prob.sum()).backward()
    rows = list(rows_of(start, transition, log_emission, torch.tensor([5, 5]), None))
    counts = [reference.expected_counts(*row) for row in rows]
    for b in range(2):
        assert_close(log_prob[b].double(), counts[b].log_prob_T, rtol=1e-5, atol=1e-6)
        assert_close(inputs[2].grad[b].double(), 2 * counts[b].posterior_TS, rtol=1e-4, atol=1e-6)
    assert_close(inputs[0].grad.double(), 2 * (counts[0].start_S + counts[1].start_S), rtol=1e-4, atol=1e-6)
    if not in_pieces:  # which has no tensors to learn
        assert_close(inputs[1].grad.double(), 2 * (counts[0].transition + counts[1].transition))
    assert_close(log_carried(final[0]), reference.filter(*rows[0]).log_belief_TS[-1], rtol=1e-5, atol=1e-6)


def test_a_rescued_row_refuses_weights_that_differ_by_token():
    transition = torch.tensor([[0.0, -2000.0], [-2000.0, 0.0]], requires_grad=True)
    log_emission = torch.zeros(1, 2, 2)
    log_emission[0, 1, 0] = -math.inf
    log_prob, _ = score(Chain.dense(torch.tensor([0.0, -math.inf]), transition, log_emission))
    with pytest.raises(TrellisError, match="weigh whole sequences"):
        (log_prob * torch.tensor([1.0, 2.0])).sum().backward()


def test_gradients_of_an_improbable_row_through_its_beliefs_are_refused():
    log_emission = torch.tensor([[[0.0, 0.0], [-math.inf, 0.0]]])
    belief = torch.tensor([[1.0, 0.0]], requires_grad=True)
    for surprise in (200.0, 2000.0):
        steps = torch.tensor([[0.0, -surprise], [-surprise, 0.0]])
        with pytest.raises(TrellisError, match="detach the state"):
            score(Chain.dense(torch.zeros(2), steps, log_emission, belief_BS=belief))[0].sum().backward()
    _, final = score(Chain.dense(torch.zeros(2), steps.requires_grad_(), log_emission, belief_BS=belief.detach()))
    with pytest.raises(TrellisError, match="detach the state"):
        final[0, 0].backward()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_what_float64_holds_are_exact_by_any_weights(kind):
    """Of single tokens, and of what is carried on: probabilities, and logarithms of those below any in float32."""
    case = an_improbable_case(400.0)
    chain, exact = case.chain(kind), Case(case.hmm.to(torch.float64), *case[1:]).chain(kind)
    generator = torch.Generator().manual_seed(1)
    weight_BT, weight_BS = torch.randn(3, 5, generator=generator), torch.randn(3, 4, generator=generator)
    found, logarithms_BS = [], score(chain)[1] < 0
    assert logarithms_BS.any()
    for asked in (chain, exact):
        leaf_BS = asked.log_first_BS.detach().clone().requires_grad_()
        log_prob_BT, state_BS = score(asked._replace(log_first_BS=leaf_BS))
        if asked is exact:
            state_BS = torch.where(logarithms_BS, torch.where(logarithms_BS, state_BS, 1.0).log(), state_BS)
        total = (log_prob_BT * weight_BT).sum() + (state_BS * weight_BS).sum()
        found.append(torch.autograd.grad(total, leaf_BS)[0].double())
    assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
@pytest.mark.parametrize("make", [an_improbable_case, an_improbable_beginning])
def test_what_underflows_is_done_again_exactly_in_every_kind(make, surprise, kind):
    case = make(surprise)
    chain, truth = case.chain(kind), [reference.expected_counts(*row) for row in case.rows()]
    assert all(count.log_prob_T.isfinite().all() for count in truth)
    found, steps_SS = smooth(chain), torch.zeros(4, 4, dtype=torch.float64)
    posterior_BTS = spread(4, found.states_BTS, found.posterior_BTS)
    for b, (count, length) in enumerate(zip(truth, case.lengths_B.tolist(), strict=True)):
        assert_close(found.log_prob_BT[b, :length].double(), count.log_prob_T, rtol=1e-5, atol=1e-5)
        assert_close(posterior_BTS[b, :length].double(), count.posterior_TS, rtol=1e-4, atol=1e-6)
    for row, states_TS in rows_in_log_space(chain):
        steps_SS += steps_of(log_space.counts(row, torch.tensor(1.0)), states_TS, 4)
    assert_close(steps_SS, sum(count.transition for count in truth), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surprise", [60.0, 400.0])
def test_gradients_of_what_underflows_are_counts_a_probability(surprise, kind):
    """A probability that float32 has as zero has no gradient, and the others keep theirs."""
    case = an_improbable_case(surprise)
    chain, truth = case.chain(kind), smooth(case.chain(kind))
    steps_SS = 2 * sum(reference.expected_counts(*row).transition for row in case.rows())
    first_BS, columns_NS, *by_tensors = counts(chain, torch.full((3, 5), 2.0))
    if isinstance(chain.transition, BlockPairs):
        into_PJK = chain.transition.into_PJK
        found_SS = spread_steps(case, chain, by_tensors[0] * into_PJK).double()
        assert_close(found_SS, torch.where(case.hmm.log_transition_SS.exp() > 0, steps_SS, 0.0), rtol=1e-4, atol=1e-6)
        assert surprise == 60.0 or not found_SS[case.hmm.log_transition_SS < -100].any()
    elif by_tensors:
        assert_close(by_tensors[0].double(), steps_SS, rtol=1e-4, atol=1e-6)
    assert_close(first_BS, 2 * truth.posterior_BTS[:, 0])
    summed_NS = torch.zeros_like(columns_NS)
    summed_NS.index_add_(0, chain.index_BT.flatten(), 2 * truth.posterior_BTS.flatten(0, 1))
    assert_close(columns_NS, summed_NS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_improbable_row_refuses_gradients_that_would_be_wrong(kind):
    chain = an_improbable_case(5000.0).chain(kind)
    log_prob_BT, final_BS = score(chain._replace(log_first_BS=chain.log_first_BS.detach().clone().requires_grad_()))
    with pytest.raises(TrellisError, match="weigh whole sequences"):
        log_prob_BT[0, :2].sum().backward(retain_graph=True)
    with pytest.raises(TrellisError, match="detach the state"):
        final_BS.sum().backward()


@given(improbable_cases())
@settings(max_examples=EXAMPLES)
def test_whatever_float32_cannot_hold_is_answered_as_by_the_reference(case):
    """With rows that become impossible only after they became improbable, and beliefs from which a step is lost."""
    truth = [reference.expected_counts(*row) for row in case.rows()]
    beliefs = [reference.filter(*row).log_belief_TS.exp() for row in case.rows()]
    for kind, chain in case.chains():
        filtered, smoothed = filter(chain), smooth(chain)
        belief_BTS = spread(4, filtered.states_BTS, filtered.belief_BTS)
        posterior_BTS = spread(4, smoothed.states_BTS, smoothed.posterior_BTS)
        log_prob_BT = score(chain)[0]
        for b, (count, belief_TS) in enumerate(zip(truth, beliefs, strict=True)):
            length = len(belief_TS)
            for found_BT in (filtered.log_prob_BT, smoothed.log_prob_BT, log_prob_BT):
                assert_close(found_BT[b, :length].double(), count.log_prob_T, rtol=1e-5, atol=1e-5, msg=kind)
            assert_close(belief_BTS[b, :length].double(), belief_TS, rtol=1e-4, atol=1e-6, msg=kind)
            assert_close(posterior_BTS[b, :length].double(), count.posterior_TS, rtol=1e-4, atol=1e-6, msg=kind)


@given(improbable_cases())
@settings(max_examples=EXAMPLES)
def test_gradients_of_whatever_float32_cannot_hold_are_expected_counts(case):
    """Of possible rows; an impossible one has none, even if it became improbable before."""
    truth = [reference.expected_counts(*row) for row in case.rows()]
    steps_SS, first = sum(count.transition for count in truth), [count.posterior_TS[:1] for count in truth]
    for kind, chain in case.chains():
        first_BS, columns_NS, *by_tensors = counts(chain)
        posterior = smooth(chain).posterior_BTS
        summed_NS = torch.zeros_like(columns_NS).index_add_(0, chain.index_BT.flatten(), posterior.flatten(0, 1))
        assert_close(columns_NS, summed_NS, rtol=1e-4, atol=1e-6, msg=kind)
        for b, posterior_1S in enumerate(first):
            states_S = chain.states()[b, :1]
            found_1S = spread(4, states_S, first_BS[b : b + 1]).double()
            assert_close(found_1S[: len(posterior_1S)], posterior_1S, rtol=1e-4, atol=1e-6, msg=kind)
        if kind == "dense":
            assert_close(by_tensors[0].double(), steps_SS, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_that_cannot_be_made_are_found_where_they_break(kind, dtype):
    """Nothing leads from the first block to the second: it is the transition that says so, not a word."""
    hmm = random_blocked_hmm(2, 2, 4, seed=10)._replace(block_V=torch.tensor([0, 0, 1, 1]))
    hmm.log_transition_SS[hmm.states_MK[0][:, None], hmm.states_MK[1]] = -math.inf
    chain = Case(hmm.to(dtype), torch.tensor([[2, 3, 0, 1, 2, 3], [3, 2, 2, 0, 0, 1]])).chain(kind)
    found = filter(chain)
    assert torch.equal(found.log_prob_BT[0] == -math.inf, torch.arange(6) >= 4)
    assert found.log_prob_BT[1].isfinite().all()
    # not taken for improbable: such a row would refuse these weights
    assert all(grad.isfinite().all() for grad in counts(chain, torch.rand(2, 6, dtype=dtype)))
    assert viterbi(chain).log_prob_B.isfinite().tolist() == [False, True]
    assert entropy(chain).isfinite().tolist() == [False, True]
    assert (sample_posterior(chain, 3)[0] == -1).all()
    done = walk(chain, *chain.columns())
    assert not done.done_again()


@pytest.mark.parametrize("kind", KINDS)
def test_all_weights_of_an_impossible_row_that_was_improbable_before_are_finite(kind):
    """The row underflows at its second token, and is impossible from its fourth on."""
    hmm = an_improbable_hmm(60.0)
    hmm.log_word_VS[4] = -math.inf
    case = Case(hmm, torch.tensor([[0, 2, 5, 4, 1], [3, 1, 3, 0, 0]]))
    chain = case.chain(kind)
    found = smooth(chain)
    assert torch.equal(found.log_prob_BT[0] == -math.inf, torch.arange(5) >= 3)
    assert not found.posterior_BTS[0].any()
    assert_close(found.posterior_BTS[1].sum(-1), torch.ones(5))
    for gradient in counts(chain, torch.ones(2, 5)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["dense", "blocks"])
@pytest.mark.parametrize("surprise", [60.0, 400.0])
def test_labels_that_float32_has_no_probability_for_are_scored(surprise, kind):
    case = an_improbable_case(surprise)
    case = case._replace(labels_BT=torch.tensor([[0, 3, 1, 3, 1], [2, 0, 2, 0, 0], [0, 2, 3, -1, -1]]))
    log_prob_BT, _ = score(case.chain(kind))
    for b, row in enumerate(case.rows()):
        truth_T = reference.filter(*row).log_prob_T
        assert truth_T.isfinite().all()
        assert_close(log_prob_BT[b, : len(truth_T)].double(), truth_T, rtol=1e-5, atol=1e-5)
