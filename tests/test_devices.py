"""Everything that models do, on a device that is not the processor: the same answers, no tensor left behind.

The device is a pretended one (pretend_device.py): it computes as the processor does without native code, and refuses
to mix its tensors with the processor's.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import inference, ops
from trellis.errors import TrellisError
from trellis.evaluation import PROTOCOLS, evaluate
from trellis.inference.chain import NOT_BEGUN
from trellis.inference.recursion import walk
from trellis.inspection import explained, inspect_states, stationary
from trellis.models import HMM, load_model

from . import pretend_device as pretended
from .device_models import BASELINES, HMMS, V, assert_same_there, blocks, counting
from .pretend_device import pretend_device
from .training.runs import (
    NEURAL,
    STATES,
    WORDS,
    make_model,
    text,
)


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


def situations(model):
    """The same text asked about in every way there is."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(V, (3, 4), generator=generator)
    lengths = torch.tensor([4, 0, 2])
    missing = torch.rand(3, 4, generator=generator) < 0.4
    lists_VK = torch.arange(STATES).expand(V, -1) if model.support is None else model.support.lists()
    labels = lists_VK[ids][..., 1].masked_fill(torch.rand(3, 4, generator=generator) < 0.4, -1)
    state = torch.rand(3, model.config.states, generator=generator)
    state[:, 1:] *= torch.rand(3, model.config.states - 1, generator=generator) < 0.5
    carried = {"state": state / state.sum(1, keepdim=True)}
    spread = {"state": torch.full((3, model.config.states), 1 / model.config.states)}
    fresh = {"state": carried["state"].index_fill(0, torch.tensor([1, 2]), NOT_BEGUN)}
    everything = {"labels_BT": lists_VK[ids][..., 2]}
    gaps, ragged, labels = {"missing_BT": missing}, {"lengths_B": lengths}, {"labels_BT": labels}
    ways = [
        {}, ragged, carried, ragged | carried, spread, gaps, gaps | ragged | carried, labels, labels | ragged | carried,
        everything, everything | ragged | carried, gaps | labels, fresh, gaps | ragged | fresh, labels | fresh,
    ]  # fmt: skip
    return [*({"ids_BT": ids} | told for told in ways), {"ids_BT": ids[:, :0]} | carried, {"ids_BT": ids[:0]}]


QUESTIONS = {
    "score": (),
    "filter": (),
    "smooth": (),
    "viterbi": (),
    "k_best": (3,),
    "sample_posterior": (4,),
    "entropy": (),
}


@torch.no_grad()
def ask(question, model, ids_BT, **told):
    """A question of a model; with states given, of its chain."""
    drawn = {"generator": torch.Generator().manual_seed(1)} if question == "sample_posterior" else {}
    if "labels_BT" in told and question != "score":
        return getattr(inference, question)(model.chain(ids_BT, **told), *QUESTIONS[question], **drawn)
    return getattr(model, question)(ids_BT, *QUESTIONS[question], **told, **drawn)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", HMMS)
def test_every_question_has_the_processors_answer(name, question, device):
    model = HMMS[name](0).eval()
    for told in situations(model):
        assert_same_there(partial(ask, question), model, told, device)


