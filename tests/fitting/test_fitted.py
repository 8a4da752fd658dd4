import json

import numpy as np
import pandas as pd
import pytest
import torch

import trellis
from trellis.errors import InputError, TrellisError
from trellis.fitting.fitted import About, Fitted
from trellis.models import HMM, HMMConfig
from trellis.models.ngram import Unigram
from trellis.text import ByteTokenizer, IntegerTokenizer, WordTokenizer

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])
NUMBERS = IntegerTokenizer(5)


def fitted(kind, *, running=False, tokenizer=None, **about):
    """An untrained model that takes data of a kind."""
    tokenizer = tokenizer or (NUMBERS if kind == "integers" else WORDS)
    model = HMM(HMMConfig(tokenizer.vocab_size, 3), seed=1).eval()
    return Fitted(model, tokenizer, About(kind, running, **about))


def alone(model, ids, state=None):
    with torch.no_grad():
        return float(model.score(torch.tensor([ids]), state)[0].sum())


def test_strings_are_scored_with_their_ends():
    door = fitted("strings")
    wanted = [alone(door.model, [2, 3, 1]), alone(door.model, [4, 1]), alone(door.model, [0, 2, 2, 2, 1])]
    np.testing.assert_allclose(door.score(["a b", "c", "zebra a a a"]), wanted, rtol=1e-5)
    np.testing.assert_allclose(door.score(pd.Series(["a b"])), wanted[:1], rtol=1e-5)
    np.testing.assert_allclose(door.score("a b"), wanted[:1], rtol=1e-5)
    np.testing.assert_allclose(door.score([["a", "b"]]), wanted[:1], rtol=1e-5)


def test_a_model_of_running_text_begins_after_an_end():
    door = fitted("strings", running=True)
    with torch.no_grad():
        after = door.model.score(torch.tensor([[1]]))[1]
    assert door.score("a b")[0] == pytest.approx(alone(door.model, [2, 3, 1], after), rel=1e-5)


def test_numbers_have_no_ends():
    door = fitted("integers")
    wanted = [alone(door.model, [2, 3, 1]), alone(door.model, [4])]
    np.testing.assert_allclose(door.score(np.array([2, 3, 1, 4]), [3, 1]), wanted, rtol=1e-5)
    np.testing.assert_allclose(door.score([[2, 3, 1], [4]]), wanted, rtol=1e-5)
    assert door.decode([2, 3, 1, 4])[0].shape == (4,)


def test_one_state_a_token_found_with_the_end():
    door = fitted("strings")
    path = door.model.viterbi(torch.tensor([[2, 3, 4, 1]])).states_BT[0].tolist()
    assert door.decode("a b c")[0].tolist() == door.states("a b c")[0].tolist() == path[:3]
    posterior = door.model.smooth(torch.tensor([[2, 3, 4, 1]])).posterior_BTS[0, :3].numpy()
    np.testing.assert_allclose(door.posteriors("a b c")[0], posterior, rtol=1e-5)


def test_next_tokens_are_of_the_kind_of_the_data():
    for kind, given in (("strings", "a b"), ("tokens", [["a", "b"]]), ("integers", [2, 3])):
        door = fitted(kind)
        with torch.no_grad():
            state = door.model.score(torch.tensor([[2, 3]]))[1]
            chances = door.model.next_token(state)[0].exp()
        (best,) = door.next(given, 2)
        ids = chances.argsort(descending=True)[:2].tolist()
        assert [token for token, _ in best] == (ids if kind == "integers" else [WORDS.token(id) for id in ids])
        np.testing.assert_allclose([chance for _, chance in best], chances[ids], rtol=1e-5)
    with pytest.raises(InputError, match="n=0 is not possible"):
        fitted("strings").next("a", 0)


def test_samples_are_of_the_kind_of_the_data():
    strings, tokens = fitted("strings").sample(50, seed=3), fitted("tokens").sample(50, seed=3)
    assert [text.split() for text in strings] == tokens
    assert all("<eos>" not in words for words in tokens)
    assert len({len(words) for words in tokens}) > 5, "the model ends them"
    numbers = fitted("integers", length=7).sample(4)
    assert [one.shape for one in numbers] == [(7,)] * 4
    assert all(0 <= one.min() <= one.max() < 5 for one in numbers)
    assert fitted("integers").sample(1, length=3)[0].shape == (3,)
    assert len(fitted("strings").sample(1, length=2)[0].split()) <= 2
    letters = fitted("strings", tokenizer=ByteTokenizer()).sample(2, length=5)
    assert all(isinstance(text, str) for text in letters)


