"""Four things plugged into Trellis from outside, each in under forty lines: nothing in the library knows of them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from trellis.inference import Chain, Piece, Transition, score
from trellis.models import HMM, HMMConfig, encoders, load_model, transitions
from trellis.text import MemoryCorpus, WordTokenizer, prepare
from trellis.training import TrainingSettings, initialisers, objectives, train

WORDS = WordTokenizer(["<unk>", "<eos>", *"abcde"])


@pytest.fixture
def learn(tmp_path):
    """Train on a text in which letters follow each other in order, and give the run's losses and best model."""
    lines = tuple(" ".join("abcde"[(start + i) % 5] for i in range(6)) for start in (0, 1, 2, 3, 4) * 8)
    text = prepare(MemoryCorpus("letters", lines), WORDS, tmp_path / "cache", quiet=True)

    def learn(config, **changes):
        settings = TrainingSettings(batching="windows", batch_size=8, length=8, epochs=8.0, lr=0.1, **changes)
        make = lambda seed: HMM(config, seed)  # noqa: E731  # a name for it would say nothing more
        trained = train(make, WORDS, text, text, settings, tmp_path / "run", quiet=True)
        return trained.perplexity, load_model(trained.best)

    return learn


# An encoder: states are points on a ring, and see where all the others are.


class Ring(encoders.Encoder):
    def __init__(self, config, blocks, roles):
        super().__init__(config, blocks, roles)
        self.angle = nn.Parameter(torch.linspace(0.0, 6.0, config.states))
        self.out = nn.ModuleDict({role: nn.Linear(3, config.width) for role in sorted(roles)})

    def encode(self, states_N):
        angle_N = self.angle[states_N]
        middle = torch.tanh(angle_N).mean().expand_as(angle_N)  # of all the states of the batch
        return torch.stack([angle_N.cos(), angle_N.sin(), middle], 1)

    def vectors(self, role, encoded):
        return self.out[role](encoded)


def test_an_encoder(learn, monkeypatch):
    monkeypatch.setitem(encoders.ENCODERS, "ring", Ring)
    config = HMMConfig(WORDS.vocab_size, 6, transition="low_rank", emission="low_rank", encoder="ring", width=4)
    perplexity, model = learn(config)
    assert perplexity < 4  # five letters that come in any order would have 5 and more
    ids = torch.tensor([[2, 3, 4, 5]])
    assert_close(model.score(ids)[0], model.dense().score(ids)[0], rtol=1e-4, atol=1e-5)


# A transition: a state stays as it is with a probability of its own, or any state follows. Work is S a step, not S².


class Sticky(Transition):
    def __init__(self, stay_S, other_S):
        self.tensors, self.states = (stay_S, other_S), len(stay_S)

    def pieces(self, step, rows_B, *, log):
        stay_S, other_S = (tensor.detach() for tensor in self.tensors)
        into_SS = torch.diag(stay_S) + other_S[:, None] * (1 - stay_S)
        yield Piece(slice(0, len(rows_B)), slice(None), slice(None), into_SS.log() if log else into_SS)

    def push(self, belief_BS, step):
        stay_S, other_S = self.tensors
        return belief_BS * stay_S + (belief_BS * (1 - stay_S)).sum(1, keepdim=True) * other_S

    def pull(self, message_BS, step):
        stay_S, other_S = self.tensors
        return message_BS * stay_S + (message_BS @ other_S)[:, None] * (1 - stay_S)

    def gradient(self, belief_TBS, message_TBS):
        stay_S, other_S = self.tensors
        gone_TB1 = (belief_TBS * (1 - stay_S)).sum(-1, keepdim=True)
        by_stay_S = (belief_TBS * (message_TBS - (message_TBS @ other_S)[..., None])).sum((0, 1))
        return by_stay_S, (gone_TB1 * message_TBS).sum((0, 1))


class StickyPart(transitions.TransitionPart):
    def __init__(self, config, blocks):
        super().__init__()
        self.stay, self.other = nn.Parameter(torch.randn(config.states)), nn.Parameter(torch.randn(config.states))

    def log_rows(self, vectors, from_N, to_S):
        stay_N, other_S = self.stay[from_N].sigmoid(), self.other[to_S].softmax(0)
        return ((from_N[:, None] == to_S) * stay_N[:, None] + other_S * (1 - stay_N)[:, None]).log()

    def between(self, vectors, states_S):
        return Sticky(self.stay[states_S].sigmoid(), self.other[states_S].softmax(0))


def test_a_transition(learn, monkeypatch):
    monkeypatch.setitem(transitions.TRANSITIONS, "sticky", StickyPart)
    model = HMM(HMMConfig(WORDS.vocab_size, 6, transition="sticky"), seed=0).double()
    ids = torch.randint(2, 7, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths, every = torch.tensor([9, 1, 5]), torch.arange(6)
    _, state = model.score(ids)
    found = torch.autograd.grad(model.score(ids, state, lengths)[0].sum(), model.parameters(), retain_graph=True)
    tables = model.log_start(), model.transition.log_rows(None, every, every), model.emission.table.log_softmax(0)[ids]
    slow = score(Chain.dense(*tables, lengths, state))[0].sum()
    assert_close(found, torch.autograd.grad(slow, model.parameters()))
    dense = model.dense()
    for question in ("viterbi", "entropy", "smooth"):
        for found, want in zip(getattr(model, question)(ids), getattr(dense, question)(ids), strict=True):
            assert_close(found, want)
    perplexity, model = learn(HMMConfig(WORDS.vocab_size, 6, transition="sticky"))
    assert perplexity < 6.5
    assert model.config.transition == "sticky"


# An objective: the likelihood, and a price on every nat by which a token's probability is below one in a thousand.


def priced(model, batch, state):
    log_prob_BT, state = model.score(batch.ids, state, batch.lengths)
    return log_prob_BT + 0.1 * (log_prob_BT + 7.0).clamp_max(0.0), state


def test_an_objective(learn, monkeypatch):
    monkeypatch.setitem(objectives.OBJECTIVES, "priced", priced)
    perplexity, _ = learn(HMMConfig(WORDS.vocab_size, 6), objective="priced")
    assert perplexity < 4


# An initialiser: each state begins with a word of its own.


def a_word_each(beginning):
    model = beginning.make(beginning.seed)
    states, vocab_size = model.config.states, model.config.vocab_size
    with torch.no_grad():
        model.emission.table[torch.arange(states) % vocab_size, torch.arange(states)] += 5.0
    return model


def test_an_initialiser(learn, monkeypatch):
    monkeypatch.setitem(initialisers.INITIALISERS, "a_word_each", a_word_each)
    perplexity, model = learn(HMMConfig(WORDS.vocab_size, WORDS.vocab_size), init="a_word_each")
    assert perplexity < 2.5
    own_word = model.tables().emission_SV.argmax(1)
    assert (own_word == torch.arange(WORDS.vocab_size)).sum() >= 5  # where it began, there it stayed
