"""Numbers hold for any finite logits: extreme models against brute force in float64 log space, whole and in pieces."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.inference.chain import log_carried
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition, uniform_subsets

from .. import reference
from .slow_twin import slow_tables

WORDS, TIME, BATCH = 5, 6, 3
LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
BLOCK_V = torch.tensor([0, 1, 0, 1, 1])
KINDS = {
    "scalar": {},
    "low-rank": LOW_RANK,
    "scalar blocks": {"support": "brown", "blocks": 2},
    "low-rank blocks": LOW_RANK | {"support": "brown", "blocks": 2, "bias": True},
    "hierarchical blocks": LOW_RANK | {"support": "brown", "blocks": 2, "transition": "hierarchical"},
    "hierarchical scalar blocks": {"support": "brown", "blocks": 2, "transition": "hierarchical_scalar"},
    "overlapping blocks": {"support": "uniform", "blocks": 2},
    "memory": LOW_RANK | {"states": 3, "memory": 1},
    "memory blocks": LOW_RANK | {"support": "brown", "blocks": 2, "memory": 1},
    "hierarchical memory blocks": LOW_RANK
    | {"support": "brown", "blocks": 2, "transition": "hierarchical", "memory": 1},
}
WITH_GAPS = [kind for kind in sorted(KINDS) if "memory blocks" not in kind]
# Free logits of which some may be −inf and all distributions still are some.
WITH_ZEROS = dict.fromkeys(KINDS, ()) | {
    "scalar": ("start.table", "transition.table", "emission.table"),
    "scalar blocks": ("start.table", "transition.table"),
    "overlapping blocks": ("start.table", "transition.table"),
}
SCALES = (1.0, 30.0, 100.0, 300.0, 1000.0)


def extreme(kind, scale, seed, zeros=False):
    """A float32 model whose logits are of this size; with `zeros`, some free logits are −inf."""
    config = HMMConfig(WORDS, **{"states": 4} | KINDS[kind])
    support = partition(BLOCK_V, 4, 2) if config.support == "brown" else None
    support = uniform_subsets(WORDS, 4, 2, seed) if config.support == "uniform" else support
    model, generator = HMM(config, seed=seed, support=support), torch.Generator().manual_seed(seed)
    size = math.sqrt(scale / 1.7) if config.start == "low_rank" else scale  # of factors, three products of which add up
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
            if zeros and name in WITH_ZEROS[kind]:
                dim = 0 if name == "emission.table" else -1
                never = torch.rand(parameter.shape, generator=generator) < 0.3
                parameter.masked_fill_(never & (parameter < parameter.amax(dim, keepdim=True)), -torch.inf)
    return model.eval()


@torch.no_grad()
def tables(model):
    """Log start S, transition S×S and emission V×S in float64; of a memory, those of pairs of a word and a state."""
    exact = copy.deepcopy(model).double()
    if model.memory is None:
        return slow_tables(exact, exact.everything_taking_part())
    states, everything = model.config.states, exact.everything()
    leaving_SR = exact.encoder.vectors("leaving", exact.encoder.encode(everything))
    _, _, log_word_VS = slow_tables(exact, exact.everything_taking_part())
    after = [
        exact.transition.log_rows_from(leaving_SR + word_R, exact.encoder, everything)
        for word_R in exact.memory.words[0]
    ]
    log_transition = torch.cat([(step_SS[:, None] + log_word_VS).flatten(1) for step_SS in after])
    log_emission = torch.full((WORDS, WORDS * states), -torch.inf, dtype=torch.float64)
    for word in range(WORDS):
        log_emission[word, word * states : (word + 1) * states] = 0.0
    return (exact.log_start() + log_word_VS).flatten(), log_transition, log_emission


def problems(model, ids_BT, lengths_B, missing_BT):
    """Each row as the reference takes it: a missing token has every state."""
    log_start, log_transition, log_emission = tables(model)
    for ids_T, missing_T, length in zip(ids_BT, missing_BT, lengths_B.tolist(), strict=True):
        log_emission_TS = torch.where(missing_T[:, None], 0.0, log_emission[ids_T])
        yield log_start, log_transition, log_emission_TS[:length]


def tolerance(scale):
    """Of logarithms: float32 rounds logits of this size, and a token's is a sum of a few of them."""
    return {"rtol": 1e-5, "atol": 1e-5 + 3e-6 * scale}


