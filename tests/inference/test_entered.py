"""What the tokens before add to a token's column: the answers are those of columns that hold the sums."""

import pytest
import torch
from torch.testing import assert_close

from trellis import ops
from trellis.inference import Chain, entropy, filter, k_best, sample_posterior, score, smooth, viterbi
from trellis.inference.chain import Entered
from trellis.inference.recursion import walk

from .models import random_hmm, random_log_emission

BATCH, TIME, STATES, WORDS, ROWS = 3, 6, 4, 5, 4
LENGTHS = torch.tensor([6, 1, 4])
SURPRISES = [0.0, 90.0, 900.0]  # in nats, of a step to another state: float32 holds the first, float64 two of them


@pytest.fixture(params=[None, "native"], ids=["twin", "native"], autouse=True)
def way(request):
    with ops.using(ops.status().level if request.param else None):
        yield


def tables(surprise=0.0, dtype=torch.float64):
    """Columns, and rows that are added to some tokens'; the last of these rows rules out all states but the first."""
    make = torch.Generator().manual_seed(3)
    log_columns_NS = random_log_emission(1, WORDS, STATES, seed=3)[0].to(dtype)
    log_enter_KS = torch.randn(ROWS, STATES, generator=make, dtype=torch.float64).to(dtype)
    log_enter_KS[-1, 1:] -= 2 * surprise
    index_BT = torch.randint(WORDS, (BATCH, TIME), generator=make)
    enter_BT = torch.randint(-1, ROWS, (BATCH, TIME), generator=make)
    enter_BT[0, 1:3] = ROWS - 1
    index_BT[0] = torch.tensor([0, 1, 1, 2, 2, 2])
    log_columns_NS[2, 0] -= 3 * surprise
    return log_columns_NS, index_BT, log_enter_KS, enter_BT


def chains(given, labels_BT=None, lengths_B=LENGTHS, surprise=0.0):
    """The chain with rows that are added, and the one of their sums."""
    log_columns_NS, index_BT, log_enter_KS, enter_BT = given
    log_start_S, log_transition_SS = random_hmm(STATES, seed=3)
    log_transition_SS = (log_transition_SS + surprise * torch.eye(STATES)).log_softmax(1)
    model = [x.to(log_columns_NS) for x in (log_start_S, log_transition_SS)]
    plain = Chain.dense(*model, log_columns_NS, lengths_B, index_BT=index_BT)._replace(labels_BT=labels_BT)
    log_more_BTS = torch.where(enter_BT[..., None] < 0, 0.0, log_enter_KS[enter_BT])
    summed = Chain.dense(*model, log_columns_NS[index_BT] + log_more_BTS, lengths_B)._replace(labels_BT=labels_BT)
    return plain._replace(entered=Entered(log_enter_KS, enter_BT)), summed


@pytest.mark.parametrize("surprise", SURPRISES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_all_their_gradients(surprise, dtype):
    found = []
    for which in (0, 1):
        log_columns_NS, index_BT, log_enter_KS, enter_BT = tables(surprise, dtype)
        learnt = [log_columns_NS.requires_grad_(), log_enter_KS.requires_grad_()]
        log_prob_BT, final_BS = score(
            chains((log_columns_NS, index_BT, log_enter_KS, enter_BT), surprise=surprise)[which]
        )
        log_prob_BT.sum().backward()
        found.append([log_prob_BT, final_BS, *(table.grad for table in learnt)])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs)
    if surprise == 0.0:
        assert bool((found[0][3].abs().sum(1) > 0).all())  # every row that is added was learnt


@pytest.mark.parametrize("surprise", SURPRISES)
def test_every_question(surprise):
    ours, theirs = chains(tables(surprise), surprise=surprise)
    assert_close(filter(ours).belief_BTS, filter(theirs).belief_BTS)
    assert_close(smooth(ours).posterior_BTS, smooth(theirs).posterior_BTS)
    for one, other in zip(viterbi(ours), viterbi(theirs), strict=True):
        assert_close(one, other)
    for one, other in zip(k_best(ours, 3), k_best(theirs, 3), strict=True):
        assert_close(one, other)
    assert_close(entropy(ours), entropy(theirs))
    draws = [sample_posterior(chain, 20, torch.Generator().manual_seed(0)) for chain in (ours, theirs)]
    assert torch.equal(*draws)


@pytest.mark.parametrize("given", ["some", "all"])
def test_states_that_are_given(given):
    labels_BT = torch.randint(STATES, (BATCH, TIME), generator=torch.Generator().manual_seed(0))
    if given == "some":
        labels_BT[:, ::2] = -1
    log_columns_NS, index_BT, log_enter_KS, enter_BT = tables()
    log_enter_KS.requires_grad_()
    ours, theirs = chains((log_columns_NS, index_BT, log_enter_KS, enter_BT), labels_BT)
    (mine,), (wanted,) = (torch.autograd.grad(score(chain)[0].sum(), log_enter_KS) for chain in (ours, theirs))
    assert_close(score(ours)[0], score(theirs)[0])
    assert_close(mine, wanted)


def test_sums_are_made_only_where_numbers_are_lost(monkeypatch):
    asked = []
    added = Entered.added
    monkeypatch.setattr(Entered, "added", lambda *given: (asked.append(1), added(*given))[1])
    for surprise, again, rescued in ((0.0, False, False), (90.0, True, False), (900.0, True, True)):
        ours, _ = chains(tables(surprise, torch.float32), surprise=surprise)
        done = walk(ours, *ours.walked())
        assert (done.again is not None) == bool(asked) == again
        assert bool(done.rescued) == rescued


def test_a_text_of_no_tokens():
    log_columns_NS, index_BT, log_enter_KS, enter_BT = tables()
    ours, theirs = chains((log_columns_NS, index_BT[:, :0], log_enter_KS, enter_BT[:, :0]), lengths_B=None)
    for one, other in zip(score(ours), score(theirs), strict=True):
        assert_close(one, other)
