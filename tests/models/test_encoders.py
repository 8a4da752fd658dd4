"""What the vectors of states are, and that those of a batch are made once, of all its states together."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig
from trellis.models.encoders import ENCODERS, ROLES, Encoder

from .makers import (
    FLAT,
    HIERARCHICAL,
    LOW_RANK,
    VOCABULARY,
    assert_same_gradients,
    gradients,
    make_kind,
    random_ids,
)
from .slow_twin import slow_score

V, S, R = 11, 6, 2
STATES, BLOCKS, WIDTH = 8, 2, 6
LENGTHS = torch.tensor([9, 1, 5, 0, 8])
SELF_CONTAINED = [name for name in ENCODERS if name != "pretrained"]  # which needs a network's folder


def encoder(name, shared=None, roles=ROLES):
    """Of eight states in two blocks."""
    config = HMMConfig(20, STATES, "brown", BLOCKS, encoder=name, width=WIDTH, shared=shared, **LOW_RANK)
    torch.manual_seed(0)
    return ENCODERS[name](config, BLOCKS, set(roles)).double()


def network(module, x):
    """LayerNorm(ReLU(D W₂) + D) with D = ReLU(E W₁), written out."""
    hidden = (x @ module.first.weight.T).clamp_min(0)
    out = (hidden @ module.second.weight.T).clamp_min(0) + hidden
    centred = out - out.mean(1, keepdim=True)
    scaled = centred / (centred.pow(2).mean(1, keepdim=True) + module.norm.eps).sqrt()
    return scaled * module.norm.weight + module.norm.bias


def test_a_table_has_a_free_vector_a_state_and_role_but_starts_as_it_is_entered():
    made, states = encoder("table"), torch.tensor([5, 0, 5])
    assert sorted(made.tables) == ["emitting", "entering", "leaving"]
    for role in ROLES:
        table = made.tables["entering" if role == "starting" else role]
        assert torch.equal(made.vectors(role, made.encode(states)), table[states])
    made = encoder("table", shared=True)
    assert list(made.tables) == ["states"]
    for role in ROLES:
        assert torch.equal(made.vectors(role, made.encode(states)), made.tables["states"][states])


def test_residual_networks_see_one_embedding_a_state():
    made, states = encoder("residual"), torch.tensor([5, 0, 5])
    assert sorted(made.networks) == ["emitting", "leaving", "starting"]
    for role in ROLES:
        want = made.states[states] if role == "entering" else network(made.networks[role], made.states[states])
        assert_close(made.vectors(role, made.encode(states)), want)


def test_half_of_a_factored_embedding_is_the_block_s():
    made, states = encoder("factored"), torch.tensor([5, 0, 5])
    assert made.blocks.shape == (BLOCKS, WIDTH // 2)
    assert made.states.shape == (STATES, WIDTH // 2)
    halves = torch.cat([made.blocks[states // (STATES // BLOCKS)], made.states[states]], 1)
    for role in ROLES:
        want = network(made.composing[role], halves)
        want = want if role == "entering" else network(made.networks[role], want)
        assert_close(made.vectors(role, made.encode(states)), want)


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_an_encoder_has_only_what_its_model_needs(name):
    def numbers(*roles):
        return sum(parameter.numel() for parameter in encoder(name, roles=roles).parameters())

    assert numbers("emitting") < numbers("emitting", "leaving") < numbers("emitting", "leaving", "entering", "starting")


def test_sharing_is_one_table_and_every_part_moves_it():
    low = HMMConfig(V, S, start="low_rank", transition="low_rank", emission="low_rank", width=R, shared=True)
    model = HMM(low, seed=0)
    tables = [p for p in model.parameters() if p.shape == (S, R)]
    assert len(tables) == 1
    everything = torch.arange(S)
    log_rows = model.transition.log_rows(model.encoder, everything, everything)
    for part in (model.log_start(), log_rows, model.emission.columns(model.encoder, everything, torch.tensor([3]))):
        (gradient,) = torch.autograd.grad(part[..., 0].sum(), tables)
        assert bool(gradient.any())


def test_start_and_transition_share_where_they_go_and_nothing_else():
    config = HMMConfig(V, S, start="low_rank", transition="low_rank", emission="low_rank", width=R)
    model, everything = HMM(config, seed=0), torch.arange(S)
    assert sum(p.shape == (S, R) for p in model.parameters()) == 3

    def moved(part):
        names, tables = zip(*model.encoder.tables.items(), strict=True)
        found = torch.autograd.grad(part[..., 0].sum(), tables, allow_unused=True)
        return {name for name, gradient in zip(names, found, strict=True) if gradient is not None and gradient.any()}

    assert moved(model.log_start()) == {"entering"}
    assert moved(model.transition.log_rows(model.encoder, everything, everything)) == {"leaving", "entering"}
    assert moved(model.emission.columns(model.encoder, everything, torch.tensor([3]))) == {"emitting"}


@pytest.mark.parametrize("support", ["brown", "uniform"])
def test_networks_see_each_state_of_a_batch_once(support, monkeypatch):
    model, asked = make_kind(**FLAT["residual"], support=support), []
    encode, vectors = model.encoder.encode, model.encoder.vectors

    def watched(role, encoded):
        if role == "leaving":
            asked.append(encoded[0])
        return vectors(role, encoded[1])

    monkeypatch.setattr(model.encoder, "encode", lambda states_N: (states_N, encode(states_N)))
    monkeypatch.setattr(model.encoder, "vectors", watched)
    ids = random_ids(4, 9, VOCABULARY)
    model.score(ids)
    assert len(asked) == 1
    assert sorted(asked[0].tolist()) == model.states_MK[model.block_V[ids.unique()]].unique().tolist()


class Mixing(Encoder):
    """States see one another: each is what it is beside the mean of all."""

    def __init__(self, config, blocks, roles):
        super().__init__(config, blocks, roles)
        self.states = nn.Parameter(torch.randn(config.states, config.width) / 2)
        self.roles = nn.ParameterDict({role: torch.randn(config.width) for role in sorted(roles)})
        self.asked = []

    def encode(self, states_N):
        self.asked.append(states_N.tolist())
        return self.states[states_N] + torch.tanh(self.states[states_N]).mean(0)

    def vectors(self, role, encoded):
        return encoded * self.roles[role]


def mixing(monkeypatch, support, dropout, transition):
    monkeypatch.setitem(ENCODERS, "mixing", Mixing)
    told = (HIERARCHICAL["hierarchical residual"] | FLAT["residual"]) | {"transition": transition, "encoder": "mixing"}
    return make_kind(**told, support=support, dropout=dropout)


SUPPORTS = [
    ("dense", "low_rank"),
    ("brown", "low_rank"),
    ("brown", "hierarchical"),
    ("uniform", "low_rank"),
    ("words", "hierarchical"),
]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
def test_states_that_see_one_another_are_all_encoded_together_and_once_a_batch(
    support, transition, dropout, monkeypatch
):
    model, state = mixing(monkeypatch, support, dropout, transition), None
    for seed in (4, 5):
        torch.manual_seed(seed)
        taking_part = model.taking_part()
        torch.manual_seed(seed)
        model.encoder.asked.clear()
        found, after = model.score(random_ids(5, 9, VOCABULARY, seed), state, LENGTHS)
        (asked,) = model.encoder.asked
        assert set(taking_part.all_S.tolist()) <= set(asked)
        if state is not None:
            assert set((state > 0).any(0).nonzero().flatten().tolist()) <= set(asked)
        slow, slow_after = slow_score(model, random_ids(5, 9, VOCABULARY, seed), state, LENGTHS, taking_part)
        assert_close(found, slow)
        assert_close(after, slow_after)
        want = gradients(model, slow.sum())
        assert_same_gradients(gradients(model, found.sum()), want)
        state = after.detach()


@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
def test_states_that_see_one_another_are_encoded_once_also_for_texts_with_gaps(support, transition, monkeypatch):
    model = mixing(monkeypatch, support, 0.0, transition)
    ids, missing = random_ids(5, 9, VOCABULARY), torch.rand(5, 9) < 0.3
    state = model.score(random_ids(5, 2, VOCABULARY), missing_BT=torch.ones(5, 2, dtype=torch.bool))[1].detach()
    for before in (None, state):
        for mode in (True, False):
            model.train(mode).encoder.asked.clear()
            found, _ = model.score(ids, before, LENGTHS, missing)
            assert model.encoder.asked == [list(range(model.config.states))]
            assert_close(found.detach(), model.dense().score(ids, before, LENGTHS, missing)[0].detach())


@pytest.mark.parametrize(("support", "transition"), SUPPORTS)
def test_in_use_states_that_see_one_another_are_encoded_once_for_all_batches(support, transition, monkeypatch):
    model, state = mixing(monkeypatch, support, 0.5, transition).eval(), None
    with torch.no_grad():
        for seed in range(3):
            _, state = model.score(random_ids(5, 9, VOCABULARY, seed), state)
        model.next_token(state)
        model.smooth(random_ids(5, 9, VOCABULARY), state)
    assert model.encoder.asked == [list(range(model.config.states))]
