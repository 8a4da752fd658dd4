import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

from trellis.inference import reference, sampling
from trellis.inference.sampling import blocked_sample_posterior, draw, sample, sample_posterior

from .blocked_models import Case, an_improbable_case, blocked_cases, random_blocked_hmm
from .models import ragged, random_belief, random_hmm, random_log_emission, rows_of

T = torch.tensor


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def assert_frequencies(index_N, prob_K):
    """Pearson's statistic of the draws is within five standard deviations of its mean."""
    count_K = torch.bincount(index_N.flatten(), minlength=len(prob_K)).double()
    expected_K = prob_K.double() * index_N.numel()
    assert (count_K[expected_K == 0] == 0).all()
    likely = expected_K > 0
    statistic = ((count_K - expected_K)[likely] ** 2 / expected_K[likely]).sum()
    freedom = max(1, int(likely.sum()) - 1)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def code(states_NT, states):
    """Number the paths as `enumerate_paths` lists them."""
    return (states_NT * states ** torch.arange(states_NT.shape[1] - 1, -1, -1)).sum(1)


def test_draw_follows_the_weights_and_never_takes_a_zero():
    weight_S = T([0.0, 3.0, 0.0, 1.0, 0.5, 0.0])
    assert_frequencies(draw(weight_S.expand(20_000, -1), seeded()), weight_S / weight_S.sum())


@pytest.mark.parametrize(("uniform", "index"), [(0.0, 1), (1 - 2**-53, 4)])
def test_draw_at_the_edges_of_the_uniform_stays_on_the_support(uniform, index, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform, dtype=torch.float64))
    assert draw(T([[0.0, 3.0, 0.0, 1.0, 0.5, 0.0]])).tolist() == [index]


@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_whole_paths_come_as_often_as_their_posterior(zeros):
    """Every path's frequency, so posteriors and pairs of neighbours with it."""
    start, transition = random_hmm(3, seed=2, zeros=zeros)
    log_emission_BTS, lengths_B = random_log_emission(3, 4, 3, seed=2, zeros=zeros / 2), T([4, 2, 1])
    log_emission_BTS[0, 1] = 0.0
    model = (start, transition, log_emission_BTS, lengths_B, random_belief(3, 3, seed=2))
    states_BNT = sample_posterior(*model[:3], 20_000, *model[3:], generator=seeded())
    for states_NT, row in zip(states_BNT, rows_of(*model), strict=True):
        length = len(row[2])
        assert (states_NT[:, length:] == -1).all()
        truth = reference.enumerate_paths(*row)
        assert_frequencies(code(states_NT[:, :length], 3), truth.weights())


def test_neighbouring_states_come_as_often_as_in_a_large_model():
    start, transition = random_hmm(12, seed=3)
    log_emission_BTS = random_log_emission(1, 30, 12, seed=3)
    states_NT = sample_posterior(start, transition, log_emission_BTS, 5_000, generator=seeded())[0]
    counts = reference.expected_counts(start, transition, log_emission_BTS[0])
    for t in (0, 14, 29):
        frequency_S = torch.bincount(states_NT[:, t], minlength=12) / 5_000
        assert_close(frequency_S.double(), counts.posterior_TS[t], rtol=0, atol=0.03)
    pairs = torch.bincount((states_NT[:, :-1] * 12 + states_NT[:, 1:]).flatten(), minlength=144) / 5_000
    assert_close(pairs.double().view(12, 12), counts.transition, rtol=0, atol=0.1)


@given(ragged())
def test_every_draw_is_a_possible_path(model):
    states_BNT = sample_posterior(*model[:3], 4, *model[3:], generator=seeded())
    for states_NT, row in zip(states_BNT, rows_of(*model), strict=True):
        truth, length = reference.enumerate_paths(*row), len(row[2])
        if truth.log_likelihood() == -torch.inf:
            assert (states_NT == -1).all()
        else:
            assert (truth.log_joint_N[code(states_NT[:, :length], len(row[0]))] > -torch.inf).all()
            assert (states_NT[:, length:] == -1).all()


def test_chunks_are_the_same_distribution(monkeypatch):
    monkeypatch.setattr(sampling, "CHUNK", 3 * 700)
    start, transition = random_hmm(3, seed=4)
    log_emission_BTS = random_log_emission(1, 3, 3, seed=4)
    states_BNT = sample_posterior(start, transition, log_emission_BTS, 5_000, generator=seeded())
    truth = reference.enumerate_paths(start, transition, log_emission_BTS[0])
    assert_frequencies(code(states_BNT[0], 3), truth.weights())


def test_paths_through_beliefs_below_float32_are_drawn_too():
    """After two tokens state 1 is e⁻¹²⁰ likely, and the third token can come from nowhere else."""
    start, transition = T([0.5, 0.3, 0.2]).log(), T([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]).log()
    log_emission_BTS = T([[[0.0, -60.0, 0.0], [0.0, -60.0, 0.0], [-torch.inf, -1.0, -torch.inf]]])
    states_BNT = sample_posterior(start, transition, log_emission_BTS, 10, generator=seeded())
    assert (states_BNT == 1).all()


def test_a_seed_repeats_its_draws():
    start, transition = random_hmm(5, seed=5)
    log_emission_BTS = random_log_emission(2, 6, 5, seed=5)
    first, second = (sample_posterior(start, transition, log_emission_BTS, 7, generator=seeded(8)) for _ in "ab")
    assert torch.equal(first, second)


