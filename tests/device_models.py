"""Small models of every kind, asked here and on a pretended device (pretend_device.py): the answers are the same."""

from functools import partial

from torch import Tensor
from torch.testing import assert_close

from trellis import ops
from trellis.models import HMM, HMMConfig
from trellis.models.feed_forward import FeedForward, FeedForwardConfig
from trellis.models.hmm_rnn import HMMRNN, HMMRNNConfig
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig
from trellis.models.supports import partition, uniform_subsets
from trellis.models.transformer import TransformerLM, TransformerLMConfig

from .training.runs import (
    BLOCK_V,
    NEURAL,
    SCALAR,
    STATES,
    WORDS,
    text,
)

V, MORE = WORDS.vocab_size, 16
LOW = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
FLAT = NEURAL | {"transition": "low_rank"}


def dense(seed, **shape):
    return HMM(HMMConfig(V, STATES, **shape), seed)


def blocks(seed, **shape):
    return HMM(HMMConfig(V, MORE, "brown", 2, **({"width": 6} | shape)), seed, partition(BLOCK_V, MORE, 2))


def uniform(seed, **shape):
    return HMM(HMMConfig(V, MORE, "uniform", 2, **({"width": 6} | shape)), seed, uniform_subsets(V, MORE, 8, seed=2))


HMMS = {
    "dense scalar": dense,
    "dense low-rank": partial(dense, **LOW),
    "neural hierarchical": partial(blocks, **NEURAL),
    "neural flat": partial(blocks, **FLAT),
    "factored hierarchical": partial(blocks, **(NEURAL | {"encoder": "factored"})),
    "hierarchical scalar": partial(blocks, **SCALAR),
    "flat scalar": blocks,
    "uniform neural": partial(uniform, **FLAT),
    "uniform scalar": uniform,
}
BASELINES = {
    "lstm": lambda seed: LSTM(LSTMConfig(V, width=6), seed),
    "awd_lstm": lambda seed: AWDLSTM(AWDLSTMConfig(V, width=6, hidden=8, layers=2), seed),
    "feed_forward": lambda seed: FeedForward(FeedForwardConfig(V, width=6), seed),
    "transformer": lambda seed: TransformerLM(TransformerLMConfig(V, width=8, layers=2, heads=2, context=4), seed),
    "hmm_rnn": lambda seed: HMMRNN(HMMRNNConfig(V, states=5, width=6), seed),
}


def counting(folder):
    return KneserNey.for_text(KneserNeyConfig(V, order=3), text(folder / "cache"), WORDS, 0)


def there(thing, device):
    """Tensors on the device, in whatever they are held."""
    if isinstance(thing, Tensor):
        return thing.to(device)
    return {name: there(value, device) for name, value in thing.items()} if isinstance(thing, dict) else thing


def answers(found):
    """All tensors of an answer, by name."""
    if isinstance(found, HMM):
        return {name: tensor.detach() for name, tensor in found.state_dict().items()}
    if isinstance(found, Tensor):
        return {"answer": found.detach()}
    names = getattr(found, "_fields", range(len(found)))
    return {name: part.detach() for name, part in zip(names, found, strict=True)}


def assert_same_there(ask, model, told, device, **near):
    """Ask here, of PyTorch alone, then there; what is found there stays there."""
    with ops.using(None):
        want = answers(ask(model, **told))
        model.zero_grad()
        found = answers(ask(model.to(device), **there(told, device)))
    model.to("cpu")
    assert {name: tensor.device for name, tensor in found.items()} == dict.fromkeys(want, device)
    for name in want:
        assert_close(found[name].cpu(), want[name], **near, msg=lambda said, name=name: f"{name}: {said}")
