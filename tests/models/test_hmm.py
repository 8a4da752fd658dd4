import pytest
import torch
from torch.testing import assert_close

from trellis import inference, kernels
from trellis.errors import TrellisError
from trellis.inference import reference
from trellis.models import HMM, HMMConfig

from .makers import CONFIGS, make, named, random_ids

V, S = 7, 4  # of every configuration in CONFIGS
LENGTHS = torch.tensor([5, 2, 4])
every_config = pytest.mark.parametrize("config", CONFIGS, ids=named)


def logs(model):
    """log start, transition and emission S×V, from the tables."""
    return tuple(table.log() for table in model.tables())


def listed(model, ids_T):
    """Every state path of a row, with its probability."""
    log_start, log_transition, log_emission = logs(model)
    return reference.enumerate_paths(log_start, log_transition, log_emission.T[ids_T])


def rows(ids_BT, lengths_B=LENGTHS):
    return [row[:length] for row, length in zip(ids_BT, lengths_B.tolist(), strict=True)]


@every_config
def test_score_is_the_sum_over_all_paths(config):
    model, ids = make(config), random_ids(3, 5, V)
    log_prob_BT, _ = model.score(ids, lengths_B=LENGTHS)
    for found, row in zip(log_prob_BT, rows(ids), strict=True):
        assert_close(found.sum(), listed(model, row).log_likelihood())
        assert_close(found[0], listed(model, row[:1]).log_likelihood())
        assert not found[len(row) :].any()


@every_config
def test_score_has_the_gradients_of_finite_differences(config):
    model, ids = make(config), random_ids(3, 5, V)
    names, tensors = zip(*model.named_parameters(), strict=True)
    weight_BT = torch.linspace(0.5, 1.5, 15, dtype=torch.float64).view(3, 5)

    def loss(*parameters):
        found, state = torch.func.functional_call(
            model, dict(zip(names, parameters, strict=True)), (ids, None, LENGTHS), tie_weights=True
        )
        return (found * weight_BT).sum() + (state[:, 0] ** 2).sum()

    model.forward = model.score
    assert torch.autograd.gradcheck(loss, tensors, eps=1e-6, atol=1e-6)


def test_score_passes_gradients_to_a_carried_state():
    model, ids = make(CONFIGS[0]), random_ids(2, 3, V)
    state = torch.rand(2, S, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda state: model.score(ids, state / state.sum(1, keepdim=True))[0], (state,))


@every_config
def test_streaming_in_chunks_is_one_pass(config):
    model, ids = make(config), random_ids(3, 12, V)
    whole, last = model.score(ids)
    parts, state = [], None
    for chunk in ids.split([1, 4, 7], 1):
        part, state = model.score(chunk, state)
        parts.append(part)
    assert_close(torch.cat(parts, 1), whole)
    assert_close(state, last)


