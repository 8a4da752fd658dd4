import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trellis.errors import TrellisError
from trellis.text import open_corpus


class FakeHub:
    """Stands for both `datasets` and `huggingface_hub`."""

    def __init__(self, rows: list[dict[str, str]], sha: str = "abc", broken: str = "") -> None:
        self.rows, self.sha, self.broken, self.calls = rows, sha, broken, list[Any]()

    def load_dataset(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if self.broken == "load":
            raise ConnectionError("no network")
        yield from self.rows
        if self.broken == "midway":
            raise TimeoutError("lost")

    def HfApi(self) -> Any:
        def info(repository: str, revision: str) -> SimpleNamespace:
            if self.broken == "info":
                raise ConnectionError("no network")
            return SimpleNamespace(sha=self.sha)

        return SimpleNamespace(dataset_info=info)


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("TRELLIS_DATA", raising=False)


def install(monkeypatch, hub: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_streams_the_pinned_commit(monkeypatch):
    hub = FakeHub([{"text": ""}, {"text": " = Title = \n"}])
    install(monkeypatch, hub)
    assert list(open_corpus("wikitext-103", "valid")) == ["", " = Title = "]
    [(args, kwargs)] = hub.calls
    assert args == ("Salesforce/wikitext", "wikitext-103-v1")
    assert kwargs == {"split": "validation", "streaming": True, "revision": "abc"}


def test_penn_treebank_is_in_another_column(monkeypatch):
    install(monkeypatch, FakeHub([{"sentence": "a b"}]))
    assert list(open_corpus("ptb", "test")) == ["a b"]


def test_the_hash_changes_with_commit_split_and_corpus(monkeypatch):
    hashes = set()
    for sha in ("abc", "def"):
        install(monkeypatch, FakeHub([], sha))
        for name in ("wikitext-2", "wikitext-103"):
            hashes |= {open_corpus(name, split).content_hash() for split in ("train", "test")}
    assert len(hashes) == 8


@pytest.mark.parametrize("broken", ["info", "load", "midway"])
def test_no_network_names_the_folder_that_would_do(monkeypatch, broken):
    install(monkeypatch, FakeHub([{"text": "a"}], broken=broken))
    with pytest.raises(TrellisError, match=r"Hugging Face hub .* slimpajama/train\.jsonl\.zst"):
        list(open_corpus("slimpajama"))


def test_without_the_extra_it_says_how_to_get_it(monkeypatch):
    install(monkeypatch, None)
    with pytest.raises(TrellisError, match=r"pip install .*hub.* wikitext-2/train\.txt"):
        open_corpus("wikitext-2").content_hash()
