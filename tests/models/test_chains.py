"""Chains of every kind of model against the same model held whole: values, gradients, dropout, carried beliefs."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError, ops
from trellis.inference.chain import NOT_BEGUN
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition, uniform_subsets

from .makers import (
    BLOCK_V,
    DENSE,
    FLAT,
    HIERARCHICAL,
    RESIDUAL,
    VOCABULARY,
    assert_same_gradients,
    every_kind,
    gradients,
    make_kind,
    random_ids,
    support_of,
)
from .slow_twin import slow_score

LENGTHS = torch.tensor([9, 1, 5, 0, 8])
EXACT = {"rtol": 1e-9, "atol": 1e-10}
EXACT_GRADIENTS = {"rtol": 1e-7, "atol": 1e-9}
NEAR_GRADIENTS = {"rtol": 1e-3, "atol": 2e-5}
HIERARCHICAL_OR_FLAT = pytest.mark.parametrize("made", [HIERARCHICAL["hierarchical residual"], FLAT["residual"]])


def same_states_taking_part(model, seed):
    """Those that the next `score` will draw."""
    torch.manual_seed(seed)
    taking_part = model.taking_part()
    torch.manual_seed(seed)
    return taking_part


@every_kind
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_scores_and_gradients_are_those_of_the_model_held_whole(kind, dropout):
    model = make_kind(**kind, dropout=dropout)
    ids, weight = random_ids(5, 9, VOCABULARY), torch.rand(5, 9, dtype=torch.float64)
    taking_part = same_states_taking_part(model, 4)
    assert (len(taking_part.all_S) == model.config.states) is (dropout == 0)
    found, state = model.score(ids, None, LENGTHS)
    slow, slow_state = slow_score(model, ids, None, LENGTHS, taking_part)
    assert_close(found, slow, **EXACT)
    assert_close(state, slow_state, **EXACT)
    want = gradients(model, (slow * weight).sum())
    assert_same_gradients(gradients(model, (found * weight).sum()), want, **EXACT_GRADIENTS)


@every_kind
def test_gradients_come_through_the_state_that_is_carried_on(kind):
    model, weight = make_kind(**kind, dropout=0.5), torch.randn(5, 1, dtype=torch.float64)
    ids, taking_part = random_ids(5, 9, VOCABULARY), same_states_taking_part(model, 4)
    _, state = model.score(ids, None, LENGTHS)
    _, slow_state = slow_score(model, ids, None, LENGTHS, taking_part)
    want = gradients(model, (slow_state**2 * weight).sum())
    assert_same_gradients(gradients(model, (state**2 * weight).sum()), want, **EXACT_GRADIENTS)


@every_kind
def test_a_belief_is_carried_from_one_mask_to_the_next(kind):
    model = make_kind(**kind, dropout=0.5)
    ids = random_ids(4, 10, VOCABULARY)
    losses = []
    for score in (model.score, None):
        torch.manual_seed(9)
        total, state = torch.zeros((), dtype=torch.float64), None
        for piece in ids.split(3, 1):
            if score is None:
                log_prob, state = slow_score(model, piece, state, None, model.taking_part())
            else:
                log_prob, state = score(piece, state)
            total = total + log_prob.sum()
        losses.append(total)
    assert_close(losses[0], losses[1], rtol=1e-10, atol=0)
    want = gradients(model, losses[1])
    assert_same_gradients(gradients(model, losses[0]), want, **EXACT_GRADIENTS)


@pytest.mark.parametrize("made", [FLAT["residual"], FLAT["table"], FLAT["scalar"]], ids=["residual", "table", "scalar"])
@pytest.mark.parametrize("dropout", [0.3, 0.5, 0.7])
def test_long_lists_are_cut_to_the_states_alive(made, dropout):
    config = HMMConfig(VOCABULARY, states=120, support="uniform", blocks=3, width=6, dropout=dropout, **made)
    model = HMM(config, 1, uniform_subsets(VOCABULARY, 120, 40, seed=3)).double()
    ids, state = random_ids(5, 9, VOCABULARY), None
    for seed in (4, 5):
        taking_part = same_states_taking_part(model, seed)
        found, after = model.score(ids, state, LENGTHS)
        slow, slow_after = slow_score(model, ids, state, LENGTHS, taking_part)
        assert_close(found, slow, **EXACT)
        assert_close(after, slow_after, **EXACT)
        want = gradients(model, slow.sum())
        assert_same_gradients(gradients(model, found.sum()), want, **EXACT_GRADIENTS)
        state = after.detach()


@HIERARCHICAL_OR_FLAT
@pytest.mark.parametrize("shape", [(32, 4, 8), (30, 3, 17), (5, 5, 16), (400, 2, 5)])
def test_native_code_says_what_pytorch_says(made, shape):
    states, blocks, width = shape
    config = HMMConfig(VOCABULARY, states, "brown", blocks, width=width, **made)
    model = HMM(config, 0, partition(torch.arange(VOCABULARY) % blocks, states, blocks))
    ids = random_ids(5, 9, VOCABULARY)
    with ops.using(None):
        slow, state = model.score(ids, None, LENGTHS)
        slow, _ = model.score(ids, state.detach(), LENGTHS)
        want = gradients(model, slow.sum())
    found, state = model.score(ids, None, LENGTHS)
    found, _ = model.score(ids, state.detach(), LENGTHS)
    assert_close(found, slow, rtol=1e-5, atol=1e-6)
    assert_same_gradients(gradients(model, found.sum()), want, **NEAR_GRADIENTS)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("support", ["uniform", "dense"])
@pytest.mark.parametrize("states", [32, 34, 96])
def test_native_code_says_what_pytorch_says_of_lists_that_overlap_and_of_all_states(states, support, dropout):
    config = HMMConfig(VOCABULARY, states, support, blocks=2, width=17, dropout=dropout, **FLAT["residual"])
    model, ids, found = HMM(config, 0), random_ids(5, 9, VOCABULARY), []
    for level in (None, ops.status().level):
        torch.manual_seed(2)
        with ops.using(level):
            first, state = model.score(ids, None, LENGTHS)
            second, _ = model.score(ids, state.detach(), LENGTHS)
            found.append((first, second, gradients(model, (first + second).sum())))
    (*slow, want), (*fast, grads) = found
    assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    assert_same_gradients(grads, want, **NEAR_GRADIENTS)


@every_kind
def test_gradients_are_whole_tables_also_where_a_belief_is_carried(kind):
    model, ids = make_kind(**kind, dropout=0.5), random_ids(3, 1, VOCABULARY)
    _, state = model.score(ids)
    model.score(ids, state.detach())[0].sum().backward()
    assert all(p.grad is None or not p.grad.is_sparse for p in model.parameters())


@pytest.mark.parametrize("level", [*ops.levels(), None])
@pytest.mark.parametrize("support", ["brown", "dense"])
@HIERARCHICAL_OR_FLAT
def test_products_in_bf16_stay_near(made, support, level):
    if support == "dense":
        made = made | {"transition": "low_rank"}
    config = HMMConfig(VOCABULARY, 96, support, blocks=2, width=40, **made)
    model = HMM(config, 0, support_of(support, 96, 2))
    ids = random_ids(5, 9, VOCABULARY)
    with torch.autocast("cpu", torch.bfloat16), ops.using(level):
        near = model.score(ids, None, LENGTHS)[0]
        assert near.dtype == torch.float32
        found = gradients(model, near.sum())
    model.double()
    exact = model.score(ids, None, LENGTHS)[0]
    want = gradients(model, exact.sum())
    assert not torch.equal(near.double(), exact)
    assert (near.double() - exact).detach().sum().abs() < 1e-3 * LENGTHS.sum()
    error = torch.cat([(found[name].double() - want[name]).flatten() for name in want])
    assert error.norm() < 1e-2 * torch.cat([grad.flatten() for grad in want.values()]).norm()


@pytest.mark.parametrize("support", ["brown", "dense"])
def test_an_improbable_text_is_scored_in_log_space(support):
    model = make_kind(torch.float32, **FLAT["scalar"], support=support).eval()
    with torch.no_grad():
        model.transition.table[:, :8] = -150.0  # the first block is all but closed
        if support == "dense":  # whose states alone have its words
            model.emission.table[:, 8:][BLOCK_V == 0] = -300.0
    ids = torch.tensor([[2, 0, 2, 0, 3]])
    found = model.score(ids)[0]
    slow = slow_score(model.double(), ids, None, None, model.taking_part())[0]
    assert slow.sum() < -250
    assert_close(found.double(), slow, rtol=1e-5, atol=1e-5)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_of_nothing(kind, dtype):
    model = make_kind(dtype, **kind, dropout=0.5)
    for shape in ((2, 0), (0, 3), (0, 0)):
        _, before = model.score(random_ids(shape[0], 3, VOCABULARY))
        for state in (None, before.detach()):
            log_prob, after = model.score(torch.zeros(shape, dtype=torch.int64), state)
            assert log_prob.shape == shape
            assert not any(grad.any() for grad in gradients(model, log_prob.sum() + 0 * after.sum()).values())
    model.eval()
    for shape in ((2, 0), (0, 3), (1, 1)):
        log_prob, state = model.score(torch.zeros(shape, dtype=torch.int64))
        assert log_prob.shape == shape
        assert state.shape == (shape[0], model.config.states)
    _, before = model.score(random_ids(2, 3, VOCABULARY))
    _, after = model.score(torch.zeros(2, 0, dtype=torch.int64), before)
    assert torch.equal(after, before)
    assert model.sample(2, 9, end=int(model.next_token()[0].argmax())).lengths_B.max() <= 9


@every_kind
def test_a_row_without_tokens_keeps_what_it_began_with(kind):
    model, ids, lengths = make_kind(**kind).eval(), random_ids(2, 4, VOCABULARY), torch.tensor([4, 0])
    assert (model.score(ids, None, lengths)[1][1] == NOT_BEGUN).all()
    _, before = model.score(random_ids(2, 3, VOCABULARY, seed=1))
    assert torch.equal(model.score(ids, before, lengths)[1][1], before[1])


OTHER_SHAPES = {
    "state of more rows": {"state": torch.full((4, 24), 1 / 24)},
    "state of one row": {"state": torch.full((1, 24), 1 / 24)},
    "state of other states": {"state": torch.full((3, 8), 1 / 8)},
    "state without rows": {"state": torch.full((24,), 1 / 24)},
    "lengths of more rows": {"lengths_B": torch.tensor([4, 4, 4, 4])},
    "one length": {"lengths_B": torch.tensor([4])},
    "missing tokens of more rows": {"missing_BT": torch.ones(4, 4, dtype=torch.bool)},
    "missing tokens of longer rows": {"missing_BT": torch.ones(3, 5, dtype=torch.bool)},
}


@pytest.mark.parametrize("told", OTHER_SHAPES.values(), ids=OTHER_SHAPES.keys())
@pytest.mark.parametrize("kind", [RESIDUAL, DENSE["dense scalar"]], ids=["blocks", "dense"])
def test_what_belongs_to_another_batch_or_model_is_refused(kind, told):
    """Never cut to fit, nor repeated."""
    model, ids = make_kind(torch.float32, **kind).eval(), random_ids(3, 4, VOCABULARY)
    for question in ("score", "filter", "smooth", "viterbi", "entropy"):
        with pytest.raises(TrellisError, match=r"does not belong to 3 rows of this model: give|do not fit .*: give"):
            getattr(model, question)(ids, **told)


def test_a_state_that_does_not_fit_is_described():
    model = make_kind(torch.float32).eval()
    with pytest.raises(TrellisError) as refused:
        model.score(random_ids(3, 4, VOCABULARY), torch.ones(2, 24))
    assert str(refused.value) == (
        "a state of shape (2, 24) does not belong to 3 rows of this model: give the one that the last call returned, "
        "3×24."
    )
