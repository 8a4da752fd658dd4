"""Encoders with networks: which embeddings meet which networks, exact gradients, and each network once a batch."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig
from trellis.models.encoders import ENCODERS, ROLES

from .makers import LOW_RANK, VOCABULARY, assert_same_gradients, gradients, make_kind, random_ids
from .slow_twin import slow_score

STATES, WIDTH = 8, 6
SHARED_MONOLITHIC = list(itertools.product((True, False), (True, False)))
SUPPORTS = [("dense", "low_rank"), ("brown", "low_rank"), ("brown", "hierarchical"), ("uniform", "low_rank")]
LENGTHS = torch.tensor([7, 1, 5, 0])
every_sharing = pytest.mark.parametrize(("shared", "monolithic"), SHARED_MONOLITHIC)
every_network = pytest.mark.parametrize("name", ["mlp", "transformer"])


def encoder(name, roles=ROLES, **parts):
    torch.manual_seed(0)
    config = HMMConfig(20, STATES, encoder=name, width=WIDTH, **LOW_RANK, **parts)
    return ENCODERS[name](config, 1, set(roles)).double()


@every_network
@every_sharing
def test_embeddings_meet_the_networks_of_their_roles(name, shared, monolithic):
    made, states = encoder(name, shared=shared, monolithic=monolithic), torch.tensor([5, 0, 7, 2])
    assert sorted(made.tables) == (["states"] if shared else ["emitting", "entering", "leaving"])
    assert sorted(made.networks) == (["all"] if monolithic else ["emitting", "entering", "leaving"])
    assert sorted(made.maps) == (["emitting", "entering", "leaving"] if shared and monolithic else [])
    encoded = made.encode(states)
    for role in ROLES:
        own = "entering" if role == "starting" else role
        want = made.networks["all" if monolithic else own](made.tables["states" if shared else own][states])
        if shared and monolithic:
            want = want @ made.maps[own].weight.T
        assert_close(made.vectors(role, encoded), want)


@every_network
@every_sharing
def test_all_but_embeddings_are_parameters_of_networks(name, shared, monolithic):
    made = encoder(name, shared=shared, monolithic=monolithic)
    networks = {id(parameter) for parameter in made.network_parameters()}
    for label, parameter in made.named_parameters():
        assert (id(parameter) in networks) is not label.startswith("tables.")


@every_sharing
@pytest.mark.parametrize("name", ["mlp", "mlp without norm", "transformer"])
def test_fresh_logits_are_neither_flat_nor_sharp(name, shared, monolithic):
    parts = {"encoder": name.split()[0], "norm": "without" not in name, "shared": shared, "monolithic": monolithic}
    model = HMM(HMMConfig(300, 200, width=64, **LOW_RANK, **parts), seed=1)
    with torch.no_grad():
        encoded = model.encoder.encode(model.everything())
        leaving, entering, emitting, _ = (model.encoder.vectors(role, encoded) for role in ROLES)
        assert 0.5 < float((leaving @ entering.T).std(1).mean()) < 2.5
        assert 0.25 < float((emitting @ model.emission.words.T).std(1).mean()) < 2.5


class Scored(nn.Module):
    """The score of a batch, drawing the same states in every call."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        torch.manual_seed(5)
        return self.model.score(ids, None, LENGTHS)[0].sum()


def check_gradients(model):
    """Of the score by every parameter, against finite differences."""
    ids, scored = random_ids(4, 7, VOCABULARY), Scored(model)
    names, values = zip(*scored.named_parameters(), strict=True)

    def of(*values):
        return torch.func.functional_call(scored, dict(zip(names, values, strict=True)), (ids,))

    assert torch.autograd.gradcheck(of, tuple(value.detach().requires_grad_() for value in values), fast_mode=True)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
