"""A guided language model's next token is that of the formula, and every text it makes meets its constraint."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.automata import every, nothing, one_after_another
from trellis.steering import Guide, goals
from trellis.steering.language_models import prompts_of

from .tiny_llamas import ANY, EOS, WORDS, V, accepts, chance, contains, hmm, inner, lacks, llama, log_probs, texts

TOKENS = 4
PROMPTS = ["a", "c d b", "f e"]  # of different lengths, so that two are padded
CONSTRAINTS = [contains("b", "c"), lacks("a") & contains("f"), contains("e")]
WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 1.3, "num_return_sequences": 3},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"num_beams": 3, "num_return_sequences": 2, "do_sample": True},
}


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """The language model's own tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("words")
    WORDS.save(folder)
    return AutoTokenizer.from_pretrained(folder)


def padded(*prompts):
    """Ids and mask, padded at the left."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(one)) + list(one) for one in prompts]
    mask = [[0] * (longest - len(one)) + [1] * len(one) for one in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def met(automaton, text):
    return accepts(automaton, WORDS.encode(text))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_the_next_token_is_weighed_by_all_texts_that_go_on_with_it(ended, weight):
    automaton, tokens = contains("b"), 3
    guide = Guide(hmm(), WORDS, automaton, tokens, weight=weight, ended=ended)
    prompts = [[2], [4, 5, 3]]
    ids, mask = padded(*prompts)
    guidance = guide.processor(ids, mask)
    scores = torch.randn(2, V, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    for prefix in ((), (4,), (3, 2)):
        rows = torch.cat([ids, torch.tensor([prefix] * 2, dtype=torch.int64)], 1)
        guided = guidance(rows, scores)
        for row, prompt in enumerate(prompts):
            now = chance(hmm(), prompt, prefix, automaton, tokens, ended)
            for token in range(V):
                after = chance(hmm(), prompt, (*prefix, token), automaton, tokens, ended)
                want = float(scores[row, token]) + weight * (_log(after) - (_log(now) if prefix else 0.0))
                assert_close(float(guided[row, token]), want, rtol=1e-4, atol=1e-4)


def _log(chance):
    return math.log(min(1.0, chance)) if chance > 0 else -math.inf


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_every_text_meets_the_constraint_of_its_prompt(theirs, way, ended, seed):
    torch.manual_seed(seed)
    guide = Guide(hmm(seed), WORDS, CONSTRAINTS, TOKENS, ended=ended)
    found = guide.generate(llama(seed), PROMPTS, tokenizer=theirs, **WAYS[way])
    each = WAYS[way].get("num_return_sequences", 1)
    assert len(found) == each * len(PROMPTS)
    for number, text in enumerate(found):
        assert met(CONSTRAINTS[number // each], text), text
        assert len(text.split()) <= TOKENS - ended


def test_without_guidance_the_same_texts_do_not_meet_theirs(theirs):
    """Else the test above says nothing."""
    found = Guide(hmm(), WORDS, CONSTRAINTS, TOKENS, weight=0.0).generate(llama(), PROMPTS, tokenizer=theirs)
    assert not all(met(automaton, text) for automaton, text in zip(CONSTRAINTS, found, strict=True))


def test_a_prompt_has_the_same_text_alone_as_in_a_padded_batch(theirs):
    together = Guide(hmm(), WORDS, CONSTRAINTS, TOKENS).generate(llama(), PROMPTS, tokenizer=theirs)
    for prompt, automaton, text in zip(PROMPTS, CONSTRAINTS, together, strict=True):
        assert Guide(hmm(), WORDS, automaton, TOKENS).generate(llama(), prompt, tokenizer=theirs) == [text]


@pytest.mark.parametrize("ended", [False, True])
def test_beams_wide_enough_find_the_best_text_of_all(theirs, ended):
    """What a beam adds up is the language model's own log-probability once the text is complete."""
    automaton, tokens, prompt = contains("d"), 3, WORDS.encode("c d b")
    best = log_probs(llama(), prompt, [one for one in texts(tokens, ended) if accepts(automaton, inner(one))])
    ranked = sorted(best, key=best.get, reverse=True)
    guide = Guide(hmm(), WORDS, automaton, tokens, ended=ended)
    found = guide.generate(
        llama(), ["c d b"], tokenizer=theirs, num_beams=60, num_return_sequences=3, length_penalty=0.0
    )
    assert [tuple(WORDS.encode(text)) for text in found] == [inner(text) for text in ranked[:3]]


