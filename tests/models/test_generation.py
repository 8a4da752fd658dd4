"""Text that is drawn has the frequencies of the model."""

import torch
from torch.testing import assert_close

from trellis.models.generation import sample

from ..inference.frequencies import assert_frequencies, seeded
from ..inference.models import random_belief, random_hmm
from .makers import BLOCKS, CONFIGS, STATES, VOCABULARY, make, make_kind, random_ids

V, S = 7, 4


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