@pytest.mark.parametrize("name", ["table", "residual", "mlp", "transformer"])
@every_sharing
def test_gradients_are_those_of_finite_differences(name, shared, monolithic, support, transition, dropout):
    if name in ("table", "residual") and monolithic:
        pytest.skip("has no such choice")
    told = LOW_RANK | {"transition": transition, "support": support, "dropout": dropout, "encoder": name, "width": 4}
    check_gradients(make_kind(**told, shared=shared, monolithic=monolithic, states=12))


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
def test_scores_and_gradients_are_those_of_the_slow_twin(name, support, transition, dropout):
    told = LOW_RANK | {"transition": transition, "support": support, "dropout": dropout, "encoder": name}
    model, state = make_kind(**told), None
    for seed in (4, 5):
        torch.manual_seed(seed)
        taking_part = model.taking_part()
        torch.manual_seed(seed)
        ids = random_ids(4, 7, VOCABULARY, seed)
        found, after = model.score(ids, state, LENGTHS)
        slow, slow_after = slow_score(model, ids, state, LENGTHS, taking_part)
        assert_close(found, slow)
        assert_close(after, slow_after)
        assert_same_gradients(gradients(model, found.sum()), gradients(model, slow.sum()))
        state = after.detach()


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["dense", "brown"]), st.sampled_from(SHARED_MONOLITHIC), st.integers(1, 3), st.booleans(),
    st.booleans(), st.sampled_from(["none", "input", "linear"]), st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_every_mlp_of_the_grid_scores_and_learns(support, sharing, layers, relu, norm, skip, dropout):
    parts = {"layers": layers, "relu": relu, "norm": norm, "skip": skip, "shared": sharing[0], "monolithic": sharing[1]}
    model = make_kind(**LOW_RANK, support=support, encoder="mlp", dropout=dropout, **parts)
    torch.manual_seed(0)
    taking_part = model.taking_part()
    torch.manual_seed(0)
    ids = random_ids(4, 7, VOCABULARY)
    found = model.score(ids, None, LENGTHS)[0]
    slow = slow_score(model, ids, None, LENGTHS, taking_part)[0]
    assert_close(found, slow)
    assert_same_gradients(gradients(model, found.sum()), gradients(model, slow.sum()))


def watched(model):
    """How many states each network was given, in every run of it."""
    given_by_name = {name: [] for name in model.encoder.networks}
    for name, network in model.encoder.networks.items():
        network.register_forward_hook(lambda _, inputs, __, name=name: given_by_name[name].append(inputs[0].shape[-2]))
    return given_by_name


@every_network
@every_sharing
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("support", "transition"), [*SUPPORTS, ("words", "hierarchical")])
def test_networks_run_once_a_batch_over_the_states_that_take_part(
    name, shared, monolithic, support, transition, dropout
):
    told = LOW_RANK | {"transition": transition, "support": support, "dropout": dropout, "encoder": name}
    model = make_kind(**told, shared=shared, monolithic=monolithic)
    runs = watched(model)
    for seed in (1, 2):
        torch.manual_seed(seed)
        part = len(model.taking_part().all_S)
        torch.manual_seed(seed)
        model.score(random_ids(4, 7, VOCABULARY, seed), None, LENGTHS)[0].sum().backward()
        for calls in runs.values():
            assert calls == [part]
            calls.clear()


@every_network
@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
def test_in_use_networks_run_once_for_all_batches(name, support, transition):
    model, state = make_kind(**(LOW_RANK | {"transition": transition}), support=support, encoder=name).eval(), None
    runs = watched(model)
    with torch.no_grad():
        for seed in range(3):
            _, state = model.score(random_ids(5, 9, VOCABULARY, seed), state)
        model.next_token(state)
        model.viterbi(random_ids(5, 9, VOCABULARY), state)
    assert all(calls == [model.config.states] for calls in runs.values())


@every_network
@every_sharing
@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
def test_export_and_files_keep_the_scores(name, shared, monolithic, support, transition, tmp_path):
    told = LOW_RANK | {"transition": transition, "support": support, "encoder": name}
    model = make_kind(torch.float32, **told, shared=shared, monolithic=monolithic).eval()
    ids = random_ids(4, 7, VOCABULARY)
    with torch.no_grad():
        want = model.score(ids)[0]
        assert_close(model.plain().score(ids)[0], want, rtol=1e-6, atol=1e-6)
        model.save_pretrained(tmp_path / "model")
        again = HMM.from_pretrained(tmp_path / "model")
        assert again.config == model.config
        assert torch.equal(again.score(ids)[0], want)
