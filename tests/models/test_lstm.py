import pytest
import torch

from trellis.errors import TrellisError
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig

from .makers import random_ids
from .scoring import (
    assert_it_survives_the_disk,
    assert_padding_does_not_matter,
    assert_pieces_make_the_whole,
    total_probability,
)

MAKERS = {
    "lstm": lambda: LSTM(LSTMConfig(9, width=6, layers=2), seed=0),
    "awd_lstm": lambda: AWDLSTM(AWDLSTMConfig(9, width=4, hidden=6, layers=3), seed=0),
}


@pytest.fixture(params=MAKERS)
def model(request):
    """A small model, sharp enough that its past matters."""
    made = MAKERS[request.param]().double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4.0)
    return made.eval()


def test_the_state_is_all_there_is_to_know(model):
    assert_pieces_make_the_whole(model, 9, tolerance=1e-12)
    assert_padding_does_not_matter(model, 9, tolerance=1e-12)


def test_it_survives_the_disk(model, tmp_path):
    assert_it_survives_the_disk(model, 9, tmp_path)
    assert_it_survives_the_disk(model.float(), 9, tmp_path)


def test_probabilities_sum_to_one_and_depend_on_the_past(model):
    states = [None, *(model.score(random_ids(1, 5, 9, seed))[1] for seed in range(3))]
    assert [total_probability(model, state, 9) for state in states] == pytest.approx([1.0] * 4, abs=1e-12)
    a, b = (model.score(torch.tensor([[first, 2, 3, 4]]))[0][0, -1] for first in (0, 1))
    assert float((a - b).detach().abs()) > 1e-6


def test_a_word_is_not_read_before_it_is_scored(model):
    """Every token's gradient by what is read reaches back to the tokens before it and no farther."""
    ids = random_ids(1, 6, 9)
    changed = ids.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 9
    assert torch.equal(model.score(ids)[0][0, :3], model.score(changed)[0][0, :3])


def test_it_is_the_network_of_the_appendix():
    """Word vectors through layers of torch's own LSTM, shifted by one, through the word vectors again."""
    model = LSTM(LSTMConfig(9, width=6, layers=2), seed=0).double().eval()
    torch.nn.init.normal_(model.words.bias)
    plain = torch.nn.LSTM(6, 6, 2, batch_first=True).double()
    for number, layer in enumerate(model.recurrence.layers):
        for name, parameter in layer.named_parameters():
            getattr(plain, name.replace("l0", f"l{number}")).data = parameter.data
    ids = random_ids(3, 7, 9)
    hidden, _ = plain(model.words.vectors[ids])
    hidden = torch.cat([hidden.new_zeros(3, 1, 6), hidden[:, :-1]], 1)
    wanted = (hidden @ model.words.vectors.T + model.words.bias).log_softmax(-1).gather(2, ids[..., None])[..., 0]
    assert torch.allclose(model.score(ids)[0], wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "published"), [(lambda: LSTM(LSTMConfig(10_000)), 3.6e6), (lambda: AWDLSTM(AWDLSTMConfig(10_000)), 24e6)]
)
def test_by_default_it_is_as_large_as_published(make, published):
    assert sum(parameter.numel() for parameter in make().parameters()) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", MAKERS)
def test_learning_drops_and_a_seed_decides_what(name):
    model, ids = MAKERS[name](), random_ids(2, 6, 9)
    scores = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        scores.append(model.score(ids)[0])
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


def test_a_dropped_word_reads_as_zero_wherever_it_stands():
    model = AWDLSTM(AWDLSTMConfig(50, width=4, hidden=6, layers=1, word_dropout=0.5, input_dropout=0.0), seed=0)
    torch.manual_seed(0)
    ids = random_ids(8, 40, 50)
    zero = (model._read(ids) == 0).all(-1)
    dropped = set(ids[zero].tolist())
    assert 10 < len(dropped) < 40
    assert zero.equal(torch.isin(ids, torch.tensor(sorted(dropped))))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LSTMConfig(9, width=0), "model.width must be at least 1, not 0."),
        (lambda: LSTMConfig(9, layers=0), "model.layers must be at least 1, not 0."),
        (lambda: LSTMConfig(9, dropout=1.0), "model.dropout must be at least 0 and below 1, not 1.0."),
        (lambda: AWDLSTMConfig(9, weight_dropout=-0.1), "model.weight_dropout must be at least 0"),
        (lambda: LSTMConfig(1), "a vocabulary of 1 word leaves nothing to predict"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be(make, said):
    with pytest.raises(TrellisError) as caught:
        make()
    assert str(caught.value).startswith(said)


def test_ids_outside_the_vocabulary_are_refused(model):
    with pytest.raises(TrellisError, match="token id 9 is outside"):
        model.score(torch.tensor([[9]]))


def test_the_next_token_is_what_score_says_of_every_word(model):
    for state in (None, model.score(random_ids(2, 5, 9))[1]):
        rows = 1 if state is None else len(state)
        of_each = [model.score(torch.full((rows, 1), word), state)[0] for word in range(9)]
        assert torch.allclose(model.next_token(state), torch.cat(of_each, 1), atol=1e-12)


def test_tokens_go_by_without_their_probabilities(model):
    ids = random_ids(2, 5, 9)
    _, state = model.score(ids)
    assert torch.equal(model.advance(ids), state)
    assert torch.allclose(model.advance(ids[:, 3:], model.advance(ids[:, :3])), state, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_tokens_are_drawn_from_the_softmax(model, temperature):
    state = model.advance(random_ids(1, 5, 9))
    drawn = model.draw_token(state.expand(20_000, -1), 20_000, torch.Generator().manual_seed(0), temperature)
    frequency = torch.bincount(drawn, minlength=9) / len(drawn)
    assert torch.allclose(frequency.double(), (model.next_token(state)[0] / temperature).softmax(0), atol=0.012)
    first = model.draw_token(None, 20_000, torch.Generator().manual_seed(0), temperature)
    frequency = torch.bincount(first, minlength=9) / len(first)
    assert torch.allclose(frequency.double(), (model.next_token()[0] / temperature).softmax(0), atol=0.012)