@pytest.mark.parametrize("name", ["dense scalar", "neural hierarchical", "flat scalar", "uniform neural"])
def test_rows_too_improbable_for_float32_have_the_processors_answer(name, device):
    """Which are done again in float64, one by one."""
    model = HMMS[name](0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 40.0
    ids = torch.randint(V, (4, 6), generator=torch.Generator().manual_seed(3))
    told = {"ids_BT": ids, "lengths_B": torch.tensor([6, 5, 4, 3])}
    assert rescued(model, **told)
    for question in QUESTIONS:
        assert_same_there(partial(ask, question), model, told, device)
    with torch.random.fork_rng(devices=[]):
        assert_same_there(seeded(gradients), model, told, device, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def rescued(model, **told):
    """The rows that the walk in scaled probabilities fails for."""
    chain = model.chain(**told)
    return walk(chain, *chain.columns()).done_again()


def gradients(model, **told):
    log_prob_BT, state = model.train().score(**told)
    model.zero_grad()
    log_prob_BT.sum().backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [log_prob_BT, state, *found]


@pytest.mark.parametrize("name", HMMS)
def test_gradients_are_the_processors(name, device):
    model = HMMS[name](0, dropout=0.5)
    for told in situations(model):
        if "missing_BT" not in told or model.support is None:
            with torch.random.fork_rng(devices=[]):
                assert_same_there(seeded(gradients), model, told, device, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cache", [0, 5])
def test_counted_ngrams_have_the_processors_answers(device, cache):
    model = blocks(0, **NEURAL, memory=1, ngrams=3, cache=cache)
    model.ngrams.count(np.random.default_rng(0).integers(V, size=300), 0, quiet=True)
    told = {"ids_BT": torch.randint(V, (4, 6), generator=torch.Generator().manual_seed(3))}
    assert_same_there(lambda model, ids_BT: model.eval().score(ids_BT), model, told, device)
    with torch.no_grad():  # what holds a graph of a parameter cannot move
        _, state = model.score(**told)
    assert_same_there(lambda model, state: model.next_token(state), model, {"state": state}, device)
    with torch.random.fork_rng(devices=[]):
        assert_same_there(seeded(gradients), model, told, device, rtol=1e-5, atol=1e-6)


def seeded(ask):
    def asked(model, **told):
        torch.manual_seed(4)
        return ask(model, **told)

    return asked


OTHER_QUESTIONS = {
    "next_token": lambda model, state: model.next_token(state),
    "first token": lambda model, state: model.next_token(),
    "sample": lambda model, state: model.sample(3, 9, generator=torch.Generator().manual_seed(2)),
    "sample, carried": lambda model, state: model.sample(3, 9, state, 1, torch.Generator().manual_seed(2)),
    "sample, of the global generator": seeded(lambda model, state: model.sample(2, 5)),
    "predicted": lambda model, state: model.predicted(3, state),
    "tables": lambda model, state: model.tables(),
    "rows": lambda model, state: model.rows(torch.tensor([2, 0], device=model.device)),
    "plain": lambda model, state: model.plain(),
    "dense": lambda model, state: model.dense(),
    "usage": lambda model, state: model.smooth(torch.tensor([[2, 3, 2]], device=model.device)).usage(
        model.config.states
    ),
    "most probable": lambda model, state: model.smooth(torch.tensor([[2, 3, 2]], device=model.device)).most_probable(),
}


@pytest.mark.parametrize("question", OTHER_QUESTIONS)
@pytest.mark.parametrize("name", HMMS)
def test_every_other_question_has_the_processors_answer(name, question, device):
    model = HMMS[name](0).eval()
    with torch.no_grad():
        _, state = model.score(torch.tensor([[2, 3], [0, 6], [4, 4]]))
    with torch.random.fork_rng(devices=[]):
        assert_same_there(OTHER_QUESTIONS[question], model, {"state": state}, device)


def test_expected_counts_are_the_processors(device):
    model = make_model(0)
    for told in situations(model):
        if "missing_BT" not in told:
            assert_same_there(HMM.expected_counts, model, told, device)


@pytest.fixture
def draws(monkeypatch):
    """Operations of the device that draw random numbers, of which a real one has its own."""
    found, compute = [], pretended._run

    def noted(func, *arguments, **more):
        if torch.Tag.nondeterministic_seeded in func.tags:
            found.append(func)
        return compute(func, *arguments, **more)

    monkeypatch.setattr(pretended, "_run", noted)
    return found


@pytest.mark.parametrize("name", HMMS)
def test_an_hmm_draws_on_the_processor_so_that_a_seed_means_the_same_everywhere(name, draws):
    with pretend_device() as device:
        model, ids = HMMS[name](0, dropout=0.5).to(device), torch.tensor([[2, 3, 4], [5, 6, 2]], device=device)
        _, state = model.score(ids)
        model.score(ids, state.detach())
        model.eval().sample(2, 3)
        model.sample_posterior(ids, 3)
        assert draws == []
        torch.rand(3, device=device)
        assert draws != []  # otherwise this says nothing


# Measuring


@pytest.mark.parametrize("name", ["dense scalar", "neural hierarchical", "uniform neural", "kneser_ney", *BASELINES])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_perplexity_there_is_the_processors(name, protocol, device, tmp_path):
    held_out = text(tmp_path / "cache", 8, seed=1)
    model = counting(tmp_path) if name == "kneser_ney" else (HMMS | BASELINES)[name](0)
    with ops.using(None):
        want = evaluate(model, held_out, protocol, quiet=True)
        found = evaluate(model.to(device), held_out, protocol, quiet=True)
    assert found.nats == pytest.approx(want.nats, rel=1e-6)
    assert (found.protocol, found.tokens, found.impossible_at) == (want.protocol, want.tokens, None)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_impossible_token_there_is_found_where_it_is(protocol, device, tmp_path):
    model, held_out = make_model(0), text(tmp_path / "cache", 8, seed=1)
    start, transition, emission = model.tables()
    emission[:, WORDS.id("c")] = 0.0
    model.set_tables(start, transition, emission / emission.sum(1, keepdim=True))
    found = evaluate(model.to(device), held_out, protocol, quiet=True)
    assert found.impossible_at == held_out.ids.tolist().index(WORDS.id("c"))


def test_a_model_saved_there_is_the_same_here(device, tmp_path):
    model = HMMS["neural hierarchical"](0).eval()
    model.save_pretrained(tmp_path / "here", WORDS)
    model.to(device).save_pretrained(tmp_path / "there", WORDS)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert load_model(tmp_path / "there").device == torch.device("cpu")


@pytest.mark.parametrize("name", ["dense scalar", "neural hierarchical", "uniform scalar"])
def test_what_states_mean_there_is_what_they_mean_here(name, device, tmp_path):
    model, ids = HMMS[name](0).eval(), text(tmp_path / "cache")
    with ops.using(None):
        want = inspect_states(model, explained(model, ids, quiet=True), distinct=True), stationary(*model.tables()[:2])
        model.to(device)
        found = inspect_states(model, explained(model, ids, quiet=True), distinct=True), stationary(*model.tables()[:2])
        tables = model.tables()
        in_the_long_run = inspect_states(tables, stationary(*tables[:2]))
    assert_close(found[1].cpu(), want[1], rtol=1e-6, atol=1e-9)
    assert [state.state for state in found[0].states] == [state.state for state in want[0].states]
    for a, b in zip(found[0].states, want[0].states, strict=True):
        assert [word.id for word in a.words] == [word.id for word in b.words]
        assert a.usage == pytest.approx(b.usage, rel=1e-5)
    assert len(in_the_long_run.states) == model.config.states


# A tensor that is left behind


def test_a_support_that_stays_on_the_processor_is_noticed(device):
    model = HMMS["flat scalar"](0).eval()
    left = model.states_MK
    model.to(device)
    model.states_MK = left
    with pytest.raises(RuntimeError, match=r"got .* from the cpu"):
        model.score(torch.tensor([[2, 3]], device=device))


def test_a_carried_state_that_stays_on_the_processor_is_noticed(device):
    for name in ("dense scalar", "neural hierarchical"):
        model = HMMS[name](0).to(device)
        with pytest.raises(
            TrellisError, match=r"a state on cpu is not where its model is: move it by \.to\('lazy:0'\)"
        ):
            model.score(torch.tensor([[2, 3]], device=device), torch.full((1, model.config.states), 0.1))


@pytest.mark.parametrize("name", [*HMMS, *BASELINES])
def test_ids_that_stay_on_the_processor_are_noticed(name, device):
    model = (HMMS | BASELINES)[name](0).to(device)
    with pytest.raises(RuntimeError, match="from the cpu"):
        model.score(torch.tensor([[2, 3]]))
