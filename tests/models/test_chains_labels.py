"""Tokens whose state is given: held to the sum over all state paths that agree, with every model there is."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.inference.chain import NOT_BEGUN
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition, uniform_subsets

from .. import reference
from .makers import (
    BLOCK_V,
    DENSE,
    KINDS,
    LOW_RANK,
    RESIDUAL,
    VOCABULARY,
    assert_same_gradients,
    every_kind,
    gradients,
    make_kind,
    random_ids,
    sharpened,
)
from .slow_twin import slow_tables

SOME = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]]).bool()
GIVEN = {"some": SOME, "all": torch.ones_like(SOME), "none": torch.zeros_like(SOME)}
LENGTHS = torch.tensor([4, 3, 4, 1, 3, 0])
NETWORKS = {
    f"{support} {transition} {encoder}": LOW_RANK | {"support": support, "transition": transition, "encoder": encoder}
    for encoder in ("mlp", "transformer")
    for support, transition in (("dense", "low_rank"), ("brown", "low_rank"), ("brown", "hierarchical"))
}
ALL = KINDS | NETWORKS
every_kind_and_network = pytest.mark.parametrize("kind", ALL.values(), ids=ALL.keys())
given = pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())


def little(kind, **changes):
    """Six states, or one a word: few enough paths to list."""
    told = {"states": 6, "blocks": 2, "width": 4, "encoder": "table"} | kind | changes
    support = None
    if told["support"] == "words":
        told["states"] = VOCABULARY
    elif told["support"] == "uniform":
        support = uniform_subsets(VOCABULARY, 6, 3, seed=3)
    elif told["support"] != "dense":
        support = partition(BLOCK_V % 2, 6, 2)
    return sharpened(HMM(HMMConfig(VOCABULARY, **told), 1, support)).double()


def labels_for(model, ids_BT, given_BT):
    """A state of each word's own, where one is given; −1 elsewhere."""
    lists_BTK = torch.arange(model.config.states).expand(*ids_BT.shape, -1)
    if model.support is not None:
        lists_BTK = model.support.lists()[ids_BT]
    place_BT = random_ids(*ids_BT.shape, lists_BTK.shape[2], seed=8)
    return lists_BTK.gather(2, place_BT[..., None]).squeeze(2).where(given_BT, -1)


def agreeing(tables, ids_T, labels_T, belief_S, missing_T):
    """All paths of a row, of which those that do not agree with its labels are impossible."""
    log_start, log_transition, log_emission = tables
    log_emission_TS = log_emission[ids_T].masked_fill(missing_T[:, None], 0.0)
    log_belief = None if belief_S is None else belief_S.log()
    listed = reference.enumerate_paths(log_start, log_transition, log_emission_TS, log_belief)
    wrong_N = ((listed.paths_NT != labels_T) & (labels_T >= 0)).any(1)
    return listed._replace(log_joint_N=listed.log_joint_N.masked_fill(wrong_N, -torch.inf))


def brute(model, ids_BT, labels_BT, lengths_B, state=None, missing_BT=None):
    """log p of each token with its given state, as differences of the sums over the paths of each beginning."""
    tables, scores, states = slow_tables(model, model.everything_taking_part()), [], []
    missing_BT = torch.zeros_like(ids_BT, dtype=torch.bool) if missing_BT is None else missing_BT
    for row, length in enumerate(lengths_B.tolist()):
        belief_S = None if state is None else state[row]
        totals, listed = [torch.zeros((), dtype=torch.float64)], None
        for stop in range(1, length + 1):
            cut = slice(0, stop)
            listed = agreeing(tables, ids_BT[row, cut], labels_BT[row, cut], belief_S, missing_BT[row, cut])
            totals.append(listed.log_likelihood())
        found_T = torch.stack(totals).diff()
        scores.append(torch.nn.functional.pad(found_T, (0, ids_BT.shape[1] - length)))
        before_S = torch.full_like(tables[0], NOT_BEGUN) if belief_S is None else belief_S
        states.append(before_S if listed is None else listed.posterior()[-1])
    return torch.stack(scores), torch.stack(states)