def test_a_text_is_remembered_no_longer_than_a_step_and_beams_may_change_places():
    guide = Guide(hmm(), WORDS, contains("b", "e"), TOKENS)
    ids, mask = padded([2], [4, 5])
    guidance = guide.processor(ids, mask)
    scores = torch.zeros(6, V)
    rows = ids.repeat_interleave(3, 0)
    for tokens in ([3, 4, 5, 2, 2, 6], [3, 3, 7, 6, 5, 4], [7, 6, 5, 4, 3, 2]):
        guidance(rows, scores)
        assert len(guidance) == len({tuple(row) for row in rows.tolist()})  # prompts and two rows are alike at first
        rows = torch.cat([rows, torch.tensor(tokens)[:, None]], 1)
        rows = rows[[2, 0, 1, 4, 5, 3]]  # within each prompt
    fresh = guide.processor(ids, mask)
    assert_close(guidance(rows, scores), fresh(rows, scores))
    assert len(guidance) == len(fresh) == 6


def test_asked_twice_it_says_the_same():
    guidance = Guide(hmm(), WORDS, contains("b"), TOKENS).processor(torch.tensor([[2, 3]]))
    rows, scores = torch.tensor([[2, 3, 5]]), torch.zeros(1, V)
    assert_close(guidance(rows, scores), guidance(rows, scores), rtol=0, atol=0)


def test_a_row_that_was_never_seen_is_read_from_its_start():
    guide = Guide(hmm(), WORDS, contains("b"), TOKENS)
    late, steady = (guide.processor(torch.tensor([[2, 3]])) for _ in range(2))
    scores, rows = torch.zeros(1, V), [[2, 3], [2, 3, 5], [2, 3, 5, 7]]
    for row in rows:
        want = steady(torch.tensor([row]), scores)
    assert_close(late(torch.tensor([rows[-1]]), scores), want)


def test_weight_zero_leaves_the_scores():
    scores = torch.randn(1, V)
    guidance = Guide(hmm(), WORDS, contains("b"), TOKENS, weight=0.0).processor(torch.tensor([[2]]))
    assert guidance(torch.tensor([[2, 4, 4]]), scores) is scores


def test_a_tiny_weight_only_forbids():
    guidance = Guide(hmm(), WORDS, contains("b", "c"), 3, weight=1e-9).processor(torch.tensor([[2]]))
    said = guidance(torch.tensor([[2, 4]]), torch.zeros(1, V))[0]  # two tokens to come, of which one is b
    assert_close(said[said > -torch.inf], torch.zeros(int((said > -torch.inf).sum())))
    impossible = {WORDS.id("<eos>")}
    assert {token for token in range(V) if said[token] == -torch.inf} == impossible
    said = guidance(torch.tensor([[2, 4, 4]]), torch.zeros(1, V))[0]
    assert [token for token in range(V) if said[token] > -torch.inf] == [WORDS.id("b")]