def test_samples_depend_on_the_seed_alone():
    door = fitted("integers")
    first, again, other = (door.sample(2, length=30, seed=seed) for seed in (1, 1, 2))
    assert [one.tolist() for one in first] == [one.tolist() for one in again]
    assert [one.tolist() for one in first] != [one.tolist() for one in other]
    for bad in ({"n": 0}, {"length": 0}, {"n": 1.5}):
        with pytest.raises(InputError, match="give a whole number of at least 1"):
            door.sample(**bad)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("integers", "a b", "data holds strings, but the model was fitted to whole numbers"),
        ("strings", [1, 2], "data holds whole numbers, but the model was fitted to strings"),
        ("tokens", np.array([1]), "data holds whole numbers, but the model was fitted to lists of tokens"),
        ("integers", [5], "data holds the symbol 5, but the model knows 0 to 4"),
        ("integers", [0.5], "data holds floats"),
        ("strings", None, "data is None"),
        ("strings", [], "data is empty"),
    ],
)
def test_every_question_refuses_what_does_not_fit(kind, data, said):
    door = fitted(kind)
    for question in (door.score, door.decode, door.posteriors, door.next):
        with pytest.raises(InputError, match=said):
            question(data)


def test_a_table_is_asked_about_by_its_column():
    door = fitted("strings", column="title")
    table = pd.DataFrame({"title": ["a b"], "text": ["c"]})
    assert door.score(table).tolist() == door.score(["a b"]).tolist()
    assert door.score(table["text"]).tolist() == door.score(["c"]).tolist()


@pytest.mark.parametrize("kind", ["strings", "tokens", "integers"])
def test_saved_it_can_be_read_by_all(kind, tmp_path):
    door = fitted(kind, perplexity=3.5, unigram=7.0, length=12)
    door.save(tmp_path / "model")
    loaded = Fitted.load(tmp_path / "model")
    assert loaded.about == door.about
    data = [[1, 2], [3]] if kind == "integers" else ["a b", "c"]
    assert loaded.score(data).tolist() == door.score(data).tolist()
    assert str(loaded.sample(2)) == str(door.sample(2))
    model, tokenizer = trellis.load_model(tmp_path / "model"), trellis.load_tokenizer(tmp_path / "model")
    assert torch.equal(model.log_start(), door.model.log_start())
    assert tokenizer.fingerprint() == door.tokenizer.fingerprint()
    assert json.loads((tmp_path / "model" / "fitted.json").read_text())["perplexity"] == 3.5
    loaded.save(tmp_path / "model")  # in the place of the first


def test_any_hmm_can_be_asked(tmp_path):
    HMM(HMMConfig(5, 3), seed=0).save_pretrained(tmp_path / "words", WORDS)
    assert Fitted.load(tmp_path / "words").about == About("strings", True)
    HMM(HMMConfig(5, 3), seed=0).save_pretrained(tmp_path / "numbers", NUMBERS)
    assert Fitted.load(tmp_path / "numbers").about.kind == "integers"
    shape = trellis.models.registry.config_class("lstm")(5)
    trellis.models.registry.model_class("lstm")(shape, seed=0).save_pretrained(tmp_path / "lstm", WORDS)
    with pytest.raises(TrellisError, match="a model without hidden states, lstm"):
        Fitted.load(tmp_path / "lstm")


def test_it_says_what_it_is_in_a_line_and_in_a_table():
    door = fitted("strings", perplexity=12.3456, unigram=45.0)
    assert repr(door) == (
        "Fitted(states: 3, types of tokens: 5, fitted to: strings, perplexity: 12.35, unigram's perplexity: 45)"
    )
    table = door._repr_html_()
    assert table.startswith("<table>")
    assert "<th>perplexity</th><td>12.35</td>" in table
    assert "perplexity" not in repr(fitted("strings"))


def test_the_unigram_is_that_of_the_same_data(tmp_path):
    train, valid = [[0, 1, 1, 2]] * 8, [[1, 2]]
    found = trellis.fit(train, valid=valid, states=2, epochs=1, quiet=True)
    log_prob_V = Unigram.fit(np.concatenate(train), 3).log_prob_V
    assert found.unigram == pytest.approx(float((-(log_prob_V[1] + log_prob_V[2]) / 2).exp()))