@st.composite
def asked(draw, gaps=False):
    """A model and a ragged batch, and where to cut it."""
    kind, scale, seed = (
        draw(st.sampled_from(WITH_GAPS if gaps else sorted(KINDS))),
        draw(st.sampled_from(SCALES)),
        draw(st.integers(0, 10_000)),
    )
    model = extreme(kind, scale, seed, zeros=draw(st.booleans()))
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(WORDS, (BATCH, TIME), generator=generator)
    lengths_B = torch.tensor(draw(st.lists(st.integers(0, TIME), min_size=BATCH, max_size=BATCH)))
    missing_BT = torch.rand(BATCH, TIME, generator=generator) < (0.3 if gaps else 0.0)
    cuts = sorted({0, TIME, *draw(st.lists(st.integers(1, TIME - 1), max_size=TIME))})
    return model, scale, ids_BT, lengths_B, missing_BT, cuts


def in_pieces(model, ids_BT, lengths_B, missing_BT, cuts):
    """Log-probabilities B×T of a text that is scored piece by piece, and the state after all of them."""
    found, state = [], None
    for begin, stop in itertools.pairwise(cuts):
        missing = missing_BT[:, begin:stop] if missing_BT.any() else None
        left_B = (lengths_B - begin).clamp(0, stop - begin)
        log_prob_BT, state = model.score(ids_BT[:, begin:stop], state, left_B, missing)
        found.append(log_prob_BT)
    return torch.cat(found, 1), state


@given(asked() | asked(gaps=True))
@settings(max_examples=80)
@torch.no_grad()
def test_scores_are_those_of_log_space_whole_and_in_pieces(given_):
    model, scale, ids_BT, lengths_B, missing_BT, cuts = given_
    truth = [reference.filter(*row).log_prob_T for row in problems(model, ids_BT, lengths_B, missing_BT)]
    every_token = list(range(TIME + 1))
    for pieces in ([0, TIME], cuts, every_token):
        log_prob_BT, _ = in_pieces(model, ids_BT, lengths_B, missing_BT, pieces)
        assert (log_prob_BT <= 0).all()
        for found_T, wanted_T in zip(log_prob_BT, truth, strict=True):
            assert_close(found_T[: len(wanted_T)].double(), wanted_T, **tolerance(scale))
            assert not found_T[len(wanted_T) :].any()


@given(asked())
@settings(max_examples=60)
@torch.no_grad()
def test_what_is_carried_on_has_every_state_that_is_possible(given_):
    model, scale, ids_BT, lengths_B, missing_BT, cuts = given_
    if model.memory is not None:
        return  # whose pairs of a state and a word are not what it carries
    _, state_BS = in_pieces(model, ids_BT, lengths_B, missing_BT, cuts)
    for state_S, row in zip(state_BS, problems(model, ids_BT, lengths_B, missing_BT), strict=True):
        if len(row[2]) and reference.log_likelihood(*row) > -math.inf:
            log_belief_S = reference.filter(*row).log_belief_TS[-1]
            assert_close(log_carried(state_S), log_belief_S, rtol=1e-5, atol=1e-4 + 1e-5 * scale)


