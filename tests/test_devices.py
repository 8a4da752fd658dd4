"""Everything that models and runs do, on a device that is not the processor: the same answers, no tensor left behind.

The device is a pretended one (pretend_device.py): it computes as the processor does without native code, and refuses
to mix its tensors with the processor's.
"""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from trellis import inference, ops
from trellis.cli import main
from trellis.evaluation import PROTOCOLS, evaluate
from trellis.inspection import explained, inspect_states, stationary
from trellis.models import HMM, HMMConfig, load_model
from trellis.models.feed_forward import FeedForward, FeedForwardConfig
from trellis.models.hmm_rnn import HMMRNN, HMMRNNConfig
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import AWDLSTM, LSTM, AWDLSTMConfig, LSTMConfig
from trellis.models.supports import partition, uniform_subsets
from trellis.training import checkpoints, loop

from .pretend_device import PretendTensor, pretend_device
from .training.runs import (
    BATCHINGS,
    BLOCK_V,
    NEURAL,
    SCALAR,
    STATES,
    WORDS,
    diary,
    make_model,
    run,
    settings,
    some_labels,
    tensors,
    text,
)

V, MORE = WORDS.vocab_size, 16
LOW = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
FLAT = NEURAL | {"transition": "low_rank"}
HALF = {"dropout": 0.5}


def dense(seed, **shape):
    return HMM(HMMConfig(V, STATES, **shape), seed)


def blocks(seed, **shape):
    return HMM(HMMConfig(V, MORE, "brown", 2, **({"width": 6} | shape)), seed, partition(BLOCK_V, MORE, 2))


def uniform(seed, **shape):
    return HMM(HMMConfig(V, MORE, "uniform", 2, **({"width": 6} | shape)), seed, uniform_subsets(V, MORE, 8, seed=2))


HMMS = {
    "dense scalar": dense,
    "dense scalar, dropout": partial(dense, **HALF),
    "dense low-rank": partial(dense, **LOW),
    "dense low-rank, shared, dropout": partial(dense, **LOW, **HALF, shared=True),
    "dense neural": partial(dense, **LOW, encoder="residual"),
    "neural hierarchical": partial(blocks, **NEURAL),
    "neural hierarchical, dropout": partial(blocks, **NEURAL, **HALF),
    "neural flat, dropout": partial(blocks, **FLAT, **HALF),
    "factored hierarchical, dropout": partial(blocks, **(NEURAL | {"encoder": "factored"}), **HALF),
    "table hierarchical": partial(blocks, **(NEURAL | {"encoder": "table"})),
    "hierarchical scalar, dropout": partial(blocks, **SCALAR, **HALF),
    "flat scalar": blocks,
    "uniform neural, dropout": partial(uniform, **FLAT, **HALF),
    "uniform scalar, dropout": partial(uniform, **HALF),
}
BASELINES = {
    "lstm": lambda seed: LSTM(LSTMConfig(V, width=6), seed),
    "awd_lstm": lambda seed: AWDLSTM(AWDLSTMConfig(V, width=6, hidden=8, layers=2), seed),
    "feed_forward": lambda seed: FeedForward(FeedForwardConfig(V, width=6), seed),
    "hmm_rnn": lambda seed: HMMRNN(HMMRNNConfig(V, states=5, width=6), seed),
}


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


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


# Questions


def situations(model):
    """The same text asked about in every way there is."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(V, (3, 7), generator=generator)
    lengths = torch.tensor([7, 0, 4])
    missing = torch.rand(3, 7, generator=generator) < 0.4
    lists_VK = torch.arange(STATES).expand(V, -1) if model.support is None else model.support.lists()
    labels = lists_VK[ids][..., 1].masked_fill(torch.rand(3, 7, generator=generator) < 0.4, -1)
    state = torch.rand(3, model.config.states, generator=generator)
    state[:, 1:] *= torch.rand(3, model.config.states - 1, generator=generator) < 0.5
    carried = {"state": state / state.sum(1, keepdim=True)}
    spread = {"state": torch.full((3, model.config.states), 1 / model.config.states)}
    everything = {"labels_BT": lists_VK[ids][..., 2]}
    gaps, ragged, labels = {"missing_BT": missing}, {"lengths_B": lengths}, {"labels_BT": labels}
    ways = [
        {}, ragged, carried, ragged | carried, spread, gaps, gaps | ragged | carried, labels, labels | ragged | carried,
        everything, everything | ragged | carried, gaps | labels,
    ]  # fmt: skip
    return [*({"ids_BT": ids} | told for told in ways), {"ids_BT": ids[:, :0]} | carried, {"ids_BT": ids[:0]}]


QUESTIONS = {"score": (), "filter": (), "smooth": (), "viterbi": (), "k_best": (3,), "sample_posterior": (4,), "entropy": ()}


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


@pytest.mark.parametrize("name", HMMS)
def test_rows_too_improbable_for_float32_have_the_processors_answer(name, device):
    """Which are done again in float64, one by one."""
    model = HMMS[name](0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 40.0
    ids = torch.randint(V, (6, 9), generator=torch.Generator().manual_seed(3))
    told = {"ids_BT": ids, "lengths_B": torch.tensor([9, 8, 7, 6, 5, 4])}
    for question in QUESTIONS:
        assert_same_there(partial(ask, question), model, told, device)
    with torch.random.fork_rng(devices=[]):
        assert_same_there(seeded(gradients), model, told, device, rtol=1e-5, atol=1e-6)


def gradients(model, **told):
    log_prob_BT, state = model.train().score(**told)
    model.zero_grad()
    log_prob_BT.sum().backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [log_prob_BT, state, *found]


@pytest.mark.parametrize("name", HMMS)
def test_gradients_are_the_processors(name, device):
    model = HMMS[name](0)
    for told in situations(model):
        if "missing_BT" not in told or model.support is None:
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
    "most probable": lambda model, state: model.smooth(
        torch.tensor([[2, 3, 2]], device=model.device)
    ).most_probable(),
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
