"""Rows that have had no token yet beside rows that go on: each is answered as it would be alone."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig
from trellis.models.questions import _joined

from .makers import DENSE, VOCABULARY, assert_same_gradients, every_kind, gradients, make_kind, random_ids


def half_begun(model):
    """A state of which the first row has had three tokens and the second none, and the first row's alone."""
    _, state = model.score(random_ids(2, 3, VOCABULARY, seed=1), None, torch.tensor([3, 0]))
    return state, state[:1]


@every_kind
def test_every_answer_about_a_row_that_has_not_begun_is_that_of_its_beginning(kind):
    model, ids = make_kind(**kind).eval(), random_ids(2, 4, VOCABULARY)
    missing = torch.tensor([[False, True, False, False], [True, False, False, True]])
    with torch.no_grad():
        state, first = half_begun(model)
        for question in ("score", "filter", "smooth", "viterbi", "entropy"):
            for told in ({}, {"missing_BT": missing}):
                found = getattr(model, question)(ids, state, **told)
                alone = [
                    getattr(model, question)(
                        ids[row : row + 1], begin, **{k: v[row : row + 1] for k, v in told.items()}
                    )
                    for row, begin in enumerate((first, None))
                ]
                assert_close(found, _joined(alone), msg=lambda said, question=question: f"{question}: {said}")
        assert_close(model.next_token(state), torch.cat([model.next_token(first), model.next_token()]))
        assert_close(model.predicted(2, state)[1], model.log_start().exp())


@every_kind
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_rows_that_have_not_begun_are_those_of_beginnings(kind, dropout):
    model, ids = make_kind(**kind, dropout=dropout), random_ids(2, 4, VOCABULARY)
    with torch.no_grad():
        state, first = half_begun(model)

    def learnt(*asked):
        losses = []
        for told in asked:
            torch.manual_seed(3)  # the same states take part
            losses.append(model.score(*told)[0].sum())
        return gradients(model, sum(losses))

    assert_same_gradients(learnt((ids, state)), learnt((ids[:1], first), (ids[1:],)))


def test_expected_counts_of_a_row_that_has_not_begun_count_its_start():
    model, ids = HMM(HMMConfig(VOCABULARY, 5), seed=2).double(), random_ids(2, 4, VOCABULARY)
    state, first = half_begun(model)
    found = model.expected_counts(ids, state.detach())
    carried, fresh = model.expected_counts(ids[:1], first.detach()), model.expected_counts(ids[1:])
    for ours, one, other in zip(found[2:], carried[2:], fresh[2:], strict=True):
        assert_close(ours, one + other)
    assert_close(found.start_S.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_labelled_rows_begin_too():
    model, ids = make_kind(**DENSE["dense scalar"]).eval(), random_ids(2, 4, VOCABULARY)
    labels = random_ids(2, 4, model.config.states)
    state, first = half_begun(model)
    found = model.score(ids, state, labels_BT=labels)[0]
    assert_close(found[:1], model.score(ids[:1], first, labels_BT=labels[:1])[0])
    assert_close(found[1:], model.score(ids[1:], labels_BT=labels[1:])[0])


def test_a_first_state_too_improbable_for_float32_is_found_for_rows_that_begin_and_rows_that_go_on():
    model = HMM(HMMConfig(4, 3), seed=0).eval()
    with torch.no_grad():
        model.start.table.copy_(torch.tensor([0.0, -200.0, -300.0]))
        model.emission.table.copy_(torch.tensor([[9.0, -400.0, -300.0]]).expand(4, -1) * torch.arange(4)[:, None])
        _, state = model.score(torch.tensor([[1, 1], [1, 1]]), None, torch.tensor([2, 0]))
        found, _ = model.score(torch.tensor([[3], [3]]), state)
        want = torch.cat([model.double().score(torch.tensor([[3]]), row)[0] for row in (state[:1].double(), None)])
    assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