@given(asked() | asked(gaps=True))
@settings(max_examples=50)
@torch.no_grad()
def test_beliefs_posteriors_and_paths_are_those_of_all_paths_listed(given_):
    model, scale, ids_BT, lengths_B, missing_BT, _ = given_
    states = model.config.states
    missing = missing_BT if missing_BT.any() else None
    filtered, smoothed = (ask(ids_BT, None, lengths_B, missing) for ask in (model.filter, model.smooth))
    best = model.viterbi(ids_BT, None, lengths_B, missing) if model.memory is None else None
    close = {"rtol": 1e-3, "atol": 1e-4 + 3e-5 * scale}
    for row, problem in enumerate(problems(model, ids_BT, lengths_B, missing_BT)):
        length, over_words = len(problem[2]), (-1, len(problem[0]) // states, states)
        wanted_TS = reference.filter(*problem).log_belief_TS.exp().view(over_words).sum(1)
        found_TS = over_all_states(filtered.belief_BTS, filtered.states_BTS, states)[row, :length]
        assert_close(found_TS.double(), wanted_TS, **close)
        posterior_TS = over_all_states(smoothed.posterior_BTS, smoothed.states_BTS, states)[row, :length]
        assert_close(posterior_TS.double(), reference.smooth(*problem).view(over_words).sum(1), **close)
        if best is not None and length:
            wanted = reference.viterbi(*problem).log_prob
            assert_close(best.log_prob_B[row].double(), torch.tensor(wanted).double(), rtol=1e-5, atol=1e-4 * scale)


def over_all_states(local_BTJ, states_BTJ, states):
    return local_BTJ.new_zeros(*local_BTJ.shape[:2], states).scatter_add(2, states_BTJ, local_BTJ)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("scale", SCALES)
@torch.no_grad()
def test_every_next_word_is_as_probable_as_it_scores(kind, scale):
    for seed in range(3):
        model = extreme(kind, scale, seed, zeros=seed > 1)
        _, state = model.score(torch.randint(WORDS, (2, 3), generator=torch.Generator().manual_seed(seed)))
        for before in (None, state):
            rows = 1 if before is None else 2
            found_BV = model.next_token(before)
            for row in range(rows):
                own = None if before is None else before[row].expand(WORDS, -1)
                scores_V = model.score(torch.arange(WORDS)[:, None], own)[0][:, 0]
                assert_close(found_BV[row], scores_V, **tolerance(scale))


@pytest.mark.parametrize("kind", ["scalar", "low-rank", "memory"])
@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_gradients_of_an_extreme_text_are_those_of_the_float64_model(kind, scale):
    """Those of the whole text, where float32 has lost every state that explains it."""
    ids_BT, found = torch.tensor([[0, 1, 2, 3, 4, 0], [4, 4, 1, 0, 2, 2]]), []
    model = extreme(kind, scale, seed=1)
    for each in (model, copy.deepcopy(model).double()):
        each.score(ids_BT)[0].sum().backward()
        found.append([parameter.grad.double() for parameter in each.parameters()])
    for ours, exact in zip(*found, strict=True):
        assert_close(ours, exact, rtol=1e-2, atol=1e-3 * (1.0 + math.sqrt(scale)))


@pytest.mark.parametrize("kind", ["memory blocks", "hierarchical memory blocks"])
@pytest.mark.parametrize("scale", SCALES)
@torch.no_grad()
def test_gaps_that_float64_cannot_sum_over_are_refused_and_the_others_right(kind, scale):
    ids_BT, missing_BT = torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1]]), torch.tensor([[False, True, False, False]] * 2)
    for seed in range(3):
        model = extreme(kind, scale, seed)
        truth = [reference.filter(*row).log_prob_T for row in problems(model, ids_BT, torch.tensor([4, 4]), missing_BT)]
        try:
            log_prob_BT, _ = model.score(ids_BT, missing_BT=missing_BT)
        except TrellisError as error:
            assert scale > 30 and "ask this model about texts without gaps" in str(error)  # noqa: PT018, PT017
            continue
        assert_close(log_prob_BT.double(), torch.stack(truth), **tolerance(scale))


@pytest.mark.parametrize("kind", [kind for kind in sorted(KINDS) if "memory blocks" not in kind])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0])
@torch.no_grad()
def test_words_of_a_gap_are_as_probable_as_the_text_with_them(kind, scale):
    for seed in range(2):
        model = extreme(kind, scale, seed, zeros=seed > 0)
        ids_BT = torch.randint(WORDS, (1, 5), generator=torch.Generator().manual_seed(seed))
        missing_BT = torch.tensor([[False, True, False, True, False]])
        found = model.fill(ids_BT, missing_BT).log_prob_NV.double()
        for place, found_V in zip((1, 3), found, strict=True):
            totals = []
            for word in range(WORDS):
                filled, still = ids_BT.clone(), missing_BT.clone()
                filled[0, place], still[0, place] = word, False
                ((log_start, log_transition, log_emission_TS),) = problems(model, filled, torch.tensor([5]), still)
                totals.append(reference.log_likelihood(log_start, log_transition, log_emission_TS))
            wanted_V = torch.stack(totals)
            wanted_V = wanted_V - reference.logsumexp(wanted_V, 0) if (wanted_V > -math.inf).any() else wanted_V
            assert_close(found_V.exp(), wanted_V.exp(), rtol=1e-3, atol=1e-4 + 3e-5 * scale)
            assert torch.equal(found_V == -math.inf, wanted_V == -math.inf)
