"""Counted n-grams in an HMM with blocks: against counts by dictionaries, and a walk over states by the formula."""

import collections
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.models import HMM, HMMConfig, load_model
from trellis.models.counted_ngrams import ROUNDING, SHARES, TIMES
from trellis.models.memory import NONE
from trellis.models.ngram_counts import discounts
from trellis.models.word_cache import LEVELS

from .pairs import vector_of
from .test_memory_blocks import BLOCK, LENGTHS, STATES, SUPPORT, WORDS, model_of, stepping, texts

END = 5
TEXT = np.random.default_rng(0).choice(WORDS, 200, p=[0.3, 0.25, 0.2, 0.1, 0.05, 0.1])
TEXT[7] = 4  # of a block with one word


class Counter:
    """Kneser–Ney by dictionaries of tuples; n-grams that end at one token of the text may be left out."""

    def __init__(self, order, text=TEXT, end=END, without=None):
        self.order, self.end, self.text = order, end, [end, *text.tolist()]
        self.seen = [collections.Counter() for _ in range(order + 1)]
        for place in range(1, len(self.text)):
            for gram in self.ending(place) if place - 1 != without else ():
                self.seen[len(gram)][gram] += 1
        self.before = [collections.Counter() for _ in range(order + 1)]
        for length in range(1, order):
            for gram in self.seen[length + 1]:
                self.before[length][gram[1:]] += 1

    def ending(self, place):
        """The n-grams that end at a place and reach back over no end of a sentence, but to one."""
        for length in range(1, self.order + 1):
            gram = tuple(self.text[max(0, place + 1 - length) : place + 1])
            if len(gram) == length and self.end not in gram[1:-1]:
                yield gram

    def count(self, gram):
        return self.before[len(gram)][gram] or self.seen[len(gram)][gram]

    def discounts_of(self, length):
        counts = [self.count(gram) for gram in self.seen[length]]
        return [0.0, *discounts(np.array(counts + [0] * (WORDS - len(counts)) if length == 1 else counts))]

    def words(self, history, discounts_of, backoffs=None):
        """q of every word after a history, the newest last, and the kind of that; Kneser–Ney's own without backoffs."""
        history, probs, kind = tuple(history), [1 / WORDS] * WORDS, 0
        for length in range(1, self.order + 1):
            context = history[len(history) - length + 1 :] if length <= len(history) + 1 else None
            if context is None or self.end in context[1:]:
                break
            counts = [self.count((*context, word)) for word in range(WORDS)]
            if not (total := sum(counts)):
                continue
            taken = [discounts_of(length)[min(found, 3)] for found in counts]
            left = sum(taken) / total
            share = min(SHARES - 1, int(left * SHARES + ROUNDING))
            kind = ((length - 1) * TIMES + min(TIMES - 1, int(math.log2(total)))) * SHARES + share
            odds = left / (1 - left) * (1.0 if backoffs is None else backoffs[kind].exp())
            kept = [(c - t) / total / (1 - left) for c, t in zip(counts, taken, strict=True)]
            probs = [(k + odds * p) / (1 + odds) for k, p in zip(kept, probs, strict=True)]
        return torch.stack([torch.as_tensor(p, dtype=torch.float64) for p in probs]), kind