def test_every_question_hands_the_same_evidence_to_its_algorithm():
    """With lengths, a carried state and missing tokens all at once, so that a swapped argument cannot hide."""
    model, ids = make(CONFIGS[1]), random_ids(3, 5, V)
    state = torch.rand(3, S, dtype=torch.float64)
    state /= state.sum(1, keepdim=True)
    missing = torch.tensor([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    log_start, log_transition, log_emission_SV = logs(model)
    log_emission_BTS = log_emission_SV.T[ids].masked_fill(missing[..., None], 0.0)
    evidence = (log_start, log_transition, log_emission_BTS)
    asked = {"state": state, "lengths_B": LENGTHS, "missing_BT": missing}
    given = (LENGTHS, state)
    assert_close(model.score(ids, **asked), inference.log_probs(*evidence, *given))
    assert_close(model.filter(ids, **asked), inference.forward(*evidence, *given))
    assert_close(model.smooth(ids, **asked), inference.smooth(*evidence, *given))
    assert_close(model.viterbi(ids, **asked), inference.viterbi(*evidence, *given))
    assert_close(model.k_best(ids, 3, **asked), inference.k_best(*evidence, 3, *given))
    assert_close(model.entropy(ids, **asked), inference.posterior_entropy(*evidence, *given))
    seeded = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    drawn = inference.sample_posterior(*evidence, 50, *given, seeded[0])
    assert torch.equal(model.sample_posterior(ids, 50, **asked, generator=seeded[1]), drawn)


def test_the_answers_are_those_of_a_list_of_all_paths():
    model, ids = make(CONFIGS[0]), random_ids(3, 5, V)
    smoothed, paths = model.smooth(ids, lengths_B=LENGTHS), model.viterbi(ids, lengths_B=LENGTHS)
    entropy, ranked = model.entropy(ids, lengths_B=LENGTHS), model.k_best(ids, 3, lengths_B=LENGTHS)
    pairs = torch.zeros(S, S, dtype=torch.float64)
    for b, row in enumerate(rows(ids)):
        truth = listed(model, row)
        assert_close(smoothed.posterior_BTS[b, : len(row)], truth.posterior())
        assert_close(entropy[b], truth.entropy())
        assert tuple(paths.states_BT[b, : len(row)].tolist()) == truth.best()[0].states
        assert [tuple(p[: len(row)].tolist()) for p in ranked.states_BKT[b]] == [p.states for p in truth.best(3)]
        pairs += truth.pairs().sum(0)
    assert_close(smoothed.transition_SS, pairs)


def test_a_missing_token_is_the_sum_over_the_vocabulary():
    model, ids = make(CONFIGS[3]), random_ids(1, 5, V)
    missing = torch.tensor([[0, 1, 0, 0, 0]]).bool()
    every_BT = ids.repeat(V, 1)
    every_BT[:, 1] = torch.arange(V)
    summed = model.score(every_BT)[0].sum(1).logsumexp(0)
    found, _ = model.score(ids, missing_BT=missing)
    assert_close(found.sum(), summed)
    assert_close(found[0, 1], torch.zeros((), dtype=torch.float64))


@every_config
def test_next_token_is_the_score_of_every_candidate(config):
    model = make(config)
    _, state = model.score(random_ids(2, 4, V))
    found = model.next_token(state)
    assert_close(found.exp().sum(1), torch.ones(2, dtype=torch.float64))
    for row in range(2):
        candidates, _ = model.score(torch.arange(V)[:, None], state[row].expand(V, S))
        assert_close(found[row], candidates[:, 0])
    first, _ = model.score(torch.arange(V)[:, None])
    assert_close(model.next_token(), first.T)


def test_samples_have_the_frequencies_of_the_model():
    model = make(CONFIGS[0])
    drawn = model.sample(40_000, 2, generator=torch.Generator().manual_seed(0))
    pairs = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    expected = model.score(pairs)[0].sum(1).exp().detach()
    found = torch.bincount(drawn.tokens_BT[:, 0] * V + drawn.tokens_BT[:, 1], minlength=V * V) / 40_000
    error = (expected * (1 - expected) / 40_000).sqrt()
    assert float(((found - expected).abs() / error).max()) < 4.5


def test_samples_go_on_from_a_state_and_stop_at_the_end():
    model = make(CONFIGS[0])
    _, state = model.score(random_ids(1, 4, V))
    drawn = model.sample(20_000, 6, state.expand(20_000, S), end=2, generator=torch.Generator().manual_seed(0))
    expected = model.next_token(state)[0].exp()
    found = torch.bincount(drawn.tokens_BT[:, 0], minlength=V) / 20_000
    error = (expected * (1 - expected) / 20_000).sqrt()
    assert float(((found - expected).abs() / error).max()) < 4.5
    ended = drawn.lengths_B < 6
    assert bool((drawn.tokens_BT[ended, drawn.lengths_B[ended] - 1] == 2).all())
    assert int((drawn.tokens_BT == 2).sum(1).max()) == 1


def test_expected_counts_are_those_of_a_list_of_all_paths():
    model, ids = make(CONFIGS[0]), random_ids(3, 5, V)
    counts = model.expected_counts(ids, lengths_B=LENGTHS)
    start, transition = torch.zeros(S, dtype=torch.float64), torch.zeros(S, S, dtype=torch.float64)
    emission = torch.zeros(V, S, dtype=torch.float64)
    for row in rows(ids):
        truth = listed(model, row)
        start += truth.posterior()[0]
        transition += truth.pairs().sum(0)
        for token, posterior in zip(row.tolist(), truth.posterior(), strict=True):
            emission[token] += posterior
    assert_close(counts.start_S, start)
    assert_close(counts.transition_SS, transition)
    assert_close(counts.emission_VS, emission)
    assert_close(counts[:2], model.score(ids, lengths_B=LENGTHS))


def test_counts_from_a_carried_state_count_its_step_and_no_start():
    model, ids = make(CONFIGS[0]), random_ids(3, 5, V)
    _, state = model.score(random_ids(3, 2, V, seed=1))
    counts = model.expected_counts(ids, state, LENGTHS)
    assert not counts.start_S.any()
    assert float(counts.transition_SS.sum()) == pytest.approx(int(LENGTHS.sum()))
    assert float(counts.emission_VS.sum()) == pytest.approx(int(LENGTHS.sum()))


def test_tables_round_trip_and_zeros_stay():
    generator = torch.Generator().manual_seed(0)
    tables = [torch.rand(*shape, generator=generator) for shape in ((S,), (S, S), (S, V))]
    tables[1][0, 2] = tables[2][3, 6] = 0.0
    tables = [table / table.sum(-1, keepdim=True) for table in tables]
    model = HMM(HMMConfig(V, S), seed=0)
    model.set_tables(*tables)
    assert_close(tuple(model.tables()), tuple(tables))
    assert model.tables().transition_SS[0, 2] == model.tables().emission_SV[3, 6] == 0
    log_prob, _ = model.score(random_ids(2, 4, V))
    log_prob.sum().backward()
    for parameter in model.parameters():
        assert not parameter.grad[parameter == -torch.inf].any()
        assert bool(torch.isfinite(parameter.grad).all())


@pytest.mark.parametrize("config", [config for config in CONFIGS if "low_rank" in named(config)], ids=named)
def test_low_rank_tables_cannot_be_set_and_are_not_harmed_by_trying(config):
    model = HMM(config, seed=0)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(TrellisError, match="only scalar parameters can be set"):
        model.set_tables(*HMM(HMMConfig(V, S), seed=1).tables())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("bad", "ids"), [(V, [[0, V]]), (-1, [[0, 1], [2, -1]])])
def test_ids_outside_the_vocabulary_are_refused(bad, ids):
    model = make(CONFIGS[-1])
    for question in (model.score, model.smooth, model.viterbi, model.expected_counts):
        with pytest.raises(TrellisError, match=f"token id {bad} is outside the model's vocabulary of {V}"):
            question(torch.tensor(ids))


def test_padding_and_missing_tokens_may_hold_any_id():
    """So that what `sample` gives, −1 past each end, can be scored as it is."""
    model = HMM(HMMConfig(vocab_size=7, states=3), seed=1)
    ids_BT, lengths_B = torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1])
    dirty_BT = torch.tensor([[1, 2, 3], [4, -1, 99]])
    assert torch.equal(model.score(dirty_BT, lengths_B=lengths_B)[0], model.score(ids_BT, lengths_B=lengths_B)[0])
    clean, dirty = (model.expected_counts(x, lengths_B=lengths_B) for x in (ids_BT, dirty_BT))
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))
    missing_BT = torch.tensor([[False, True, False]])
    gaps = [model.score(torch.tensor([[1, id, 3]]), missing_BT=missing_BT)[0] for id in (-1, 5)]
    assert torch.equal(*gaps)


def test_every_question_has_an_answer_for_no_tokens():
    model, nothing_BT = HMM(HMMConfig(vocab_size=5, states=3), seed=1), torch.empty(2, 0, dtype=torch.int64)
    assert model.score(nothing_BT)[0].shape == (2, 0)
    assert model.smooth(nothing_BT).posterior_BTS.shape == (2, 0, 3)
    assert model.viterbi(nothing_BT).log_prob_B.tolist() == [0.0, 0.0]
    assert model.entropy(nothing_BT).tolist() == [0.0, 0.0]
    assert model.sample_posterior(nothing_BT, 4).shape == (2, 4, 0)


@pytest.mark.parametrize("native", [True, False])
@every_config
def test_products_in_bf16_leave_everything_else_in_float32(config, native):
    model, ids = make(config).float(), random_ids(3, 8, config.vocab_size)
    exact, state = model.score(ids)
    with torch.autocast("cpu", torch.bfloat16), kernels.using(kernels.status().level if native else None):
        near, _ = model.score(ids, state.detach())
        near.sum().backward()
    exact, _ = model.score(ids, state.detach())
    assert near.dtype == torch.float32
    assert (near - exact).abs().max() < 0.1
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters() if parameter.grad is not None)
