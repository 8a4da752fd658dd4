import math

import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.inference import Chain
from trellis.inference.chain import NOT_BEGUN, check_lengths, empty_rows_keep, log_belief

from .. import reference
from .blocked_models import EXAMPLES, a_large_case, cases, soiled
from .models import random_belief, random_hmm, random_log_emission


def a_chain(belief=False, dtype=torch.float64):
    model = (x.to(dtype) for x in (*random_hmm(3, seed=1), random_log_emission(2, 4, 3, seed=1)))
    return Chain.dense(*model, torch.tensor([4, 2]), random_belief(2, 3, seed=1).to(dtype) if belief else None)


def test_every_token_of_tables_has_a_column_of_its_own():
    log_emission_BTS = random_log_emission(2, 4, 3, seed=1)
    chain = a_chain()
    assert chain.shape == (2, 4, 3)
    log_columns_NS, index_BT = chain.columns()
    assert torch.equal(log_columns_NS[index_BT], log_emission_BTS)
    assert torch.equal(chain.states(), torch.arange(3).expand(2, 4, -1))
    assert chain.lengths().tolist() == [4, 2]
    assert chain._replace(lengths_B=None).lengths().tolist() == [4, 4]


def test_an_index_says_which_column_each_token_takes():
    start, transition = random_hmm(3, seed=1)
    columns_NS, index_BT = random_log_emission(1, 2, 3, seed=1)[0], torch.tensor([[1, 0, 1, 1]])
    chain = Chain.dense(start, transition, columns_NS, index_BT=index_BT)
    assert chain.shape == (1, 4, 3)
    assert chain.columns()[0] is columns_NS
    assert chain.columns()[1] is index_BT


def test_the_first_state_is_drawn_from_the_start_or_one_step_on_from_the_belief():
    start, transition = random_hmm(3, seed=1)
    assert torch.equal(a_chain().log_first_BS, start.expand(2, -1))
    chain, belief_BS = a_chain(belief=True), random_belief(2, 3, seed=1)
    assert_close(chain.log_first_BS.exp(), belief_BS @ transition.exp())
    for row in range(2):
        assert_close(chain.log_first(row), reference.first_state(start, transition, belief_BS[row].log()))


def test_the_exact_first_state_is_in_float64_where_float32_lost_it():
    log_transition_SS = torch.tensor([[-0.1, -200.0, -90.0], [0.0, -1.0, -torch.inf], [0.0, 0.0, 0.0]])
    belief_BS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    log_emission_BTS = torch.zeros(3, 2, 3)
    chain = Chain.dense(torch.zeros(3), log_transition_SS, log_emission_BTS, belief_BS=belief_BS)
    truth = [reference.next_state(belief_S.double().log(), log_transition_SS) for belief_S in belief_BS]
    assert chain.exact_first().dtype == torch.float64
    assert_close(chain.exact_first(), torch.stack(truth), rtol=1e-6, atol=1e-6)
    assert_close(a_chain().exact_first(), a_chain().log_first_BS)
    assert_close(a_chain(dtype=torch.float32).exact_first(), a_chain().log_first_BS, rtol=1e-6, atol=1e-6)


def test_rows_without_tokens_carry_on_what_they_began_with():
    before_BS, final_BS = random_belief(2, 3, seed=1), torch.rand(2, 3, dtype=torch.float64)
    carry = empty_rows_keep(before_BS, torch.tensor([3, 0]), 4)
    assert torch.equal(carry(final_BS), torch.stack([final_BS[0], before_BS[1]]))
    assert torch.equal(empty_rows_keep(before_BS, None, 4)(final_BS), final_BS)
    assert torch.equal(empty_rows_keep(before_BS, None, 0)(final_BS), before_BS)
    fresh_BS = torch.full_like(final_BS, NOT_BEGUN)
    carry = empty_rows_keep(None, torch.tensor([3, 0]), 4)
    assert torch.equal(carry(final_BS), torch.stack([final_BS[0], fresh_BS[1]]))
    assert torch.equal(empty_rows_keep(None, None, 0)(final_BS), fresh_BS)


def test_rows_that_have_not_begun_start_and_the_others_are_pushed():
    start, transition = random_hmm(3, seed=1)
    belief_BS, log_emission_BTS = random_belief(3, 3, seed=1), random_log_emission(3, 4, 3, seed=1)
    pushed_BS = Chain.dense(start, transition, log_emission_BTS, belief_BS=belief_BS).log_first_BS
    belief_BS[1] = NOT_BEGUN
    chain = Chain.dense(start, transition, log_emission_BTS, belief_BS=belief_BS)
    want_BS = torch.stack([pushed_BS[0], start, pushed_BS[2]])
    assert_close(chain.log_first_BS, want_BS)
    assert_close(torch.stack([chain.log_first(row) for row in range(3)]), want_BS)