def counting(order=3, memory=1, cache=0, seed=0, end=END, support="brown", **changes):
    """A model with counted n-grams, perhaps a cache, and gates and weights of all sizes."""
    if support == "brown":
        model = model_of("hierarchical", memory, seed, ngrams=order, cache=cache, **changes)
    else:
        parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4} | changes
        config = HMMConfig(WORDS, STATES, memory=memory, ngrams=order, cache=cache, **parts)
        model = HMM(config, seed=seed).double().eval()
        with torch.no_grad():
            model.memory.words.normal_(generator=torch.Generator().manual_seed(seed)).mul_(1.5)
    model.ngrams.count(TEXT, end, quiet=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for gate in model.ngrams.parameters():
            gate.normal_(generator=generator)
    return model


def with_cache(cache, words, q, kind):
    """q with the cache of the last words mixed in, and the kind of context, a word of the cache at a time."""
    words, found, best = words[-cache.size :], torch.zeros(WORDS, dtype=torch.float64), 0
    for place, word in enumerate(words):
        same = 0
        while same < min(LEVELS - 1, place) and words[place - 1 - same] == words[-1 - same]:
            same += 1
        age = int(math.log2(len(words) - place))
        found = found + cache.weights[same, age].exp() * torch.nn.functional.one_hot(torch.tensor(word), WORDS)
        best = max(best, same)
    kind = kind * LEVELS + best
    share = cache.shares[kind].sigmoid() if words else 0.0
    return (1 - share) * q + share * found / found.sum().clamp_min(1e-300), kind


def dense_stepping(model, words):
    """p(z′ | z, words), S×S, of states that are not in blocks."""
    everything = torch.arange(STATES)
    logits = model.transition.log_rows(model.encoder, everything, everything)
    entering = model.encoder.vectors("entering", model.encoder.encode(everything))
    for place, word in enumerate(words):
        logits = logits if word == NONE else logits + entering @ vector_of(model, place, word)
    return logits.softmax(-1)


def chances(model, counter, words):
    """p(z′ | z, words), S×S, and p(word | z′, words), V×S, by the formulas; the newest word last."""
    ngrams, one_hot = model.ngrams, torch.nn.functional.one_hot(BLOCK).double()
    q, kind = counter.words([END, *words], counter.discounts_of, ngrams.backoffs)
    if ngrams.cache is not None:
        q, kind = with_cache(ngrams.cache, words, q, kind)
    in_block = q @ one_hot
    newest = [words[-1 - place] if place < len(words) else NONE for place in range(model.config.memory)]
    if model.support is None:
        gate = (ngrams.word_states + ngrams.word_kinds[kind]).sigmoid()
        return dense_stepping(model, newest), (1 - gate) * model._log_emission().exp() + gate * q[:, None]
    plain = stepping(model, newest).unflatten(1, (-1, SUPPORT.states_MK.shape[1]))
    own = plain.sum(2, keepdim=True)
    gate = (ngrams.block_states + ngrams.block_kinds[kind]).sigmoid()[:, None, None]
    steps = (plain / own * ((1 - gate) * own + gate * in_block[None, :, None])).flatten(1)
    gate = (ngrams.word_states + ngrams.word_kinds[kind]).sigmoid()
    found = torch.zeros(WORDS, STATES, dtype=torch.float64)
    emission = found.scatter(1, SUPPORT.lists(), model._log_emission().exp())
    counted = found.scatter(1, SUPPORT.lists(), (q / in_block[BLOCK])[:, None].expand(-1, 2))
    return steps, (1 - gate) * emission + gate * counted


def scores(model, ids, counter):
    """log p(token | before) of one text."""
    belief, found = None, []
    for place, word in enumerate(ids.tolist()):
        steps, emission = chances(model, counter, ids[:place].tolist())
        belief = (model.log_start().exp() if belief is None else belief @ steps) * emission[word]
        found.append(belief.sum().log())
        belief = belief / belief.sum()
    return torch.stack(found)


SHAPES = [(3, 1, 0), (2, 2, 0), (5, 1, 0), (3, 1, 4), (4, 1, 1), (2, 1, 6), (3, 2, 50)]
DENSE = [(3, 1, 0), (5, 2, 0), (3, 1, 4), (2, 1, 6)]


@pytest.fixture(
    params=[*((*shape, 0, END, "brown") for shape in SHAPES), *((*shape, 0, END, "dense") for shape in DENSE)],
    ids=lambda p: f"{p[5]}, {p[0]}-grams, memory {p[1]}, cache {p[2]}",
)
def shape(request):
    return request.param


@pytest.fixture(params=["brown", "dense"])
def support(request):
    return request.param


def test_scores_and_gradients_are_those_of_the_formulas(shape):
    model, counter, ids = counting(*shape), Counter(shape[0]), repeating()
    ours = model.score(ids)[0]
    theirs = torch.stack([scores(model, row, counter) for row in ids])
    assert_close(ours, theirs)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours, theirs = (torch.autograd.grad(s.sum(), parameters, retain_graph=True) for s in (ours, theirs))
    for mine, yours in zip(ours, theirs, strict=True):
        assert_close(mine, yours)
    moved = dict(zip((name for name, _ in model.named_parameters()), ours, strict=True))
    still = {name for name, grad in moved.items() if name.startswith("ngrams.") and grad.abs().max() < 1e-9}
    assert still == ({"ngrams.cache.weights"} if shape[2] == 1 else set())  # of one word, its weight does not matter


def test_rows_may_differ_in_length_and_padding_may_hold_anything(shape):
    model, ids = counting(*shape), texts()
    whole = model.score(ids)[0]
    there = torch.arange(ids.shape[1]) < LENGTHS[:, None]
    found = model.score(ids.masked_fill(~there, 10**9), lengths_B=LENGTHS)[0]
    assert_close(found, whole.masked_fill(~there, 0.0))


def repeating():
    """Texts in which words and phrases come again."""
    return torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2], [3, 3, 3, 3, 5, 3, 3, 3, 3], [0, 1, 5, 4, 0, 1, 3, 2, 5]])


