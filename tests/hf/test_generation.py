"""`generate` of transformers says what the obvious loop over `score` and `next_token` does."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError

from ..models.makers import random_ids
from .models import EOS, MAKERS, dense, wrapped

HMMS = {name: make for name, make in MAKERS.items() if name != "n-grams"}
every_hmm = pytest.mark.parametrize("make", HMMS.values(), ids=HMMS.keys())
PAD = 0


def ragged(model, lengths, seed=0):
    """Prompts of these lengths, padded at the left, with their mask."""
    longest = max(lengths)
    ids_BT = random_ids(len(lengths), longest, model.config.vocab_size, seed)
    mask_BT = (torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]).long()
    return ids_BT.masked_fill(mask_BT == 0, PAD), mask_BT


@torch.no_grad()
def obvious_loop(model, prompt, count, choose, eos=None):
    """One text by itself: score it, choose a word, score that, until the end."""
    _, state = model.score(torch.tensor([prompt]))
    text = []
    for _ in range(count):
        word = choose(model.next_token(state)[0])
        text.append(word)
        if word == eos:
            break
        _, state = model.score(torch.tensor([[word]]), state)
    return text


@every_hmm
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_continuations_are_those_of_the_loop(make, use_cache):
    model = make()
    ids_BT, mask_BT = ragged(model, [4, 1, 3])
    found = wrapped(model).generate(
        ids_BT, attention_mask=mask_BT, max_new_tokens=6, do_sample=False, use_cache=use_cache, pad_token_id=PAD
    )
    for row, (ids, mask) in enumerate(zip(ids_BT, mask_BT, strict=True)):
        wanted = obvious_loop(model, ids[mask == 1].tolist(), 6, lambda log_prob: int(log_prob.argmax()))
        assert found[row, 4:].tolist() == wanted


def test_a_row_ends_with_eos_and_others_go_on():
    model = dense(4, 3)
    whole = wrapped(model, "start", EOS)
    ids_BT, mask_BT = ragged(model, [3, 2, 1, 3, 2, 1], seed=2)
    torch.manual_seed(0)
    found = whole.generate(ids_BT, attention_mask=mask_BT, max_new_tokens=12, do_sample=True, pad_token_id=PAD)
    ends = [row[3:].tolist().index(EOS) for row in found if EOS in row[3:]]
    assert len(set(ends)) > 1  # or nothing is tested
    for row in found[:, 3:].tolist():
        after = row[row.index(EOS) + 1 :] if EOS in row else []
        assert set(after) <= {PAD}


@pytest.mark.parametrize(
    ("asked", "keep"),
    [
        ({"top_k": 0}, lambda prob: prob),
        ({"temperature": 0.5, "top_k": 0}, lambda prob: prob**2),
        ({"top_k": 2}, lambda prob: torch.where(prob >= prob.topk(2).values[:, -1:], prob, 0)),
        ({"top_k": 0, "top_p": 0.6}, lambda prob: torch.where(nucleus(prob, 0.6), prob, 0)),
    ],
    ids=["plain", "temperature", "top k", "top p"],
)
def test_samples_are_those_of_the_loop_by_the_same_random_numbers(asked, keep):
    model = dense(6, 4)
    ids_BT = random_ids(5, 3, 6)
    torch.manual_seed(7)
    everything_BT = torch.ones_like(ids_BT)
    found = wrapped(model).generate(ids_BT, attention_mask=everything_BT, max_new_tokens=8, do_sample=True, **asked)
    torch.manual_seed(7)
    _, state = model.score(ids_BT)
    for t in range(3, 11):
        prob_BV = keep(model.next_token(state.detach()).exp())
        word_B1 = torch.multinomial((prob_BV / prob_BV.sum(1, keepdim=True)).float(), 1)
        assert torch.equal(found[:, t : t + 1], word_B1)
        _, state = model.score(word_B1, state)


def nucleus(prob_BV, share):
    """The fewest words, the most probable first, that together have this share."""
    sorted_BV, order_BV = prob_BV.sort(descending=True)
    before_BV = sorted_BV.cumsum(1) - sorted_BV
    return torch.zeros_like(prob_BV, dtype=torch.bool).scatter(1, order_BV, before_BV < share)


@every_hmm
def test_beams_wide_enough_find_what_a_search_of_all_texts_does(make):
    model = make()
    vocab_size = model.config.vocab_size
    ids_BT, mask_BT = ragged(model, [3, 1])
    found = wrapped(model).generate(
        ids_BT,
        attention_mask=mask_BT,
        max_new_tokens=3,
        num_beams=vocab_size**2,
        num_return_sequences=4,
        do_sample=False,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for row, (ids, mask) in enumerate(zip(ids_BT, mask_BT, strict=True)):
        prompt = ids[mask == 1].tolist()
        texts = list(itertools.product(range(vocab_size), repeat=3))
        with torch.no_grad():
            log_prob_BT, _ = model.score(torch.tensor([[*prompt, *text] for text in texts]))
        best = log_prob_BT[:, -3:].sum(1).topk(4)
        these = slice(4 * row, 4 * row + 4)
        assert found.sequences[these, 3:].tolist() == [list(texts[place]) for place in best.indices]
        assert_close(found.sequences_scores[these].double(), best.values / 3, atol=1e-5, rtol=0)  # a mean, as theirs is


def test_several_samples_of_one_prompt_differ_and_begin_alike():
    model = wrapped(dense(6, 4))
    torch.manual_seed(0)
    found = model.generate(random_ids(2, 3, 6), max_new_tokens=8, do_sample=True, num_return_sequences=5)
    assert found.shape == (10, 11)
    assert len(set(map(tuple, found.tolist()))) > 5
    assert len(set(map(tuple, found[:5, :3].tolist()))) == 1


def test_without_a_prompt_a_text_begins_at_the_mark():
    model = dense()
    for begins, before in (("start", None), ("eos", model.score(torch.tensor([[EOS]]))[1].detach())):
        found = wrapped(model, begins, EOS).generate(max_new_tokens=1, do_sample=False)
        assert found[0].tolist() == [EOS, int(model.next_token(before)[0].argmax())]


def test_a_conversation_goes_on_from_its_cache():
    model = wrapped(dense())
    first = model.generate(random_ids(1, 3, 5), max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    more = torch.cat([first.sequences, torch.tensor([[2, 3]])], 1)
    with_cache = model.generate(more, past_key_values=first.past_key_values, max_new_tokens=4, do_sample=False)
    assert torch.equal(with_cache, model.generate(more, max_new_tokens=4, do_sample=False))


def test_a_prompt_without_probability_is_refused():
    model = dense()
    tables = model.tables()
    emission_SV = tables.emission_SV.clone()
    emission_SV[:, 2] = 0
    model.set_tables(tables.start_S, tables.transition_SS, emission_SV / emission_SV.sum(1, keepdim=True))
    with pytest.raises(TrellisError, match="gives the prompt no probability"):
        wrapped(model).generate(torch.tensor([[2]]), max_new_tokens=2)


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_step_costs_one_token_whatever_came_before(use_cache, monkeypatch):
    model, asked = dense(), []
    score = model.score
    monkeypatch.setattr(model, "score", lambda ids, *more: (asked.append(ids.shape[1]), score(ids, *more))[1])
    wrapped(model).generate(random_ids(1, 5, 5), max_new_tokens=3, do_sample=False, use_cache=use_cache)
    read = [length for length in asked if length]
    assert read == ([5, 1, 1] if use_cache else [5, 6, 7])


def test_n_grams_generate_too():
    model = MAKERS["n-grams"]()
    found = wrapped(model).generate(torch.tensor([[2, 3]]), max_new_tokens=3, do_sample=False)
    text = [2, 3]
    for _ in range(3):
        scored = model.score(torch.tensor([[*text, word] for word in range(6)]))[0][:, -1]
        text.append(int(scored.argmax()))
    assert found[0].tolist() == text
