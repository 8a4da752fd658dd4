import os
from pathlib import Path

import pytest

from trellis.text import WordTokenizer, load_tokenizer

from .texts import trained

DATA = Path(os.environ.get("TRELLIS_DATA") or Path(__file__).parents[3] / "shared" / "data")
LLAMA = DATA / "tokenizers" / "llama2"


@pytest.fixture(scope="session")
def words():
    """Two specials and four words."""
    return WordTokenizer(["<unk>", "<eos>", "the", "big", "dog", "dogs"])


@pytest.fixture(scope="session")
def llama():
    if not LLAMA.is_dir():
        pytest.skip("no data folder: set TRELLIS_DATA")
    return load_tokenizer(LLAMA)


@pytest.fixture(scope="session")
def spellers():
    """Tokenizers whose tokens are parts of words, Llama's too if it is there."""
    return [*trained(), *([load_tokenizer(LLAMA)] if LLAMA.is_dir() else [])]