def test_a_token_of_given_state_has_that_state_alone():
    chain = a_chain()._replace(labels_BT=torch.tensor([[-1, 2, -1, 0], [1, -1, -1, -1]]))
    plain_BTS = chain._replace(labels_BT=None).columns()[0].view(2, 4, 3)
    log_columns_NS, index_BT = chain.columns()
    found_BTS = log_columns_NS[index_BT]
    for b in range(2):
        for t in range(4):
            label, wanted_S = int(chain.labels_BT[b, t]), plain_BTS[b, t].clone()
            if label >= 0:
                wanted_S[torch.arange(3) != label] = -math.inf
            assert torch.equal(found_BTS[b, t], wanted_S)


def test_words_given_the_same_state_share_a_column_and_its_gradient():
    columns_NS = random_log_emission(1, 2, 3, seed=1)[0].requires_grad_()
    start, transition = random_hmm(3, seed=1)
    chain = Chain.dense(start, transition, columns_NS, index_BT=torch.tensor([[1, 0, 1, 1]]))
    clamped_NS, index_BT = chain._replace(labels_BT=torch.tensor([[2, 2, 2, -1]])).columns()
    assert len(clamped_NS) == 4
    assert index_BT[0, 0] == index_BT[0, 2]
    clamped_NS[index_BT[0, :3], 2].sum().backward()
    assert_close(columns_NS.grad, torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]], dtype=torch.float64))


def test_places_are_named_by_the_states_of_their_tokens():
    case = a_large_case()
    chain = case.blocks()
    places_BNT = torch.randint(-1, 8, (7, 2, 40), generator=torch.Generator().manual_seed(1))
    named_BNT = chain.named(places_BNT)
    for b, n, t in [(0, 0, 0), (0, 1, 39), (4, 0, 17), (6, 1, 3)]:
        place, states_K = int(places_BNT[b, n, t]), case.hmm.states_MK[case.hmm.block_V[case.tokens_BT[b, t]]]
        assert named_BNT[b, n, t] == (states_K[place] if place >= 0 else -1)
        assert torch.equal(chain.states()[b, t], states_K)
    assert torch.equal(named_BNT < 0, places_BNT < 0)
    assert case.dense().named(places_BNT) is places_BNT


@given(cases())
@settings(max_examples=EXAMPLES)
def test_chains_of_every_kind_hold_the_same_evidence(case):
    """What a chain says of first states and tokens is what the dense one does."""
    dense = case._replace(soiled=False).dense()
    plain_BTS = dense.log_columns_NS.view(*case.tokens_BT.shape, -1)
    for kind, chain in case._replace(soiled=False).chains():
        states_BTS, (log_columns_NS, index_BT) = chain.states(), chain.columns()
        for b, length in enumerate(case.lengths_B.tolist()):
            for t in range(length):
                assert torch.equal(log_columns_NS[index_BT[b, t]], plain_BTS[b, t, states_BTS[b, t]]), kind
            if length:
                assert_close(chain.log_first_BS[b], dense.log_first_BS[b, states_BTS[b, 0]], msg=kind)


def test_a_soiled_chain_is_soiled():
    """What hostile padding is tested with."""
    chain = soiled(a_large_case().blocks())
    assert chain.log_columns_NS[chain.index_BT[1, 1:]].isnan().all()
    assert chain.transition.into_PJK[chain.transition.pair_BT[1, 1:]].isnan().all()


def test_lengths_must_be_of_the_row():
    check_lengths(None, 3)
    check_lengths(torch.tensor([], dtype=torch.int64), 3)
    check_lengths(torch.tensor([0, 3]), 3)
    with pytest.raises(TrellisError, match="a length of 4 is more than the 3 tokens"):
        check_lengths(torch.tensor([4, 1]), 3)
    with pytest.raises(TrellisError, match="a length of -1 is no length"):
        check_lengths(torch.tensor([3, -1]), 3)


def test_a_state_of_no_belief_has_no_gradient_instead_of_an_infinite_one():
    belief_BS = torch.tensor([[0.5, 0.0, 0.5]], requires_grad=True)
    log_BS = log_belief(belief_BS, belief_BS.detach())
    assert log_BS[0, 1] == -math.inf
    log_BS.backward(torch.tensor([[1.0, 1.0, 3.0]]))
    assert_close(belief_BS.grad, torch.tensor([[2.0, 0.0, 6.0]]))


def test_a_gradient_lost_with_a_belief_that_wants_it_is_refused():
    belief_BS = torch.tensor([[0.5, 0.0, 0.5]], requires_grad=True)
    with pytest.raises(TrellisError, match="detach the state"):
        log_belief(belief_BS, belief_BS).backward(torch.tensor([[1.0, 1.0, 3.0]]))
    log_belief(belief_BS, belief_BS).backward(torch.tensor([[1.0, 0.0, 3.0]]))
    assert_close(belief_BS.grad, torch.tensor([[2.0, 0.0, 6.0]]))
