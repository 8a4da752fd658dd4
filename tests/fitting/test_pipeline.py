import gc
import math
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import trellis
from trellis.errors import InputError, TrellisError
from trellis.text import IntegerTokenizer, MemoryCorpus, WordTokenizer
from trellis.training import Stopped

QUICK = {"states": 4, "epochs": 2, "quiet": True}
ANIMALS, VERBS = ("cat", "dog", "cow"), ("saw", "bit", "met")
TEXTS = [f"the {one} {verb} the {other}" for one in ANIMALS for verb in VERBS for other in ANIMALS]


def walk(size, seed=0):
    """Symbols that stay or go on to the next of six."""
    return np.cumsum(np.random.default_rng(seed).random(size) < 0.1) % 6


def test_nothing_but_the_data_learns_more_than_a_unigram_knows():
    fitted = trellis.fit([walk(30, seed) for seed in range(40)], quiet=True, states=8)
    assert fitted.perplexity < 0.5 * fitted.unigram
    fitted = trellis.fit(TEXTS, quiet=True, states=8)
    assert fitted.perplexity < 0.7 * fitted.unigram


@pytest.mark.parametrize(
    ("data", "lengths", "kind", "running"),
    [
        (walk(200), None, "integers", True),
        (walk(200), [120, 80], "integers", False),
        (torch.from_numpy(walk(200))[:, None], [120, 80], "integers", False),
        (walk(200).reshape(20, 10), None, "integers", False),
        (TEXTS, None, "strings", False),
        (iter(TEXTS), None, "strings", False),
        (pd.Series(TEXTS), None, "strings", False),
        ([text.split() for text in TEXTS], None, "tokens", False),
        ([" ".join(4 * TEXTS)], None, "strings", True),
        ("\n".join(4 * TEXTS), None, "strings", True),
        (MemoryCorpus("x", tuple(4 * TEXTS)), None, "strings", True),
    ],
)
def test_every_kind_of_data_is_fitted(data, lengths, kind, running):
    fitted = trellis.fit(data, lengths, **QUICK)
    assert (fitted.about.kind, fitted.about.running) == (kind, running)
    assert fitted.config.states == 4
    assert math.isfinite(fitted.perplexity)
    assert isinstance(fitted.tokenizer, IntegerTokenizer if kind == "integers" else WordTokenizer)
    assert fitted.config.vocab_size == fitted.tokenizer.vocab_size == (6 if kind == "integers" else 2 + 7)


def test_files(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(TEXTS))
    np.save(tmp_path / "x.npy", walk(200))
    assert trellis.fit(tmp_path / "x.txt", **QUICK).about.kind == "strings"
    assert trellis.fit(str(tmp_path / "x.npy"), **QUICK).about.kind == "integers"


def test_a_named_corpus_brings_its_own_validation_text(tmp_path, capsys):
    (tmp_path / "ptb").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text("\n".join(TEXTS if split == "train" else TEXTS[:2]))
    fitted = trellis.fit("ptb", data_dir=str(tmp_path), **QUICK | {"quiet": False})
    assert fitted.config.vocab_size == 2 + 7
    assert math.isfinite(fitted.perplexity)
    assert "held out" not in capsys.readouterr().err


def test_samples_begin_at_the_start_distribution_while_learning():
    """Every sequence begins with 0 and never has it again: a model that learnt where sequences begin knows both."""
    rng = np.random.default_rng(0)
    data = [np.append(0, rng.integers(1, 4, size=9)) for _ in range(200)]
    fitted = trellis.fit(data, states=4, quiet=True)
    first = fitted.model.next_token()[0].exp()
    assert first[0] > 0.95
    assert dict(fitted.next([data[0]], 4)[0])[0] < 0.05


def test_what_is_held_out_is_said(capsys):
    loud = QUICK | {"quiet": False}
    trellis.fit(TEXTS, **loud)
    said = capsys.readouterr().err
    assert "3 of 27 sequences held out for validation" in said
    assert re.search(
        r"fitting \d+ states to \d+ tokens of \d+ types: \S+ passes in batches of \d+ × \d+, at a rate", said
    )
    trellis.fit(TEXTS, **loud | {"states": 1, "epochs": 1})
    assert re.search(r"fitting 1 state to \d+ tokens of \d+ types: 1 pass in batches", capsys.readouterr().err)
    trellis.fit(walk(200), **loud)
    assert "the last tenth of the data held out for validation" in capsys.readouterr().err
    trellis.fit([[1, 2]], **loud)
    assert "too little data to hold any out" in capsys.readouterr().err
    trellis.fit(TEXTS, **QUICK)
    assert capsys.readouterr().err == ""


