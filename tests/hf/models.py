"""Tiny models of every kind that transformers is told of, and the obvious ways to their answers."""

import itertools

import torch
from torch import Tensor

from trellis.hf import TrellisConfig, TrellisForCausalLM
from trellis.models import HMM, HMMConfig
from trellis.models.feed_forward import FeedForward, FeedForwardConfig
from trellis.models.hmm_rnn import HMMRNN, HMMRNNConfig
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import LSTM, LSTMConfig

from ..models.makers import VOCABULARY, make_kind, random_ids, sharpened

LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
EOS = 1


def dense(vocab_size: int = 5, states: int = 3) -> HMM:
    return sharpened(HMM(HMMConfig(vocab_size, states), seed=4)).double().eval()


def remembering(memory: int) -> HMM:
    return sharpened(HMM(HMMConfig(6, 4, **LOW_RANK, memory=memory), seed=2)).double().eval()


COUNTED = random_ids(1, 400, 6)[0].numpy()


def counting() -> KneserNey:
    return KneserNey.fit(KneserNeyConfig(6, order=3), COUNTED, EOS, quiet=True).eval()


def remembering_and_counting(cache: int = 0) -> HMM:
    model = make_kind(support="brown", memory=1, ngrams=4, cache=cache).eval()
    model.ngrams.count(COUNTED, EOS, quiet=True)
    return model


MAKERS = {
    "dense": dense,
    "brown blocks": lambda: make_kind(support="brown").eval(),
    "uniform subsets": lambda: make_kind(support="uniform", transition="low_rank", encoder="table").eval(),
    "a block a word": lambda: make_kind(support="words").eval(),
    "memory": lambda: remembering(1),
    "memory of two": lambda: remembering(2),
    "memory and n-grams": remembering_and_counting,
    "a cache of words": lambda: remembering_and_counting(cache=5),
    "n-grams": counting,
    "n-grams by a network": lambda: FeedForward(FeedForwardConfig(6, width=4, order=3), seed=5).double().eval(),
    "lstm": lambda: LSTM(LSTMConfig(6, width=4), seed=5).double().eval(),
    "hmm of an rnn": lambda: HMMRNN(HMMRNNConfig(6, states=3, width=4), seed=5).double().eval(),
}
assert VOCABULARY > EOS


def wrapped(model, begins: str = "start", eos: int | None = None) -> TrellisForCausalLM:
    """The model for transformers, in which no token ends or begins a text unless one is said to."""
    config = TrellisConfig(
        trellis={}, vocab_size=model.config.vocab_size, begins=begins, eos_token_id=eos, bos_token_id=eos
    )
    return TrellisForCausalLM(config, model).eval()


@torch.no_grad()
def obvious(model, text: list[int], begins: list[int] = ()) -> Tensor:
    """log p(word | text) of every word, V: the text is scored once with each."""
    texts = [[*begins, *text, word] for word in range(model.config.vocab_size)]
    return model.score(torch.tensor(texts))[0][:, -1]


def enumerated(model: HMM, text: list[int]) -> Tensor:
    """The same of a dense model by the sum over all paths of states."""
    start_S, transition_SS, emission_SV = (table.double() for table in model.tables())
    joint_V = torch.zeros(model.config.vocab_size, dtype=torch.float64)
    for path in itertools.product(range(model.config.states), repeat=len(text) + 1):
        weight = start_S[path[0]]
        for (here, there), word in zip(itertools.pairwise(path), text, strict=True):
            weight = weight * emission_SV[here, word] * transition_SS[here, there]
        joint_V += weight * emission_SV[path[-1]]
    return (joint_V / joint_V.sum()).log()
