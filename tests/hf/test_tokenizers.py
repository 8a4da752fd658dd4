"""AutoTokenizer gives the ids of Trellis's own tokenizers, and their text back."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import trellis
from trellis.text import ByteTokenizer, CharacterTokenizer, IntegerTokenizer, SubwordTokenizer, WordTokenizer

from .models import HMM, HMMConfig

LINES = ["a cat sat on <unk> the mat .", "do n't , é 日本 ?", "a new list of all the keys"]
TOKENIZERS = {
    "words": WordTokenizer.train(LINES),
    "characters": CharacterTokenizer.train(LINES),
    "bytes": ByteTokenizer(),
    "subwords": SubwordTokenizer.train_bpe(LINES * 3, 280),
}
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.lists(st.sampled_from(["a", "cat", "<eos>", "<unk>", "  ", "\n", "\x1d", "a<eos>b", "zebra", "é"])).map("".join),
    st.lists(st.sampled_from(["a", "cat", "<eos>", "<unk>", "zebra", "the", "."])).map(" ".join),
)
# Trellis joins nothing to a token; byte-level BPE is transformers' own, and `<eos>` in a text is the token in both.


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Each as a saved model's, by transformers."""
    found = {}
    for name, tokenizer in TOKENIZERS.items():
        folder = tmp_path_factory.mktemp(name)
        HMM(HMMConfig(tokenizer.vocab_size, 2), seed=0).save_pretrained(folder / "model", tokenizer)
        found[name] = AutoTokenizer.from_pretrained(folder / "model")
    return found


@settings(max_examples=200)
@given(name=st.sampled_from(list(TOKENIZERS)), text=TEXTS)
def test_ids_and_texts_are_the_same(loaded, name, text):
    ours, theirs = TOKENIZERS[name], loaded[name]
    ids = ours.encode(text)
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == ours.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_the_same_and_padding_stands_at_the_left(loaded, name):
    ours, theirs = TOKENIZERS[name], loaded[name]
    assert (theirs.eos_token_id, theirs.unk_token_id) == (ours.eos_id, ours.unk_id)
    assert (theirs.pad_token_id, theirs.padding_side) == (ours.eos_id, "left")
    assert len(theirs) == ours.vocab_size
    batch = theirs(["a cat", "a"], padding=True)
    longer, shorter = (ours.encode(text) for text in ("a cat", "a"))
    missing = len(longer) - len(shorter)
    assert batch["input_ids"] == [longer, [ours.eos_id] * missing + shorter]
    assert batch["attention_mask"][1] == [0] * missing + [1] * len(shorter)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_transformers_saved_is_the_same_to_trellis(loaded, name, tmp_path):
    folder = tmp_path / "model"
    HMM(HMMConfig(TOKENIZERS[name].vocab_size, 2), seed=0).save_pretrained(folder, TOKENIZERS[name])
    loaded[name].save_pretrained(folder)
    again = trellis.load_tokenizer(folder)
    assert type(again) is type(TOKENIZERS[name])
    assert again.fingerprint() == TOKENIZERS[name].fingerprint()
    assert json.loads(Path(folder, "tokenizer_config.json").read_text())["pad_token"] == "<eos>"


def test_whole_numbers(tmp_path):
    tokenizer = IntegerTokenizer(12)
    HMM(HMMConfig(12, 2), seed=0).save_pretrained(tmp_path / "model", tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs("3 0 11")["input_ids"] == tokenizer.encode("3 0 11") == [3, 0, 11]
    assert theirs.decode([3, 0, 11]) == tokenizer.decode([3, 0, 11])
    assert theirs.eos_token_id is None