def test_what_has_ended_is_left_alone_and_what_is_too_long_can_only_end():
    guidance = Guide(hmm(), WORDS, contains("b"), 3).processor(torch.tensor([[2], [2]]))
    scores = torch.randn(2, V)
    rows = torch.tensor([[2, 3, EOS], [2, 4, 4]])
    guided = guidance(rows, scores)
    assert torch.equal(guided[0], scores[0])
    assert not torch.equal(guided[1], scores[1])
    guided = guidance(torch.tensor([[2, 3, EOS, EOS], [2, 4, 4, 3]]), scores)
    assert torch.equal(guided[0], scores[0])
    assert [token for token in range(V) if guided[1, token] > -torch.inf] == [EOS]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_ends_a_text_for_the_language_model_is_the_end_token(weight):
    guide = Guide(hmm(), WORDS, contains("b"), 3, weight=weight)
    scores = torch.randn(2, V, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    rows = torch.tensor([[2, 3], [2, EOS]])
    one_end, plain = guide.processor(rows[:, :1], ends=[7, EOS, 6]), guide.processor(rows[:, :1])
    moved = scores.clone()
    moved[0, [6, 7]] = -torch.inf
    moved[0, EOS] = scores[0, [EOS, 6, 7]].logsumexp(0)
    assert_close(one_end(rows, scores), plain(rows, moved))
    assert torch.equal(one_end(rows, scores)[1], scores[1])  # it has ended


def test_a_language_model_that_begins_another_text_has_ended_this_one(theirs, monkeypatch):
    batch = prompts_of(llama(), theirs, ["a"], WORDS)
    assert batch.ends == (EOS,)
    from transformers import AutoTokenizer

    begins = AutoTokenizer.from_pretrained(theirs.name_or_path, bos_token="f")
    monkeypatch.setattr(llama().generation_config, "eos_token_id", [EOS, 6])
    batch = prompts_of(llama(), begins, ["a", "f a"], WORDS)
    assert (batch.bos, batch.ends) == (7, (EOS, 6, 7))
    assert batch.read(1) == [2]


def test_no_chance_is_above_one():
    guidance = Guide(hmm(), WORDS, ANY, 40).processor(torch.tensor([[2]]))
    assert (guidance(torch.tensor([[2]]), torch.zeros(1, V)) <= 0).all()


def test_tokens_that_only_the_language_model_has_are_never_made(theirs):
    wide = llama(1, vocab_size=V + 3)
    for way in WAYS.values():
        found = Guide(hmm(), WORDS, contains("b", "e"), TOKENS).generate(wide, PROMPTS, tokenizer=theirs, **way)
        assert all(met(contains("b", "e"), text) for text in found)


def test_fewer_texts_than_beams(theirs):
    """A beam without any possible token goes on with an impossible one, which must come to nothing."""
    only = one_after_another([np.arange(V) == token for token in (3, 4, 5)], V)
    guide = Guide(hmm(), WORDS, only, TOKENS)
    found = guide.generate(llama(1, vocab_size=V + 3), ["a"], tokenizer=theirs, num_beams=4)
    assert found == ["b c d"]


def test_an_hmm_that_holds_a_prefix_to_be_impossible_still_forbids():
    """Where no probability is left, whatever the automaton can still accept is as good as anything else."""
    model = hmm(3).dense().eval()
    tables = model.tables()
    emission_SV = tables.emission_SV.clone()
    emission_SV[:, 7] = 0.0
    model.set_tables(tables.start_S, tables.transition_SS, emission_SV / emission_SV.sum(1, keepdim=True))
    guidance = Guide(model, WORDS, contains("b"), 3).processor(torch.tensor([[2]]))
    said = guidance(torch.tensor([[2, 7, 4]]), torch.zeros(1, V))[0]
    assert [token for token in range(V) if said[token] > -torch.inf] == [WORDS.id("b")]
    assert float(said[3]) == 0.0


def test_the_prompt_is_part_of_the_text_if_asked(theirs):
    automaton = contains("a", "b")
    whole = Guide(hmm(), WORDS, automaton, 2, with_prompt=True)
    found = whole.generate(llama(), ["a c", "b"], tokenizer=theirs)
    for prompt, text in zip(("a c", "b"), found, strict=True):
        assert text.startswith(prompt)
        assert met(automaton, text)
    assert not all(met(automaton, text.split(" ", 1)[1]) for text in found)
    ids, mask = padded([2, 4], [3])
    guided = whole.processor(ids, mask)(ids, torch.zeros(2, V))
    for row, prompt in enumerate(([2, 4], [3])):
        for token in range(V):
            rests = [text for text in texts(2) if text[0] == token and accepts(automaton, prompt + list(inner(text)))]
            carried = hmm().score(torch.tensor([[*prompt, token]]))[1]
            want = sum((_probability(text[1:], carried) for text in rests), 0.0)
            assert_close(float(guided[row, token].exp()), want, rtol=1e-4, atol=1e-6)


def _probability(text, carried):
    with torch.no_grad():
        return float(hmm().score(torch.tensor([text]), carried)[0].sum().exp()) if text else 1.0


def test_the_token_that_begins_texts_is_not_read():
    guide = Guide(hmm(), WORDS, contains("b"), TOKENS)
    with_it, without = torch.tensor([[7, 2, 4]]), torch.tensor([[2, 4]])
    scores = torch.zeros(1, V)
    want = guide.processor(without)(without, scores)
    assert_close(guide.processor(with_it, bos_token_id=7)(with_it, scores), want)
    assert not torch.allclose(guide.processor(with_it)(with_it, scores), want)


def test_a_prompt_that_the_hmm_reads_nothing_of_begins_at_the_start():
    guide = Guide(hmm(), WORDS, contains("b"), 2)
    ids = torch.tensor([[7]])
    guided = guide.processor(ids, bos_token_id=7)(ids, torch.zeros(1, V))
    for token in range(V):
        want = chance(hmm(), [], (token,), contains("b"), 2)
        assert_close(float(guided[0, token].exp()), want, rtol=1e-4, atol=1e-6)
    after = hmm().score(torch.tensor([[EOS]]))[1].detach()
    guide = Guide(hmm(), WORDS, contains("b"), 2, beginning=after)
    guided = guide.processor(ids, bos_token_id=7)(ids, torch.zeros(1, V))
    for token in range(V):
        assert_close(
            float(guided[0, token].exp()), chance(hmm(), [EOS], (token,), contains("b"), 2), rtol=1e-4, atol=1e-6
        )


def test_the_same_constraint_is_prepared_once(monkeypatch):
    made = []
    monkeypatch.setattr(goals, "Messages", lambda *given: made.append(given) or _messages(*given))
    guide = Guide(hmm(), WORDS, [contains("b"), contains("c"), contains("b")], TOKENS)
    guide.processor(torch.tensor([[2], [3], [4]]))
    assert len(made) == 2


_messages = goals.Messages


@pytest.mark.parametrize("seed", range(3))
def test_what_is_reachable_is_what_a_walk_reaches(seed):
    automaton = goals.automaton_of(CONSTRAINTS[seed], WORDS, ended=False)
    goal = goals.Goal(hmm(), automaton, 3)
    for n, state in itertools.product(range(4), range(automaton.states)):
        ends = itertools.product(range(V), repeat=n)
        walks = [[automaton.run(text[:t], state) for t in range(n + 1)] for text in ends]
        want = any(automaton.end in walk or automaton.accepting_Q[walk[-1]] for walk in walks)
        assert goal.reachable_NQ[n, state] == want


REFUSED = {
    "needs 2 tokens or more: raise tokens=1": {"constraint": contains("b", "c"), "tokens": 1},
    "prompt 2 needs 3 tokens": {"constraint": [ANY, contains("b", "c", "d")], "tokens": 2},
    "prompt 1 is met by no text": {"constraint": nothing(V), "tokens": 2},
    "prompt 2 already breaks": {"constraint": lacks("d"), "tokens": 2, "with_prompt": True},
    "one for all, or one for each": {"constraint": [ANY] * 3, "tokens": 2},
    "no constraint is given": {"constraint": [], "tokens": 2},
    "tokens=1 or more": {"constraint": ANY, "tokens": 0},
    "'dragon' is no constraint": {"constraint": "dragon", "tokens": 2},
    "prompt 2: 5 is no constraint": {"constraint": [ANY, 5], "tokens": 2},
    "weight of -1": {"constraint": ANY, "tokens": 2, "weight": -1.0},
    "tokenizer that was saved": {"constraint": every(np.ones(V + 1, np.bool_)), "tokens": 2},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_said_before_anything_is_made(theirs, sentence):
    with pytest.raises(TrellisError, match=sentence):
        Guide(hmm(), WORDS, **REFUSED[sentence]).generate(llama(), ["a b", "c d"], tokenizer=theirs)


def test_a_word_that_the_hmm_cannot_make_is_said():
    model = hmm(3).dense().eval()
    tables = model.tables()
    emission_SV = tables.emission_SV.clone()
    emission_SV[:, 7] = 0.0
    model.set_tables(tables.start_S, tables.transition_SS, emission_SV / emission_SV.sum(1, keepdim=True))
    with pytest.raises(TrellisError, match=r"prompt 2 has no probability under the HMM"):
        Guide(model, WORDS, [ANY, contains("f")], TOKENS).processor(torch.tensor([[2], [2]]))


def test_another_vocabulary_is_refused(theirs, tmp_path):
    from transformers import AutoTokenizer

    from trellis.text import WordTokenizer

    other = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d", "x", "f"])
    with pytest.raises(TrellisError, match="token 6 is 'x' to the HMM and 'e' to the language model"):
        Guide(hmm(), other, ANY, 2).generate(llama(), "a", tokenizer=theirs)
    other.save(tmp_path)
    with pytest.raises(TrellisError, match="token 6 is 'e' to the HMM and 'x'"):
        Guide(hmm(), WORDS, ANY, 2).generate(llama(), "a", tokenizer=AutoTokenizer.from_pretrained(tmp_path))


def test_what_is_no_hmm_is_refused():
    with pytest.raises(TrellisError, match="a Linear cannot look ahead"):
        Guide(torch.nn.Linear(2, 2), WORDS, ANY, 2)


def test_options_that_say_how_long_are_refused(theirs):
    guide = Guide(hmm(), WORDS, ANY, 2)
    with pytest.raises(TrellisError, match="leave max_new_tokens out"):
        guide.generate(llama(), "a", tokenizer=theirs, max_new_tokens=9)
    with pytest.raises(TrellisError, match="no prompts"):
        guide.generate(llama(), [], tokenizer=theirs)
    with pytest.raises(TrellisError, match="tokenizer="):
        guide.generate(llama(), "a")


def test_rows_of_another_call_are_refused():
    guidance = Guide(hmm(), WORDS, ANY, 2).processor(torch.tensor([[2], [3]]))
    with pytest.raises(TrellisError, match="ids that are given to generate"):
        guidance(torch.tensor([[2]] * 3), torch.zeros(3, V))
    with pytest.raises(TrellisError, match="rows of tokens"):
        Guide(hmm(), WORDS, ANY, 2).processor(torch.tensor([2, 3]))


def test_an_empty_prompt_begins_with_the_end_of_another_text(theirs):
    found = Guide(hmm(), WORDS, contains("b"), TOKENS).generate(llama(), "", tokenizer=theirs)
    assert met(contains("b"), found[0])
