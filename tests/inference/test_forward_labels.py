"""Likelihood, filtering and smoothing where the states of some tokens are given."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.inference import Transition, filter, score, smooth

from .. import reference
from .blocked_models import (
    EXAMPLES,
    a_large_case,
    cases,
    spread,
    with_leaves,
)
from .models import counts

EXACT = {"rtol": 1e-9, "atol": 1e-12}


@given(cases(labelled=True, soil=False))
@settings(max_examples=EXAMPLES)
def test_scores_of_labelled_rows_are_sums_over_the_paths_that_agree(case):
    """`rows` has no paths but these."""
    for b, row in enumerate(case.rows()):
        every = reference.enumerate_paths(*row[:2], row[2].nan_to_num(0.0, neginf=-math.inf))
        given_T = case.labels_BT[b, : len(row[2])]
        agree_N = ((every.paths_NT == given_T) | (given_T < 0)).all(1)
        assert not every.log_joint_N[~agree_N].exp().any()
    truth = [reference.filter(*row).log_prob_T for row in case.rows()]
    for kind, chain in case.chains():
        log_prob_BT, state_BS = score(chain)
        for b, log_prob_T in enumerate(truth):
            assert_close(log_prob_BT[b, : len(log_prob_T)], log_prob_T, **EXACT, msg=kind)
            assert not log_prob_BT[b, len(log_prob_T) :].any(), kind
        assert_close(state_BS, filter(case.dense()).state, **EXACT, msg=kind)


@given(cases(labelled=True))
@settings(max_examples=EXAMPLES)
def test_beliefs_and_posteriors_of_labelled_rows_are_one_where_labelled(case):
    truth = [reference.smooth(*row) for row in case.rows()]
    for kind, chain in case.chains():
        found = smooth(chain)
        posterior_BTS = spread(len(case.hmm.log_start_S), found.states_BTS, found.posterior_BTS)
        for b, posterior_TS in enumerate(truth):
            assert_close(posterior_BTS[b, : len(posterior_TS)], posterior_TS, **EXACT, msg=kind)
        possible_B = found.log_prob_BT.sum(1) > -math.inf
        here = case.inside() & (case.labels_BT >= 0) & possible_B[:, None]
        at_label = posterior_BTS.gather(2, case.labels_BT.clamp_min(0)[..., None]).squeeze(-1)[here]
        assert_close(at_label, torch.ones_like(at_label), **EXACT, msg=kind)


@given(cases(zeros=False, labelled=True, soil=False))
@settings(max_examples=EXAMPLES)
def test_gradients_of_labelled_rows_are_those_of_autograd_through_the_reference(case):
    case, leaves = with_leaves(case)
    truth = torch.stack([reference.log_likelihood(*row) for row in case.rows()]).sum() + 0.0 * leaves[0].sum()
    kwargs = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    wanted = torch.autograd.grad(truth, leaves, **kwargs)
    for kind, chain in case.chains():
        ours = score(chain)[0].sum() + 0.0 * leaves[0].sum()  # there may be no tokens
        assert_close(ours, truth, **EXACT, msg=kind)
        for place, (found, grad) in enumerate(zip(torch.autograd.grad(ours, leaves, **kwargs), wanted, strict=True)):
            if place != 1 or chain.transition.tensors:
                assert_close(found, grad, rtol=1e-8, atol=1e-10, msg=kind)


@given(cases(labelled=True, missing=False), st.integers(0, 100))
@settings(max_examples=EXAMPLES)
def test_the_fully_labelled_shortcut_is_the_walk(case, seed):
    """Values, states and gradients, also of impossible rows and next to padding full of NaN."""
    states_BTK = case.hmm.states_MK[case.hmm.block_V[case.tokens_BT]]
    labels_BT = torch.where(case.labels_BT < 0, states_BTK[..., -1], case.labels_BT).masked_fill(~case.inside(), -1)
    case = case._replace(labels_BT=labels_BT)
    weight_BT = torch.randn(case.tokens_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for kind in ("dense", "blocks"):
        chain = case.chain(kind)
        ours, gradients = score(chain), counts(chain, weight_BT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(chain.transition), "log_at", Transition.log_at)
            walked, truths = score(chain), counts(chain, weight_BT)
        for mine, true in zip((*ours, *gradients), (*walked, *truths), strict=True):
            assert_close(mine, true, **EXACT, msg=kind)


@pytest.mark.parametrize("kind", ["dense", "blocks"])
def test_the_fully_labelled_shortcut_is_taken(kind, monkeypatch):
    case = a_large_case()
    case = case._replace(labels_BT=case.hmm.states_MK[case.hmm.block_V[case.tokens_BT]][..., 3])
    case.hmm.log_transition_SS.clamp_min_(-5.0)
    case.hmm.log_start_S.clamp_min_(-5.0)
    case.hmm.log_word_VS.clamp_min_(-5.0)
    chain = case.chain(kind)
    monkeypatch.setattr("trellis.inference.forward.walk", None)
    assert score(chain)[0].isfinite().all()
    with pytest.raises(TypeError):
        score(chain._replace(labels_BT=chain.labels_BT.masked_fill(chain.labels_BT == chain.labels_BT[0, 1], -1)))