def test_validation_data_may_be_given_or_done_without():
    given = trellis.fit(walk(200), valid=[walk(50, 1), walk(20, 2)], **QUICK)
    assert math.isfinite(given.perplexity)
    without = trellis.fit(walk(200), valid=False, **QUICK)
    assert (without.perplexity, without.unigram) == (None, None)


def test_the_same_seed_gives_the_same_model():
    scores = [trellis.fit(TEXTS, seed=seed, **QUICK).score(TEXTS[:3]) for seed in (0, 0, 1)]
    assert scores[0].tolist() == scores[1].tolist() != scores[2].tolist()


def test_settings_and_tokenizers_are_used():
    fitted = trellis.fit(TEXTS, tokenizer="characters", transition="low_rank", width=3, **QUICK)
    assert (fitted.config.transition, fitted.config.width) == ("low_rank", 3)
    assert fitted.decode("the cat")[0].shape == (7,)
    assert trellis.fit(TEXTS, tokenizer="bytes", **QUICK).config.vocab_size == 257
    assert trellis.fit(walk(100), vocab_size=9, **QUICK).config.vocab_size == 9
    counted = trellis.fit(walk(100), method="baum_welch", **QUICK)
    assert counted.model.scalar


def test_the_run_lives_as_long_as_the_result():
    fitted = trellis.fit(TEXTS, **QUICK)
    folder = fitted.folder
    assert (folder / "metrics.jsonl").exists()
    del fitted
    gc.collect()
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": None}, "data is None"),
        ({"data": []}, "data is empty"),
        ({"data": np.array([0.5, 1.0])}, "data holds floats"),
        ({"data": np.array([1.0, np.nan])}, "data holds NaN"),
        ({"data": [1, -1]}, "data holds -1"),
        ({"data": [1, 2, 3], "lengths": [1, 1]}, "lengths add up to 2, but data has 3"),
        ({"data": [1, 2, 3], "lengths": [3, 0]}, "lengths holds 0"),
        ({"data": [[1, 2], []]}, r"data\[1\] is empty"),
        ({"data": [3, 3, 3, 3]}, "data holds one symbol only, 3"),
        ({"data": ["a a", "a"]}, "fewer than two words"),
        ({"data": ["a b", 3]}, "data mixes strings and whole numbers"),
        ({"data": np.zeros((2, 2, 2), dtype=int)}, r"data has shape \(2, 2, 2\)"),
        ({"data": [0, 2**40]}, "too many; number those that occur"),
        ({"data": TEXTS, "valid": [1, 2]}, "valid holds integers, but data holds strings"),
        ({"data": [1, 2] * 9, "valid": [3, 0]}, "valid holds the symbol 3, but the model knows 0 to 2"),
        ({"data": TEXTS, "valid": [""]}, r"valid\[0\] is empty"),
        ({"data": TEXTS, "tokenizer": "nowhere"}, "'nowhere' is neither words"),
        ({"data": TEXTS, "epoch": 3}, "did you mean 'epochs'"),
        ({"data": TEXTS, "support": "brown", "blocks": 3, "states": 4}, "equal blocks"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_argument(given, said, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError, match=said) as caught:
        trellis.fit(**{"quiet": True} | given)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TrellisError)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_an_interrupted_fit_is_interrupted_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def stop(*arguments, **settings):
        raise Stopped("stopped after update 1 of 2")

    monkeypatch.setattr("trellis.fitting.pipeline.train", stop)
    with pytest.raises(KeyboardInterrupt):
        trellis.fit(TEXTS, **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_support_from_the_data_works_on_data_in_memory():
    fitted = trellis.fit(TEXTS, support="brown", blocks=2, **QUICK)
    posterior = fitted.posteriors(TEXTS[:1])[0]
    assert posterior.shape == (5, 4)
    np.testing.assert_allclose(posterior.sum(1), 1.0, rtol=1e-5)
    shutil.rmtree(fitted.folder.parent)  # which may be gone before its owner
