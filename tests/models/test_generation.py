"""Text that is drawn has the frequencies of the model."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models.generation import sample
from trellis.models.kneser_ney import KneserNey
from trellis.models.registry import config_class, model_class

from ..inference.frequencies import assert_frequencies, seeded
from ..inference.models import random_belief, random_hmm
from .makers import BLOCKS, CONFIGS, STATES, VOCABULARY, make, make_kind, random_ids

V, S = 7, 4
SMALL = {
    "kneser_ney": {"order": 3},
    "feed_forward": {"order": 3, "width": 4},
    "lstm": {"width": 4, "layers": 2},
    "awd_lstm": {"width": 4, "hidden": 5, "layers": 2},
    "transformer": {"width": 8, "layers": 1, "heads": 2, "context": 4, "begin": 0},
    "hmm_rnn": {"states": 3, "width": 4},
}


def baseline(kind):
    """A small model of a kind, whose words are far from equally probable."""
    config = config_class(kind)(V, **SMALL[kind])
    if kind == "kneser_ney":
        return KneserNey.fit(config, random_ids(1, 300, V)[0].numpy() // 2, end=1, quiet=True)
    model = model_class(kind)(config, seed=1).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # biases, which begin at zero, too
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


@pytest.mark.parametrize("kind", SMALL)
def test_the_next_word_of_every_kind_is_the_one_that_it_scores(kind):
    if kind == "transformer":
        pytest.importorskip("transformers")
    model = baseline(kind)
    words = torch.arange(V)[:, None]
    assert_close(model.next_token(), model.score(words)[0].detach().T)
    _, state = model.score(random_ids(3, 6, V))
    found = model.next_token(state.detach())
    assert_close(found.exp().sum(1), torch.ones(3, dtype=found.dtype))
    for row, log_prob_V in enumerate(found):
        assert_close(log_prob_V, model.score(words, state[row].expand(V, -1).detach())[0].detach().squeeze(1))
    assert model.next_token(state[:0].detach()).shape == (0, V)


@pytest.mark.parametrize("kind", SMALL)
def test_words_drawn_from_every_kind_have_its_frequencies(kind):
    if kind == "transformer":
        pytest.importorskip("transformers")
    model, rows = baseline(kind), 1000 if kind == "hmm_rnn" else 5000
    _, state = model.score(random_ids(1, 5, V))
    before = state.detach().expand(rows, -1)
    drawn = model.sample(rows, 2, before, end=2, generator=torch.Generator().manual_seed(0))
    pairs = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    expected = model.score(pairs, state.detach().expand(V * V, -1))[0].sum(1).exp().detach().view(V, V)
    expected[2] = torch.nn.functional.one_hot(torch.tensor(0), V) * expected[2].sum()  # a row that has ended: one cell
    ended = drawn.tokens_BT[:, 0] == 2
    assert drawn.lengths_B.tolist() == torch.where(ended, 1, 2).tolist()
    assert bool((drawn.tokens_BT[ended, 1] == -1).all())
    assert bool((drawn.states_BT == -1).all())
    cell = drawn.tokens_BT[:, 0] * V + drawn.tokens_BT[:, 1].clamp_min(0)
    assert_frequencies(cell, expected.flatten())


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


def test_samples_have_the_words_and_states_of_a_model_with_blocks():
    model = make_kind().eval()
    drawn = model.sample(3000, 2, generator=torch.Generator().manual_seed(0))
    assert (model.block_V[drawn.tokens_BT] == drawn.states_BT // (STATES // BLOCKS)).all()
    share = torch.bincount(drawn.tokens_BT[:, 0], minlength=VOCABULARY) / 3000
    assert_close(share.double(), model.next_token()[0].exp(), rtol=0, atol=0.03)
    word = int(share.argmax())
    first = drawn.tokens_BT[:, 0] == word
    assert first.sum() > 400
    share = torch.bincount(drawn.tokens_BT[first, 1], minlength=VOCABULARY) / first.sum()
    _, state = model.score(torch.tensor([[word]]))
    assert_close(share.double(), model.next_token(state)[0].exp(), rtol=0, atol=0.06)
    ended = model.sample(50, 6, end=2, generator=torch.Generator().manual_seed(1))
    for row, length in zip(ended.tokens_BT.tolist(), ended.lengths_B.tolist(), strict=True):
        assert 2 not in row[: length - 1]
        assert length == 6 or row[length - 1] == 2
        assert set(row[length:]) <= {-1}


def test_rows_have_the_lengths_asked_for():
    """With states that follow each other in a ring, each of which emits its own word."""
    lengths, ring = torch.tensor([3, 0, 5]), torch.eye(4).roll(1, 1)
    drawn = sample(torch.eye(4)[:3], lambda states_N: (ring[states_N], torch.eye(4)[states_N]), lengths)
    assert drawn.states_BT.tolist() == [[0, 1, 2, -1, -1], [-1] * 5, [2, 3, 0, 1, 2]]
    assert torch.equal(drawn.tokens_BT, drawn.states_BT)
    assert torch.equal(drawn.lengths_B, lengths)


def test_no_rows_are_drawn_if_none_are_asked_for():
    assert make_kind().eval().sample(0, 3).tokens_BT.shape == (0, 0)
    assert make(CONFIGS[0]).sample(2, 0).tokens_BT.shape == (2, 0)


def emission_table(states, tokens, seed):
    return torch.stack([random_belief(1, tokens, seed + s, zeros=0.3)[0] for s in range(states)])


def tables(transition_SS, emission_SV):
    """The rows of these tables, as `sample` asks for them."""
    return lambda states_N: (transition_SS[states_N], emission_SV[states_N])


def test_ancestral_samples_come_as_often_as_their_joint_probability():
    """States and tokens together: every (z, o) of two steps."""
    start, transition = (x.exp() for x in random_hmm(3, seed=6, zeros=0.2))
    emission_SV, lengths_B = emission_table(3, 4, seed=6), torch.full((30_000,), 2)
    drawn = sample(start.expand(30_000, -1), tables(transition, emission_SV), lengths_B, generator=seeded())
    one_SV = start[:, None] * emission_SV
    joint = one_SV[:, :, None, None] * transition[:, None, :, None] * emission_SV[None, None]
    pair_BT = drawn.states_BT * 4 + drawn.tokens_BT
    assert_frequencies(pair_BT[:, 0] * 12 + pair_BT[:, 1], joint.flatten())
    assert (drawn.lengths_B == 2).all()


def test_sampling_carries_on_from_a_belief():
    _, transition = (x.exp() for x in random_hmm(3, seed=7))
    belief_S, emission_SV = random_belief(1, 3, seed=7)[0], emission_table(3, 4, seed=7)
    ones, predicted_S = torch.ones(20_000, dtype=torch.int64), belief_S @ transition
    drawn = sample(predicted_S.expand(20_000, -1), tables(transition, emission_SV), ones, generator=seeded())
    assert_frequencies(drawn.tokens_BT[:, 0], belief_S @ transition @ emission_SV)


def test_ragged_samples_stop_at_their_length_or_the_end_token():
    start, transition = (x.exp() for x in random_hmm(3, seed=8))
    lengths_B, rows = torch.tensor([9, 0, 4, 9]).repeat(50), tables(transition, emission_table(3, 5, seed=9))
    drawn = sample(start.expand(200, -1), rows, lengths_B, end_token=2, generator=seeded())
    assert torch.equal(drawn.states_BT < 0, drawn.tokens_BT < 0)
    assert torch.equal((drawn.tokens_BT >= 0).sum(1), drawn.lengths_B)
    for tokens_T, asked, length in zip(drawn.tokens_BT, lengths_B, drawn.lengths_B, strict=True):
        ends = (tokens_T == 2).nonzero().flatten().tolist()
        assert ends in ([], [int(length) - 1])
        assert length == asked or ends
    assert lengths_B[0] == 9, "the caller's lengths must stay as they were"


def test_lengths_of_samples_are_geometric_when_every_token_may_end():
    emission_SV = torch.tensor([[0.25, 0.75]]).double()
    one = torch.ones(1, 1, dtype=torch.float64)
    lengths_B, first_BS = torch.full((20_000,), 6), one.expand(20_000, -1)
    drawn = sample(first_BS, tables(one, emission_SV), lengths_B, end_token=0, generator=seeded())
    geometric = [0.25 * 0.75**n for n in range(5)]
    assert_frequencies(drawn.lengths_B - 1, torch.tensor([*geometric, 1 - sum(geometric)]))


def test_no_rows_have_no_tokens():
    start, transition = (x.exp() for x in random_hmm(3, seed=10, dtype=torch.float32))
    drawn = sample(start.expand(0, -1), tables(transition, torch.eye(3)), torch.tensor([], dtype=torch.int64))
    assert drawn.tokens_BT.shape == (0, 0)
