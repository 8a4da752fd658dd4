"""Text that is drawn has the frequencies of the model."""

import torch
from torch.testing import assert_close

from trellis.models.generation import sample

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
