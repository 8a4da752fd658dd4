"""What every model's `score` must keep, whatever its kind."""

import torch

from trellis.models import load_model

from .makers import random_ids


def assert_pieces_make_the_whole(model, vocab_size, cuts=(1, 2, 6), tolerance=1e-5):
    """Scoring a text in pieces, the state handed on, equals scoring it whole."""
    ids = random_ids(3, 11, vocab_size)
    whole, last = model.score(ids)
    parts, state = [], None
    for begin, stop in zip((0, *cuts), (*cuts, 11), strict=True):
        scores, state = model.score(ids[:, begin:stop], state)
        parts.append(scores)
    assert (torch.cat(parts, 1) - whole).abs().max() < tolerance
    assert (state - last).abs().max() < tolerance
    assert state.shape[0] == 3
    assert state.dim() == 2


def assert_padding_does_not_matter(model, vocab_size, tolerance=1e-5):
    """Rows of other lengths score as they do alone, whatever stands past their ends; zero is what is said of that."""
    ids, lengths = random_ids(4, 7, vocab_size), torch.tensor([7, 1, 4, 2])
    before = model.score(random_ids(4, 3, vocab_size, seed=1))[1]
    scores, state = model.score(ids, before, lengths)
    garbage = ids.clone()
    garbage[torch.arange(7) >= lengths[:, None]] = -(2**40)
    again, again_state = model.score(garbage, before, lengths)
    assert torch.equal(scores, again)
    assert torch.equal(state, again_state)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_state = model.score(ids[row : row + 1, :length], before[row : row + 1])
        assert (scores[row, :length] - alone[0]).abs().max() < tolerance
        assert (state[row] - alone_state[0]).abs().max() < tolerance
        assert not scores[row, length:].any()


def assert_it_survives_the_disk(model, vocab_size, folder):
    """The same scores to the bit after saving and loading, by its kind and by its class."""
    ids = random_ids(3, 8, vocab_size)
    model.eval().save_pretrained(folder / "model")
    for again in (load_model(folder / "model"), type(model).from_pretrained(folder / "model")):
        assert again.config == model.config
        assert not again.training
        assert torch.equal(again.score(ids)[0], model.score(ids)[0])


@torch.no_grad()
def total_probability(model, state, vocab_size):
    """What the probabilities of all words that could come next add up to."""
    rows = None if state is None else state.expand(vocab_size, -1)
    return float(model.score(torch.arange(vocab_size)[:, None], rows)[0].double().exp().sum())
