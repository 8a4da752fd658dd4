import errno
import json
import re
from collections import Counter

import pytest

import trellis.text.pydocs as library
from trellis import folders
from trellis.text.corpora import SPLITS
from trellis.text.pydocs import paragraphs, prose, pydocs, split_of, tokenise

DOCSTRING = """Return the shell name, e.g. the one in use.

    Some text that continues.  Options may be given.

    >>> run()
    3

    name     type      meaning
    a        int       first one.

    * A first item is here.
    * A second item is here.

    x = f(y, z) + {1: 2} and [3] == <4>.
"""


def sentences(text: str) -> list[str]:
    return [sentence for paragraph in paragraphs(text) for sentence in prose(paragraph)]


def test_prose_is_kept_and_code_is_not():
    assert sentences(DOCSTRING) == [
        "Return the shell name, e.g. the one in use.",
        "Some text that continues.",
        "Options may be given.",
        "A first item is here.",
        "A second item is here.",
    ]


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        ("Return 3.5, or 1,000!", "return N , or N !"),
        ("It doesn't call os.path.join() twice.", "it doesn't call os.path.join() twice ."),
        ('The "with" statement (see below):', 'the " with " statement ( see below ) :'),
        ("A well-known case -- for now...", "a well-known case -- for now ..."),
    ],
)
def test_tokens(sentence, tokens):
    assert tokenise(sentence) == tokens


def test_size_and_shares():
    counts = {split: sum(len(text.split()) for text in pydocs(split)) for split in SPLITS}
    total = sum(counts.values())
    assert 150_000 < total < 400_000
    assert counts["train"] / total == pytest.approx(0.9, abs=0.03)
    assert min(counts["valid"], counts["test"]) > 0.03 * total


def test_no_sentence_is_on_two_sides_or_twice():
    everything = [text for split in SPLITS for text in pydocs(split)]
    assert len(everything) == len(set(everything))
    assert all(text and text == " ".join(text.split()) for text in everything)


def test_it_reads_like_lower_case_english():
    words = Counter(word for text in pydocs("train") for word in text.split())
    assert [word for word, _ in words.most_common(3)] == ["the", ".", ","]
    assert not any(re.search("[A-Z0-9]", word[0]) for word in words if word != "N")
    assert not any(">>>" in text for text in pydocs("train"))


def test_a_source_stays_on_its_side_for_ever():
    assert {split_of(f"module m{number}.py") for number in range(200)} == set(SPLITS)
    assert [split_of(f"module {name}.py") for name in ("argparse", "json/decoder", "os")] == [
        "train",
        "train",
        "valid",
    ]


def test_what_was_kept_on_disk_is_what_a_reading_gives(tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    fresh = everything_again()
    (kept,) = tmp_path.glob("pydocs-*/sentences.json")
    assert json.loads(kept.read_text(encoding="utf-8")) == [list(pair) for pair in fresh]
    with monkeypatch.context() as patched:
        patched.setattr(library, "_read_library", None)
        assert everything_again() == fresh
    for damage in ('[["cut short', "[" * 9999, kept.read_text(encoding="utf-8").replace("the", "thy", 1)):
        kept.write_text(damage, encoding="utf-8")
        assert everything_again() == fresh


def test_a_full_disk_costs_only_time_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "_read_library", lambda: (("a sentence .", "train"),))
    monkeypatch.setattr(folders, "_to_disk", full)
    assert everything_again() == (("a sentence .", "train"),)
    assert list(tmp_path.iterdir()) == []
    library._sentences.cache_clear()


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(library, "_read_library", lambda: (("a sentence .", "train"),))
    assert everything_again() == (("a sentence .", "train"),)
    library._sentences.cache_clear()


def everything_again():
    library._sentences.cache_clear()
    return library._sentences()
