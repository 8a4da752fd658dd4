"""Transitions of every parameterisation: distributions, and the same whether held whole, in pairs or in logarithms."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig
from trellis.models.transitions import TRANSITIONS, TransitionPart

from .makers import (
    VOCABULARY,
    assert_same_gradients,
    every_config,
    every_kind,
    every_kind_with_blocks,
    gradients,
    make,
    make_kind,
    random_ids,
)
from .slow_twin import slow_tables

LENGTHS = torch.tensor([7, 1, 4])


@every_kind
def test_rows_are_distributions_and_those_of_the_model_held_whole(kind):
    model = make_kind(**kind)
    everything, some = torch.arange(model.config.states), torch.tensor([5, 0, 17, 5])
    rows = model.transition.log_rows(model.encoder, everything, everything)
    assert_close(rows.exp().sum(1), torch.ones(model.config.states, dtype=torch.float64))
    assert_close(rows, slow_tables(model, model.everything_taking_part())[1])
    assert_close(model.transition.log_rows(model.encoder, some, everything), rows[some])


@every_kind
def test_rows_are_normalised_over_the_states_that_take_part(kind):
    model = make_kind(**kind, dropout=0.5)
    torch.manual_seed(0)
    taking_part, everything = model.taking_part(), torch.arange(model.config.states)
    rows = model.transition.log_rows(model.encoder, everything, taking_part.all_S)
    assert_close(rows.exp().sum(1), torch.ones(model.config.states, dtype=torch.float64))
    assert_close(rows, slow_tables(model, taking_part)[1][:, taking_part.all_S])


@every_config
def test_the_steps_of_a_dense_model_are_one_matrix(config):
    model = make(config)
    rows = model.transition.log_rows(model.encoder, torch.arange(4), torch.arange(4))
    belief = torch.rand(3, 4, dtype=torch.float64)
    assert_close(model.transition.between(model.encoder, torch.arange(4)).push(belief, 0), belief @ rows.exp())


@every_kind_with_blocks
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_pairs_are_what_their_slow_twin_says_in_log_space(kind, dropout, monkeypatch):
    model, ids, seen = make_kind(**kind, dropout=dropout), random_ids(3, 7, VOCABULARY), []
    into = model.transition.into

    def watched(vectors, crossing):
        seen.append((crossing, into(vectors, crossing)))
        return seen[-1][1]

    monkeypatch.setattr(model.transition, "into", watched)
    _, state = model.score(ids)
    model.score(ids, state)
    assert len(seen) == 3  # the first batch's, those that a belief is carried over, the second batch's
    for crossing, into_PJK in seen:
        everything_P = torch.arange(len(into_PJK))
        assert_close(model.transition.log_into(model.encoder, crossing, everything_P).exp(), into_PJK)
        assert model.transition.log_into(model.encoder, crossing, everything_P[:0]).shape == (0, *into_PJK.shape[1:])


@pytest.mark.parametrize("kind", ["scalar", "low_rank"])
def test_logits_begin_with_unit_variance(kind):
    model, everything = HMM(HMMConfig(400, 300, transition=kind, width=64), seed=0), torch.arange(300)
    if kind == "scalar":
        logits = model.transition.table
    else:
        leaving, entering = (model.encoder.vectors(role, everything) for role in ("leaving", "entering"))
        logits = leaving @ entering.T
    assert float(logits.detach().std()) == pytest.approx(1.0, abs=0.05)


class Only(TransitionPart):
    """Says `log_rows` and no more."""

    def __init__(self, part):
        super().__init__()
        self.part, self.roles = part, part.roles

    def log_rows(self, vectors, from_N, to_S):
        return self.part.log_rows(vectors, from_N, to_S)


@every_kind
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rows_are_all_that_a_new_transition_must_have(kind, dropout):
    model, ids, found = make_kind(**kind, dropout=dropout), random_ids(3, 7, VOCABULARY), []
    made = model.transition
    for part in (made, Only(made)):
        model.transition = part
        torch.manual_seed(1)
        first, state = model.train().score(ids, None, LENGTHS)
        second, state = model.score(ids, state)
        grads = gradients(model, (first + second).sum())
        found.append(({name.replace(".part", ""): grad for name, grad in grads.items()}, first, second, state))
    (want, *slow), (grads, *fast) = found
    assert_close(fast, slow)
    assert_same_gradients(grads, want)
    missing = torch.tensor([[False, True, False, False, True, False, False]]).expand(3, -1)
    answers = []
    for part in (made, Only(made)):
        model.transition = part
        model.eval()._kept.found.clear()  # which goes by the parameters, and these are the same
        answers.append((model.smooth(ids, missing_BT=missing), model.next_token(state.detach())))
    assert_close(*answers)


def test_the_table_of_transitions_is_what_settings_name():
    assert list(TRANSITIONS) == ["scalar", "low_rank", "hierarchical", "hierarchical_scalar"]