@every_kind_and_network
@given
def test_scores_and_gradients_are_those_of_all_paths_that_agree(kind, given):
    model, ids = little(kind), random_ids(6, 4, VOCABULARY)
    labels, weight = labels_for(model, ids, given), torch.rand(6, 4, dtype=torch.float64)
    slow, slow_state = brute(model, ids, labels, LENGTHS)
    found, state = model.score(ids, None, LENGTHS, labels_BT=labels)
    assert torch.isfinite(found).all()
    assert_close(found, slow)
    assert_close(state, slow_state)
    want = gradients(model, (slow * weight).sum())
    assert_same_gradients(gradients(model, (found * weight).sum()), want)


@every_kind_and_network
@given
def test_gradients_are_the_slopes_of_the_score(kind, given):
    """Along a random direction of each parameter, by how much the likelihood of tokens and states rises."""
    model, ids, step = little(kind), random_ids(6, 4, VOCABULARY), 1e-5
    labels, generator = labels_for(model, ids, given), torch.Generator().manual_seed(4)

    def total():
        return model.score(ids, None, LENGTHS, labels_BT=labels)[0].sum()

    for name, grad in gradients(model, total()).items():
        parameter = model.get_parameter(name)
        along = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter.add_(step * along)
            up = total()
            parameter.sub_(2 * step * along)
            down = total()
            parameter.add_(step * along)
        assert_close((grad * along).sum(), (up - down) / (2 * step), rtol=1e-5, atol=1e-7, msg=name)


@every_kind
@given
def test_a_state_is_carried_on(kind, given):
    model, ids = little(kind), random_ids(6, 4, VOCABULARY)
    labels = labels_for(model, ids, given)
    before = model.score(random_ids(6, 2, VOCABULARY, seed=1))[1].detach()
    slow, slow_state = brute(model, ids, labels, LENGTHS, before)
    found, state = model.score(ids, before, LENGTHS, labels_BT=labels)
    assert_close(found, slow)
    assert_close(state, slow_state)
    assert_same_gradients(gradients(model, found.sum()), gradients(model, slow.sum()))
    with torch.no_grad():
        asked, state = model.eval().score(ids, before, LENGTHS, labels_BT=labels)
    assert_close(asked, slow.detach())
    assert_close(state, slow_state.detach())


@pytest.mark.parametrize("kind", ["dense table", "brown residual", "uniform scalar", "words hierarchical table"])
@given
def test_pieces_make_the_whole_with_gradients_through_what_is_carried(kind, given):
    model, ids = little(KINDS[kind]), random_ids(6, 4, VOCABULARY)
    labels = labels_for(model, ids, given)
    whole, last = model.score(ids, labels_BT=labels)
    first, state = model.score(ids[:, :2], labels_BT=labels[:, :2])
    second, state = model.score(ids[:, 2:], state, labels_BT=labels[:, 2:])
    assert_close(torch.cat([first, second], 1), whole)
    assert_close(state, last)
    assert_same_gradients(gradients(model, first.sum() + second.sum()), gradients(model, whole.sum()))


@every_kind
@given
def test_tokens_may_be_missing_whose_state_is_given(kind, given):
    model, ids = little(kind).eval(), random_ids(6, 4, VOCABULARY)
    labels = labels_for(model, ids, given)
    missing = torch.rand(6, 4, generator=torch.Generator().manual_seed(2)) < 0.4
    slow, slow_state = brute(model, ids, labels, LENGTHS, missing_BT=missing)
    found, state = model.score(ids, None, LENGTHS, missing, labels)
    assert_close(found.detach(), slow.detach())
    assert_close(state.detach(), slow_state.detach())


def test_what_is_given_past_a_row_s_end_does_not_matter():
    for kind in (RESIDUAL, DENSE["dense scalar"]):
        model, ids = little(kind), random_ids(6, 4, VOCABULARY)
        labels = labels_for(model, ids, SOME)
        clean = model.score(ids, None, LENGTHS, labels_BT=labels)
        labels[torch.arange(4) >= LENGTHS[:, None]] = 10**6
        assert_close(model.score(ids, None, LENGTHS, labels_BT=labels), clean, rtol=0, atol=0)


