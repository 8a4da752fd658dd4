import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis import ops
from trellis.errors import TrellisError
from trellis.inference import Chain
from trellis.inference.recursion import Rows, walk, walk_back
from trellis.ops.evidence import Evidence, scaled

from .. import reference
from .blocked_models import EXAMPLES, KINDS, a_large_case, an_improbable_case, cases, spread
from .models import random_hmm, random_log_emission

EXACT = {"rtol": 1e-9, "atol": 1e-12}


@given(st.lists(st.integers(0, 6), max_size=5))
def test_rows_are_sorted_longest_first_and_back_again(lengths):
    lengths_B = torch.tensor(lengths, dtype=torch.int64)
    rows = Rows.of(lengths_B, len(lengths), 6)
    numbers_B = torch.arange(len(lengths))
    assert torch.equal(rows.unsort(rows.sort(numbers_B)), numbers_B)
    table = torch.rand(3, len(lengths))
    assert torch.equal(rows.unsort(rows.sort(table, 1), 1), table)
    in_order = rows.sort(lengths_B).tolist()
    assert in_order == sorted(lengths, reverse=True)
    for row, length in enumerate(in_order):
        assert rows.length(row) == length
        assert lengths[rows.callers(row)] == length
    assert rows.running == [sum(length > t for length in lengths) for t in range(6)]


def test_full_rows_need_no_order():
    for lengths_B in (None, torch.tensor([3, 3])):
        rows = Rows.of(lengths_B, 2, 3)
        assert rows == (None, [2, 2, 2])
        assert rows.callers(1) == 1
        assert rows.length(1) == 3
    with pytest.raises(TrellisError, match="more than the 3 tokens"):
        Rows.of(torch.tensor([4, 1]), 2, 3)


def test_evidence_is_relative_to_the_state_that_explains_a_word_best():
    log_columns_NS = torch.tensor([[-800.0, -801.0, -math.inf], [-math.inf] * 3, [-1.0, 2.0, 0.0]])
    found = Evidence(*scaled(log_columns_NS), torch.zeros(1, 1, dtype=torch.int64))
    assert_close(found.log_peak_N, torch.tensor([-800.0, 0.0, 2.0]))
    assert_close(found.likelihood_NS.amax(1), torch.tensor([1.0, 0.0, 1.0]))
    assert_close(found.likelihood_NS[0], torch.tensor([1.0, math.exp(-1.0), 0.0]))


@given(cases())
@settings(max_examples=EXAMPLES)
def test_a_walk_is_time_major_longest_row_first_and_normalised(case):
    truth = [reference.filter(*row) for row in case.rows()]
    for kind, chain in case.chains():
        done = walk(chain, *chain.columns())
        for row in range(len(truth)):
            number = done.rows.callers(row)
            log_prob_T, log_belief_TS = truth[number]
            length = done.rows.length(row)
            assert length == len(log_prob_T)
            assert_close(done.log_prob_TB[:length, row], log_prob_T, **EXACT, msg=kind)
            belief_TS = spread(len(case.hmm.log_start_S), chain.states()[number], done.belief_TBS[:, row])
            assert_close(belief_TS[:length], log_belief_TS.exp(), **EXACT, msg=kind)
            assert not done.belief_TBS[length:, row].any(), kind
            assert not done.log_prob_TB[length:, row].any(), kind
            last = done.belief_TBS[length - 1, row] if length else torch.zeros_like(done.final_BS[row])
            assert torch.equal(done.final_BS[row], last), kind
            assert_close(done.first_BS[row], chain.log_first_BS[number].exp(), msg=kind)
        assert not done.done_again()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
def test_only_rows_too_improbable_are_done_again(kind, native, surprise):
    """In longest-first order the rows are 0, 1, 2; of these, 0 and 2 are improbable.

    Row 1 does not need the states it has no belief in, but may yet: only what none leads to is never done again.
    """
    chain = an_improbable_case(surprise).chain(kind)
    with ops.using(ops.status().level if native else None):
        done = walk(chain, *chain.columns())
    assert done.done_again() >= {0, 2}
    assert done.again.rows_N.tolist() == sorted(done.done_again())
    assert sorted(done.rescued) == ([] if surprise < 700 else [0, 1, 2])
    for row, asked in done.rescued.items():
        assert asked.number == row
        assert asked.length == [5, 5, 3][row]


@pytest.mark.parametrize("kind", KINDS)
def test_an_impossible_row_is_not_done_again(kind):
    case = a_large_case()
    case.hmm.log_word_VS[case.tokens_BT[0, 20]] = -math.inf
    done = walk(case.chain(kind), *case.chain(kind).columns())
    assert done.log_prob_TB.isinf().any()
    assert not done.done_again()


def test_the_posterior_alone_needs_no_gradient_by_the_transition():
    chain = a_large_case().dense()
    done = walk(chain, *chain.columns())
    weight_TB = torch.ones_like(done.log_prob_TB)
    whole, alone = walk_back(done, weight_TB), walk_back(done, weight_TB, posterior_only=True)
    assert torch.equal(whole.posterior_TBS, alone.posterior_TBS)
    assert torch.equal(whole.log_first_BS, alone.log_first_BS)
    assert len(whole.transition) == 1
    assert alone.transition == ()


def test_the_walk_back_is_the_vector_jacobian_product_of_the_walk():
    """With a weight of its own on each token and on each number of the final beliefs."""
    start, transition = random_hmm(3, seed=4)
    log_emission_BTS = random_log_emission(2, 5, 3, seed=4)
    chain = Chain.dense(start, transition, log_emission_BTS, torch.tensor([3, 5]))
    done = walk(chain, *chain.columns())
    generator = torch.Generator().manual_seed(4)
    weight_TB = torch.randn(5, 2, dtype=torch.float64, generator=generator)
    weight_BS = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    found = walk_back(done, weight_TB, weight_BS)
    leaves = [x.clone().requires_grad_() for x in (start, transition, log_emission_BTS)]
    total = 0.0
    for row, number in enumerate([1, 0]):
        length = done.rows.length(row)
        filtered = reference.filter(leaves[0], leaves[1], leaves[2][number, :length])
        total = total + filtered.log_prob_T @ weight_TB[:length, row]
        total = total + filtered.log_belief_TS[-1].exp() @ weight_BS[row]
    first, matrix, emission = torch.autograd.grad(total, leaves)
    assert_close(found.log_first_BS.sum(0), first)
    assert_close(found.transition[0], matrix)
    assert_close(done.rows.unsort(found.posterior_TBS, 1).transpose(0, 1), emission)