@pytest.mark.parametrize("learning", [False, True], ids=["in use", "with gradients"])
def test_text_in_pieces_scores_as_it_does_whole(shape, learning):
    model, ids = counting(*shape), repeating()[:, 1:]
    with torch.set_grad_enabled(learning):
        whole, last = model.score(ids)
        for cut in range(9):
            first, state = model.score(ids[:, :cut])
            second, after = model.score(ids[:, cut:], state)
            assert_close(torch.cat([first, second], 1), whole)
            assert_close(after, last)


def test_the_next_word_is_what_its_score_is(shape):
    model, ids = counting(*shape), texts()
    states = (None, *(model.score(text)[1] for text in (ids, repeating())), model.score(ids, lengths_B=LENGTHS)[1])
    for state in states:
        found = model.next_token(state)
        assert_close(found.exp().sum(1), torch.ones(len(found), dtype=torch.float64))
        for word in range(WORDS):
            one = torch.full((len(found), 1), word)
            assert_close(model.score(one, state)[0][:, 0].detach(), found[:, word])


def test_the_exact_first_step_is_that_of_the_products(support):
    model, ids = counting(support=support), texts()
    with torch.no_grad():
        chain = model.chain(ids[:, 3:], state=model.score(ids[:, :3])[1])
        for row in range(len(ids)):
            assert_close(chain.log_first(row), chain.log_first_BS[row])


@pytest.mark.parametrize("cache", [0, 3])
def test_posteriors_are_those_of_the_formulas(cache, support):
    model, counter, ids = counting(cache=cache, support=support), Counter(3), texts(time=4)[:2]
    for row in ids:
        forward, backward = [], torch.ones(STATES, dtype=torch.float64)
        each = [chances(model, counter, row[:place].tolist()) for place in range(4)]
        belief = model.log_start().exp() * each[0][1][row[0]]
        for place in range(4):
            belief = belief if place == 0 else (belief @ each[place][0]) * each[place][1][row[place]]
            forward.append(belief)
        smoothed = model.smooth(row[None])
        for place in reversed(range(4)):
            posterior = forward[place] * backward
            posterior = posterior / posterior.sum()
            found = torch.zeros(STATES, dtype=torch.float64).scatter(
                0, smoothed.states_BTS[0, place], smoothed.posterior_BTS[0, place]
            )
            assert_close(found, posterior.detach())
            backward = each[place][0] @ (each[place][1][row[place]] * backward)


def test_of_no_rows_there_is_no_next_word(support):
    model = counting(support=support)
    assert model.next_token(model.score(texts()[:0])[1]).shape == (0, WORDS)


def test_a_model_loaded_in_inference_mode_answers(tmp_path, support):
    model, ids = counting(support=support), texts()
    model.save_pretrained(tmp_path / "model")
    with torch.inference_mode():
        found = load_model(tmp_path / "model").score(ids)[0]
    assert_close(found, model.score(ids)[0].detach())


def test_the_states_alone_are_a_markov_chain_without_the_counts(support):
    model = counting(support=support)
    chain = model.all_pairs()
    model.ngrams = None
    assert_close(chain, model.all_pairs())
    assert_close(chain.sum(1), torch.ones(STATES, dtype=torch.float64))


