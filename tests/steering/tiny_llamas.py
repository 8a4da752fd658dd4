"""Tiny Llamas and HMMs of one vocabulary of eight words, and every text that they could make, one by one."""

import functools
import itertools
import math

import numpy as np
import torch

from trellis.automata import Automaton, every, one_after_another
from trellis.models import HMM, HMMConfig
from trellis.text import WordTokenizer

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d", "e", "f"])
V, EOS = WORDS.vocab_size, WORDS.eos_id
ANY = every(np.ones(V, np.bool_))


@functools.cache
def llama(seed=0, vocab_size=V):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=vocab_size, max_position_embeddings=64, bos_token_id=None, eos_token_id=EOS, **sizes
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.8 * torch.randn(parameter.shape))
    return model


@functools.cache
def hmm(seed=0, states=4):
    model = HMM(HMMConfig(V, states), seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=generator))
    return model


def contains(*words):
    """Texts with all of these words, in any order."""
    found = ANY
    for word in words:
        found &= ANY.then(one_after_another([np.arange(V) == WORDS.id(word)], V)).then(ANY)
    return found


def lacks(word):
    return ~contains(word)


def accepts(automaton: Automaton, text) -> bool:
    """Whether a text without its end token is in a language that knows no ends."""
    return automaton.accepts(text)


def texts(tokens, ended=False):
    """Every text of up to so many tokens: with its end token, or cut off, unless it must have ended."""
    others = [token for token in range(V) if token != EOS]
    for size in range(tokens):
        for text in itertools.product(others, repeat=size):
            yield (*text, EOS)
    if not ended:
        yield from itertools.product(others, repeat=tokens)


def inner(text):
    """Without the end token."""
    return text[:-1] if text and text[-1] == EOS else text


@torch.no_grad()
def log_probs(model, prompt, all_texts, temperature=1.0):
    """log p(text | prompt) of a Llama, one text after another, each by itself."""
    found = {}
    for text in all_texts:
        ids = torch.tensor([[*prompt, *text]])
        log_prob_TV = (model(ids).logits[0] / temperature).log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(text) - 1)
        found[text] = sum(float(log_prob_TV[t, ids[0, t + 1]]) for t in places)
    return found


@torch.no_grad()
def chance(model, prompt, prefix, automaton, tokens, ended=False):
    """p(the text meets the constraint | prompt, prefix) of an HMM, by enumeration."""
    texts_from = [text for text in texts(tokens, ended) if text[: len(prefix)] == prefix]
    before = list(prompt) + list(prefix)
    carried = model.score(torch.tensor([before]))[1] if before else None
    total = 0.0
    for text in texts_from:
        if accepts(automaton, inner(text)):
            rest = text[len(prefix) :]
            total += math.exp(float(model.score(torch.tensor([rest]), carried)[0].sum())) if rest else 1.0
    return total