def test_no_state_is_dropped_where_states_are_given():
    for kind in (RESIDUAL, DENSE["dense residual"], KINDS["uniform residual"]):
        model, ids = little(kind, dropout=0.5).train(), random_ids(6, 4, VOCABULARY)
        labels = labels_for(model, ids, SOME)
        assert_close(model.score(ids, labels_BT=labels), model.eval().score(ids, labels_BT=labels), rtol=0, atol=0)


def test_counts_are_those_of_the_paths_that_agree():
    model, ids = little(DENSE["dense scalar"]), random_ids(6, 4, VOCABULARY)
    labels, tables = labels_for(model, ids, SOME), slow_tables(model, model.everything_taking_part())
    counts = model.expected_counts(ids, None, LENGTHS, labels)
    start, transition = torch.zeros(6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
    emission = torch.zeros(VOCABULARY, 6, dtype=torch.float64)
    for row, length in enumerate(LENGTHS.tolist()):
        if length:
            cut = slice(0, length)
            truth = agreeing(tables, ids[row, cut], labels[row, cut], None, torch.zeros(length, dtype=torch.bool))
            start += truth.posterior()[0].detach()
            transition += truth.pairs().sum(0).detach()
            emission.index_add_(0, ids[row, cut], truth.posterior().detach())
    assert_close(counts.start_S, start)
    assert_close(counts.transition_SS, transition)
    assert_close(counts.emission_VS, emission)
    assert_close(counts[:2], model.score(ids, None, LENGTHS, labels_BT=labels))


@pytest.mark.parametrize("given", [SOME, GIVEN["all"]], ids=["some", "all"])
@pytest.mark.parametrize("support", ["brown", "dense"])
def test_what_float32_would_lose_is_scored_in_log_space(support, given):
    """A labelled path, too, may take a step of probability exp(−150)."""
    scalar = {"start": "scalar", "transition": "scalar", "emission": "scalar", "support": support}
    model, ids = little(scalar).float(), torch.tensor([[0, 3, 0, 3]]).expand(6, -1)
    with torch.no_grad():
        model.transition.table[:, :3] = -150.0
    labels = labels_for(model, ids, given).where(torch.arange(4) != 2, 1)
    found = model.score(ids, None, LENGTHS, labels_BT=labels)[0]
    grads = gradients(model, found.sum())
    slow = brute(model.double(), ids, labels, LENGTHS)[0]
    assert slow.sum() < -140
    assert_close(found.double(), slow, rtol=1e-5, atol=1e-5)
    assert all(bool(torch.isfinite(grad).all()) for grad in grads.values())


@pytest.mark.parametrize("kind", [RESIDUAL, DENSE["dense scalar"]], ids=["blocks", "dense"])
def test_labels_of_another_shape_are_refused(kind):
    model, ids = make_kind(**kind), random_ids(3, 4, VOCABULARY)
    for shape in ((3, 5), (3, 3), (2, 4), (4, 4), (3, 1), (4,)):
        with pytest.raises(
            TrellisError, match=r"labels of \(.*\) do not fit a text of \(3, 4\) tokens: give a state, or −1"
        ):
            model.score(ids, labels_BT=torch.full(shape, -1))


@pytest.mark.parametrize("label", [24, -2, 10**12])
@pytest.mark.parametrize("kind", [RESIDUAL, DENSE["dense scalar"]], ids=["blocks", "dense"])
def test_labels_that_are_no_states_are_refused(kind, label):
    model, ids = make_kind(**kind), random_ids(3, 4, VOCABULARY)
    labels = torch.full((3, 4), -1)
    labels[1, 2] = label
    with pytest.raises(TrellisError, match=f"label {label} is none of the 24 states: give 0 to 23, or −1 for unknown"):
        model.score(ids, labels_BT=labels)


@pytest.mark.parametrize("support", ["brown", "uniform", "words"])
def test_a_state_that_does_not_emit_the_word_is_refused(support):
    model, ids = little(KINDS[f"{support} residual"]), random_ids(3, 4, VOCABULARY)
    labels = labels_for(model, ids, torch.ones(3, 4, dtype=torch.bool))
    own = set(model.support.lists()[ids[1, 2]].tolist())
    labels[1, 2] = min(set(range(model.config.states)) - own)
    with pytest.raises(
        TrellisError, match=f"state {int(labels[1, 2])} cannot emit the word at row 1, position 2: label"
    ):
        model.score(ids, labels_BT=labels)