def emission_table(states, tokens, seed):
    return torch.stack([random_belief(1, tokens, seed + s, zeros=0.3)[0] for s in range(states)])


def test_ancestral_samples_come_as_often_as_their_joint_probability():
    """States and tokens together: every (z, o) of two steps."""
    start, transition = (x.exp() for x in random_hmm(3, seed=6, zeros=0.2))
    emission_SV = emission_table(3, 4, seed=6)
    drawn = sample(start, transition, emission_SV, torch.full((30_000,), 2), generator=seeded())
    one_SV = start[:, None] * emission_SV
    joint = one_SV[:, :, None, None] * transition[:, None, :, None] * emission_SV[None, None]
    pair_BT = drawn.states_BT * 4 + drawn.tokens_BT
    assert_frequencies(pair_BT[:, 0] * 12 + pair_BT[:, 1], joint.flatten())
    assert (drawn.lengths_B == 2).all()


def test_sampling_carries_on_from_a_belief():
    start, transition = (x.exp() for x in random_hmm(3, seed=7))
    belief_S, emission_SV = random_belief(1, 3, seed=7)[0], emission_table(3, 4, seed=7)
    ones = torch.ones(20_000, dtype=torch.int64)
    drawn = sample(start, transition, emission_SV, ones, belief_S.expand(20_000, -1), generator=seeded())
    assert_frequencies(drawn.tokens_BT[:, 0], belief_S @ transition @ emission_SV)


def test_ragged_samples_stop_at_their_length_or_the_end_token():
    start, transition = (x.exp() for x in random_hmm(3, seed=8))
    lengths_B = T([9, 0, 4, 9]).repeat(50)
    drawn = sample(start, transition, emission_table(3, 5, seed=9), lengths_B, end_token=2, generator=seeded())
    assert torch.equal(drawn.states_BT < 0, drawn.tokens_BT < 0)
    assert torch.equal((drawn.tokens_BT >= 0).sum(1), drawn.lengths_B)
    for tokens_T, asked, length in zip(drawn.tokens_BT, lengths_B, drawn.lengths_B, strict=True):
        ends = (tokens_T == 2).nonzero().flatten().tolist()
        assert ends in ([], [int(length) - 1])
        assert length == asked or ends
    assert lengths_B[0] == 9, "the caller's lengths must stay as they were"


def test_lengths_of_samples_are_geometric_when_every_token_may_end():
    emission_SV = T([[0.25, 0.75]]).double()
    one = torch.ones(1, 1, dtype=torch.float64)
    drawn = sample(one[0], one, emission_SV, torch.full((20_000,), 6), end_token=0, generator=seeded())
    geometric = [0.25 * 0.75**n for n in range(5)]
    assert_frequencies(drawn.lengths_B - 1, T([*geometric, 1 - sum(geometric)]))


def test_no_rows():
    start, transition = random_hmm(3, seed=10, dtype=torch.float32)
    assert sample_posterior(start, transition, torch.empty(0, 4, 3), 2).shape == (0, 2, 4)
    assert sample(start.exp(), transition.exp(), torch.eye(3), T([], dtype=torch.int64)).tokens_BT.shape == (
        0,
        0,
    )


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_blocked_paths_come_as_often_as_their_posterior_in_the_dense_model(zeros, overlapping):
    hmm = random_blocked_hmm(2, 3, 6, seed=2, zeros=zeros, overlapping=overlapping)
    case = Case(hmm, T([[0, 4, 2], [3, 1, 0], [5, 0, 0], [1, 1, 0]]), T([3, 3, 1, 2]), random_belief(4, 6, seed=2))
    states_BNT = hmm.named(blocked_sample_posterior(case.blocks(), 20_000, seeded()), case.tokens_BT)
    for states_NT, row in zip(states_BNT, case.rows(), strict=True):
        length, truth = len(row[2]), reference.enumerate_paths(*row)
        assert truth.log_likelihood() > -torch.inf
        assert (states_NT[:, length:] == -1).all()
        assert_frequencies(code(states_NT[:, :length], 6), truth.weights())


@given(blocked_cases())
def test_every_blocked_draw_is_a_possible_path(case):
    states_BNT = case.hmm.named(blocked_sample_posterior(case.blocks(), 4, seeded()), case.tokens_BT)
    for states_NT, row in zip(states_BNT, case.rows(), strict=True):
        truth, length = reference.enumerate_paths(*row), len(row[2])
        if truth.log_likelihood() == -torch.inf:
            assert (states_NT == -1).all()
        else:
            assert (truth.log_joint_N[code(states_NT[:, :length], len(row[0]))] > -torch.inf).all()
            assert (states_NT[:, length:] == -1).all()


@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
def test_blocked_draws_take_steps_that_float32_has_no_probability_for(surprise):
    case = an_improbable_case(surprise)
    states_BNT = case.hmm.named(blocked_sample_posterior(case.blocks(), 5_000, seeded()), case.tokens_BT)
    for states_NT, row in zip(states_BNT, case.rows(), strict=True):
        assert_frequencies(code(states_NT[:, : len(row[2])], 4), reference.enumerate_paths(*row).weights())
