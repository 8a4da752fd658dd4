"""Texts drawn from a causal model have the distribution that the model gives."""

import itertools

import numpy as np
import pytest
import torch

from trellis.distillation.drawing import Speaker, draw_texts, load_speaker
from trellis.distillation.teachers import find_teacher
from trellis.errors import TrellisError
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.text import SubwordTokenizer

from ..hf.models import wrapped
from .makers import llama_config, load_llama, save_llama


class Tokens:
    """As much of a tokenizer as drawing asks for."""

    def __init__(self, vocab_size, eos_id):
        self.vocab_size, self.eos_id = vocab_size, eos_id


def speaker(vocab_size=5, begin=0, ends=(0,), eos_id=0, known=None, scale=40.0):
    """A model of few tokens and strong opinions, so that its texts are neither all alike nor all equally likely."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(3)
    model = LlamaForCausalLM(llama_config(vocab_size)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return Speaker(model, Tokens(known or vocab_size, eos_id), begin, ends, 128)


def recurrent_speaker():
    """Our own LSTM, which carries on a state instead of keys and values."""
    model = LSTM(LSTMConfig(5, width=8, layers=1), seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8.0)
    return Speaker(wrapped(model), Tokens(5, 0), 0, (0, 4), None)


def probabilities(one, length, temperature=1.0):
    """Every text of at most so many tokens and its probability, by reading each whole, without a cache."""
    known, found = one.tokenizer.vocab_size, {}
    for text in itertools.product(range(known), repeat=length):
        ids = torch.tensor([[one.begin, *text[:-1]]])
        with torch.no_grad():
            log_probs = (one.model(ids, use_cache=False).logits[0, :, :known] / temperature).log_softmax(-1)
        stop = next((place for place, token in enumerate(text) if token in one.ends), length - 1)
        seen = text[: stop + 1]
        if seen[-1] in one.ends:
            seen = (*seen[:-1], one.tokenizer.eos_id)
        log_prob = sum(log_probs[place, text[place]].item() for place in range(stop + 1))
        found.setdefault(seen, {})[text[: stop + 1]] = np.exp(log_prob)
    return {seen: sum(ways.values()) for seen, ways in found.items()}


@pytest.mark.parametrize(
    "make", [lambda: speaker(begin=0, ends=(0, 4), known=5), recurrent_speaker], ids=["llama", "lstm"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_texts_are_as_frequent_as_the_model_finds_them_probable(temperature, make):
    one, count = make(), 4000
    expected = probabilities(one, 3, temperature)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    assert max(expected.values()) < 0.8
    texts = draw_texts(one, count, 3, temperature, torch.Generator().manual_seed(1))
    drawn = dict.fromkeys(expected, 0)
    for text in texts:
        drawn[tuple(text.tolist())] += 1
    for text, probability in expected.items():
        deviation = np.sqrt(count * probability * (1 - probability))
        assert abs(drawn[text] - count * probability) < 5 * deviation + 1, text


def test_leaving_out_texts_that_ended_changes_no_others(monkeypatch):
    """Rows that went on after others were left out read what they had read: greedy texts are the same either way."""
    one = speaker(vocab_size=40, ends=tuple(range(12)), scale=25.0)
    texts = {}
    for crowded in (0.0, 1.0):
        monkeypatch.setattr("trellis.distillation.drawing._CROWDED", crowded)
        starts = _greedy_after(one, 40, 12, monkeypatch)
        texts[crowded] = [text.tolist() for text in starts]
    assert texts[0.0] == texts[1.0]
    assert len({len(text) for text in texts[0.0]}) > 2


def _greedy_after(one, count, length, monkeypatch):
    """Texts whose first tokens are 0, 1, 2 …, and whose others are the most probable."""
    first = iter([True])

    def pick(weight_NV, generator):
        return torch.arange(count) if next(first, False) else weight_NV.argmax(-1)

    monkeypatch.setattr("trellis.distillation.drawing.draw", pick)
    return draw_texts(one, count, length, 1.0, torch.Generator())


def test_a_text_reads_back_as_the_library_reads_it(monkeypatch):
    """With the kept keys and values, every greedy token is the most probable one of the library's whole reading."""
    one = speaker(vocab_size=40, ends=(0,), scale=25.0)
    for text in _greedy_after(one, 40, 12, monkeypatch)[1:]:
        ids = torch.tensor([[0, *text.tolist()]])
        with torch.no_grad():
            best = one.model(ids, use_cache=False).logits[0].argmax(-1)
        assert best[1:-1].tolist() == text.tolist()[1:]


def test_ends_are_the_tokenizers_and_cut_texts_have_none():
    one = speaker(vocab_size=6, begin=1, ends=(1, 4), eos_id=2, scale=5.0)
    texts = draw_texts(one, 200, 6, 1.0, torch.Generator().manual_seed(2))
    ended = [text for text in texts if text[-1] == 2 and len(text) < 6]
    cut = [text for text in texts if text[-1] != 2]
    assert ended
    assert cut
    assert all(len(text) == 6 for text in cut)
    assert not any(set(text.tolist()) & {1, 4} for text in texts)


def test_without_a_token_for_it_a_text_just_ends():
    one = speaker(vocab_size=6, begin=1, ends=(1,), eos_id=None, scale=5.0)
    texts = draw_texts(one, 100, 6, 1.0, torch.Generator().manual_seed(2))
    assert {len(text) for text in texts} == set(range(7))
    assert not any(1 in text for text in texts)


def test_tokens_that_the_tokenizer_does_not_have_are_never_drawn():
    one = speaker(vocab_size=40, ends=(0,), known=7, scale=5.0)
    texts = draw_texts(one, 100, 5, 1.0, torch.Generator().manual_seed(2))
    assert max(text.max() for text in texts if len(text)) == 6


def test_drawn_tokens_are_told_of():
    told = []
    texts = draw_texts(speaker(scale=5.0), 50, 6, 1.0, torch.Generator().manual_seed(2), told.append)
    assert sum(told) == sum(len(text) for text in texts)


def test_a_saved_model_speaks_with_its_own_tokens(llama, bpe):
    found = load_speaker(find_teacher(str(llama), 0))
    assert (found.begin, found.longest, found.tokenizer.fingerprint()) == (0, 128, bpe.fingerprint())
    assert set(found.ends) == {0, load_llama(llama).config.eos_token_id}
    assert next(load_speaker(find_teacher(str(llama), 0), "bf16").model.parameters()).dtype == torch.bfloat16


def test_a_model_without_a_beginning_is_refused(bpe, tmp_path):
    save_llama(tmp_path, bpe, bos_token_id=None, eos_token_id=None)
    with pytest.raises(TrellisError, match="names no token that texts begin with"):
        load_speaker(find_teacher(str(tmp_path), 0))


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    bare = SubwordTokenizer.train_bpe(["one text"], 300)
    save_llama(tmp_path, bare)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(TrellisError, match="has no tokenizer"):
        load_speaker(find_teacher(str(tmp_path), 0))