def test_while_learning_each_token_is_predicted_by_the_counts_of_all_others():
    model, everything = counting(), Counter(3)
    ngrams, ids = model.ngrams, torch.from_numpy(TEXT)[None]
    contexts = ngrams.along(torch.full((1, 2), NONE), ids, BLOCK)[:, :-1]
    found = ngrams.train().look_up(contexts, ids, BLOCK)
    one_hot = torch.nn.functional.one_hot(BLOCK).double()
    for place, word in enumerate(TEXT.tolist()):
        counter = Counter(3, without=place)
        q, kind = counter.words([END, *TEXT[:place].tolist()], everything.discounts_of, ngrams.backoffs)
        block = (q @ one_hot)[BLOCK[word]]
        assert_close(found.log_block[0, place], block.log())
        assert_close(found.log_word[0, place], (q[word] / block).log())
        assert int(found.kind[0, place]) == kind


def test_a_word_that_was_never_counted_takes_nothing_with_it(support):
    model = counting(support=support)
    model.ngrams.count(TEXT[TEXT != 0], END, quiet=True)  # 0 also pads rows that end early
    ids, before = torch.tensor([[1, 2, 0, 1, 0, 0, 3]]), torch.full((1, 2), NONE)
    in_use = model.ngrams.before_tokens(before, ids, model.block_V)
    learning = model.ngrams.train().before_tokens(before, ids, model.block_V)
    for found, wanted in zip(learning, in_use, strict=True):
        assert_close(found[ids == 0], wanted[ids == 0])
    model.train().score(texts(), lengths_B=LENGTHS)[0].sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_learning_on_the_counted_text_does_not_know_it_by_heart():
    model = counting(5, dropout=0.0)
    with torch.no_grad():
        for gate in (model.ngrams.block_kinds, model.ngrams.word_kinds):
            gate.fill_(20.0)  # the counts alone
        ids = torch.from_numpy(TEXT)[None]
        in_use, learning = model.score(ids)[0].mean(), model.train().score(ids)[0].mean()
        first, state = model.score(ids[:, :90])
        second, _ = model.score(ids[:, 90:], state)
    assert learning < in_use - 0.3
    assert_close(torch.cat([first, second], 1).mean(), learning)


@pytest.mark.parametrize("cache", [0, 3])
def test_texts_are_drawn_as_they_score(cache, support):
    model, counter = counting(cache=cache, support=support), Counter(3)
    drawn = model.sample(20_000, 2, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn.tokens_BT[:, 0] * WORDS + drawn.tokens_BT[:, 1], minlength=WORDS**2) / 20_000
    ids = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
    expected = torch.stack([scores(model, row, counter).sum().exp() for row in ids]).detach()
    assert_close(expected.sum(), torch.ones_like(expected[0]))
    assert float((counts - expected).abs().max()) < 5 * math.sqrt(float(expected.max()) / 20_000)


@pytest.mark.parametrize("cache", [0, 3])
def test_a_saved_model_scores_the_same_to_the_bit(tmp_path, cache, support):
    model, ids = counting(cache=cache, support=support), texts()
    model.save_pretrained(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert_close(again.score(ids), model.score(ids), rtol=0, atol=0)
    assert int(again.ngrams.end) == END


def test_damaged_counts_are_refused(tmp_path):
    model = counting()
    model.ngrams.key_3 = model.ngrams.key_3.flip(0)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(TrellisError, match="do not fit each other"):
        HMM.from_pretrained(tmp_path / "model")


def test_other_text_than_was_counted_and_no_text_at_all_still_score():
    model = model_of("hierarchical", ngrams=3)
    log_prob, _ = model.score(texts())
    assert bool(log_prob.isfinite().all())
    assert_close(model.next_token().exp().sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ngrams": 1}, "model.ngrams"),
        ({"ngrams": 10}, "model.ngrams"),
        ({"memory": 0}, "model.memory"),
        ({"transition": "low_rank"}, "with blocks model.transition=hierarchical"),
        ({"cache": -1}, "model.cache"),
        ({"cache": 10**6}, "model.cache"),
        ({"cache": 500, "ngrams": 0}, "model.ngrams"),
    ],
)
def test_what_they_need_is_said(changes, named):
    given = {"transition": "hierarchical", "memory": 1, "ngrams": 3} | changes
    with pytest.raises(TrellisError, match=named):
        HMMConfig(WORDS, STATES, "brown", 3, width=4, **given)
