"""A tiny text, its tokenizers, and a tiny Llama in a folder of its own."""

import pytest
import torch

from trellis.text import MemoryCorpus, SubwordTokenizer, WordTokenizer, prepare

from .makers import DOCUMENTS, save_llama


@pytest.fixture(scope="session")
def bpe():
    return SubwordTokenizer.train_bpe(DOCUMENTS, 300)


@pytest.fixture(scope="session")
def words():
    return WordTokenizer.train(DOCUMENTS, vocab_size=15)  # of 20, so that some words are unknown


@pytest.fixture(scope="session")
def corpus():
    return MemoryCorpus("tiny", DOCUMENTS)


@pytest.fixture(scope="session")
def text(corpus, bpe, tmp_path_factory):
    return prepare(corpus, bpe, tmp_path_factory.mktemp("ids"), quiet=True)


@pytest.fixture(scope="session")
def word_text(corpus, words, tmp_path_factory):
    return prepare(corpus, words, tmp_path_factory.mktemp("ids"), quiet=True)


@pytest.fixture(scope="session")
def llama(bpe, tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("teachers") / "llama", bpe)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that nothing else writes into."""
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def vectors():
    """120 vectors about six places far apart, 8 dimensions."""
    generator = torch.Generator().manual_seed(3)
    places = 10 * torch.randn(6, 8, generator=generator)
    return (places.repeat(20, 1) + torch.randn(120, 8, generator=generator)).numpy()
