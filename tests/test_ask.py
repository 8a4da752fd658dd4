"""Questions in words are answered as going through every text would answer them."""

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from trellis import TrellisError, WordTokenizer, ask
from trellis.constraints import contains, ends_with, length, without
from trellis.models import HMM, HMMConfig
from trellis.models.pretrained import Pretrained

TOKENIZER = WordTokenizer(["<unk>", "<eos>", "the", "cat", "dog"])
LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
END, WORDS = 1, 5


def loaded_of(seed=0, **changes):
    model = HMM(HMMConfig(WORDS, 3, **LOW_RANK, **changes), seed).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return Pretrained(Path("nowhere"), model, TOKENIZER)


@pytest.fixture(params=[0, 1], ids=["plain", "memory"])
def loaded(request):
    return loaded_of(memory=request.param)


def p(loaded, ids, before=""):
    """p(ids | a text so far), which begins after an end."""
    given = [END, *TOKENIZER.encode(before)]
    with torch.no_grad():
        log_prob_BT, _ = loaded.model.score(torch.tensor([[*given, *ids]]))
    return float(log_prob_BT[0, len(given) :].sum().exp())


def texts_of(length):
    """Texts of so many tokens, and those that have ended sooner, end included."""
    words = [id for id in range(WORDS) if id != END]
    for size in range(length):
        yield from ((*text, END) for text in itertools.product(words, repeat=size))
    yield from itertools.product(words, repeat=length)


def test_a_continuation_token_by_token(loaded):
    found = ask.continuation(loaded, "the cat", "dog the")
    assert [word.token for word in found] == ["dog", "the"]
    assert [word.probability for word in found] == pytest.approx(
        [p(loaded, [4], "the cat"), p(loaded, [2], "the cat dog")]
    )


def test_the_next_word_and_the_next_words(loaded):
    alone = sorted((p(loaded, [id], "dog") for id in range(WORDS)), reverse=True)
    assert [word.probability for word in ask.next_word(loaded, "dog", 3)] == pytest.approx(alone[:3])
    weights = {text: p(loaded, text, "dog") for text in texts_of(3)}
    assert sum(weights.values()) == pytest.approx(1)
    found = ask.next_words(loaded, "dog", 3, k=4)
    assert found.proven
    best = sorted(weights, key=weights.get, reverse=True)[:4]
    assert [text.tokens for text in found.texts] == [[TOKENIZER.token(id) for id in ids] for ids in best]
    assert [text.probability for text in found.texts] == pytest.approx([weights[ids] for ids in best])
    assert all("<eos>" not in text.text for text in found.texts)


def test_gaps_are_filled_together(loaded):
    weights = {(a, b): p(loaded, [2, a, 3, b, END]) for a, b in itertools.product(range(WORDS), repeat=2)}
    total = sum(weights.values())
    best = sorted(weights, key=weights.get, reverse=True)[:6]
    for text in ("the <mask> cat <mask>", "the ___ cat _____"):
        found = ask.fillings(loaded, text, k=6)
        assert found.proven
        filled = [(TOKENIZER.id(one.tokens[1]), TOKENIZER.id(one.tokens[3])) for one in found.texts]
        assert filled == best
        assert [one.probability for one in found.texts] == pytest.approx([weights[pair] / total for pair in best])
    drawn = Counter(tuple(one.tokens) for one in ask.draw_fillings(loaded, "the ___ cat ___", 2_000))
    often = ("the", TOKENIZER.token(best[0][0]), "cat", TOKENIZER.token(best[0][1]), "<eos>")
    chance = weights[best[0]] / total
    assert abs(drawn[often] / 2_000 - chance) < 5 * math.sqrt(chance * (1 - chance) / 2_000)


def test_what_happens_within_some_words(loaded):
    want = sum(p(loaded, text, "the") for text in texts_of(3) if 4 in text)
    assert ask.within(loaded, contains("dog"), 3, "the") == pytest.approx(want)
    want = sum(p(loaded, text) for text in texts_of(2) if 4 not in text)
    assert ask.within(loaded, without("dog"), 2) == pytest.approx(want)
    assert ask.within(loaded, contains("dog") | without("dog"), 4) == pytest.approx(1)


def test_texts_that_meet_a_constraint(loaded):
    constraint = contains("dog") & ends_with("cat")
    weights = {
        text: p(loaded, text, "the") for text in texts_of(5) if text[-1] == END and 4 in text and text[-2:-1] == (3,)
    }
    total, best = sum(weights.values()), max(weights, key=weights.get)
    drawn = ask.write(loaded, constraint, 5, 1_000, "the", seed=3)
    assert all(one.text.split()[-1] == "cat" and "dog" in one.text.split() for one in drawn)
    assert {tuple(map(TOKENIZER.id, one.tokens)) for one in drawn} <= weights.keys()
    for one in drawn[:20]:
        assert one.probability == pytest.approx(weights[tuple(map(TOKENIZER.id, one.tokens))] / total)
    found = ask.write_best(loaded, constraint, 5, 1, "the")
    assert tuple(map(TOKENIZER.id, found.texts[0].tokens)) == best
    assert found.texts[0].probability == pytest.approx(weights[best] / total)


def test_texts_may_be_cut_at_their_length(loaded):
    drawn = ask.write(loaded, contains("dog"), 3, 300, ended=False)
    assert {len(one.tokens) for one in drawn} == {2, 3}
    assert any(one.tokens[-1] != "<eos>" for one in drawn)
    assert all(one.tokens[-1] == "<eos>" for one in ask.write(loaded, contains("dog"), 3, 300))


def test_two_models_side_by_side():
    one, other = loaded_of(0), loaded_of(1)
    compared = ask.side_by_side(one, other, "the dog")
    assert [row.token for row in compared] == ["the", "dog"]
    assert [row.first for row in compared] == pytest.approx([p(one, [2]), p(one, [4], "the")])
    assert [row.second for row in compared] == pytest.approx([p(other, [2]), p(other, [4], "the")])
    strange = other._replace(tokenizer=WordTokenizer(["<unk>", "<eos>", "a", "b", "c"]))
    with pytest.raises(TrellisError, match="different tokens"):
        ask.side_by_side(one, strange, "the dog")


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (lambda loaded: ask.continuation(loaded, "the", ""), "nothing to weigh"),
        (lambda loaded: ask.continuation(loaded, "the ___", "dog"), "only fillings take one"),
        (lambda loaded: ask.fillings(loaded, "the cat"), "no gap in the text"),
        (lambda loaded: ask.next_words(loaded, "the", 2, k=0), "k=0 is not possible"),
        (lambda loaded: ask.draw_next(loaded, "the", 2, count=0), "count=0 is not possible"),
        (lambda loaded: ask.write(loaded, contains("dog", "cat", "the"), 2), "allow at least 4"),
        (lambda loaded: ask.write(loaded, contains("dog") & length(9), 5), "allow at least 10"),
        (lambda loaded: ask.write_best(loaded, contains("zebra"), 5), "zebra"),
    ],
)
def test_bad_questions_get_one_sentence(question, sentence):
    with pytest.raises(TrellisError, match=sentence) as caught:
        question(loaded_of())
    assert "\n" not in str(caught.value)


def test_what_the_model_cannot_write_is_said():
    loaded = loaded_of()
    model = HMM(HMMConfig(WORDS, 2), 0).double().eval()
    model.set_tables(torch.ones(2) / 2, torch.ones(2, 2) / 2, torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]] * 2))
    with pytest.raises(TrellisError, match="no text that the model could write"):
        ask.write(loaded._replace(model=model), contains("dog"), 5, bos=False)
