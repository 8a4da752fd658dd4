import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models

from trellis.errors import TrellisError
from trellis.text import SubwordTokenizer, load_tokenizer, subwords


@pytest.fixture(scope="module")
def bpe() -> SubwordTokenizer:
    return SubwordTokenizer.train_bpe(["the cat sat on the mat", "the dog sat on the log"] * 10, 270)


@given(text=st.text(st.characters(codec="utf-8")))
def test_bytes_leave_nothing_unknown(bpe, text):
    ids = bpe.encode(text)
    assert all(0 <= number < bpe.vocab_size for number in ids)
    if "<eos>" not in text:
        assert bpe.decode(ids) == text
    assert bpe.encode_batch([text, text]) == [ids, ids]


def test_bpe_learns_to_the_size_asked(bpe):
    assert (bpe.vocab_size, bpe.eos_id, bpe.unk_id) == (270, 0, None)
    assert len(bpe.encode("the cat sat")) < len("the cat sat") / 2
    assert bpe.token(0) == "<eos>"
    with pytest.raises(TrellisError, match="257 tokens or more"):
        SubwordTokenizer.train_bpe(["a"], 256)


def test_saving_and_loading_changes_nothing(bpe, tmp_path):
    bpe.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, SubwordTokenizer)
    assert loaded.fingerprint() == bpe.fingerprint()
    assert (loaded.eos_id, loaded.unk_id) == (0, None)
    assert loaded.encode("the dog") == bpe.encode("the dog")


def test_llama(data_dir):
    llama = load_tokenizer(data_dir / "tokenizers" / "llama2")
    assert (llama.vocab_size, llama.eos_id, llama.unk_id) == (32_000, 2, 0)
    assert [llama.token(number) for number in llama.encode("Hello world")] == ["▁Hello", "▁world"]
    assert llama.decode(llama.encode("Hello world, déjà vu 語")) == "Hello world, déjà vu 語"
    assert llama.id("▁world") == llama.encode("Hello world")[1]


def test_truncation_padding_and_added_specials_in_the_file_are_ignored(bpe, tmp_path):
    bpe.save(tmp_path)
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs.enable_truncation(4)
    theirs.enable_padding(length=9)
    theirs.save(str(tmp_path / "tokenizer.json"))
    texts = ["the cat sat on a hat and that was that", "the cat"]
    loaded = load_tokenizer(tmp_path)
    assert [loaded.encode(text) for text in texts] == loaded.encode_batch(texts)
    assert loaded.encode_batch(texts) == bpe.encode_batch(texts)
    assert loaded.decode(loaded.encode(texts[1])) == texts[1]


def test_the_document_end_may_be_an_object_or_unsaid(bpe, tmp_path):
    bpe.save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": "the"}}))
    other = load_tokenizer(tmp_path)
    assert other.eos_id == bpe.id("the")
    assert other.fingerprint() != bpe.fingerprint()
    config.unlink()
    assert load_tokenizer(tmp_path).eos_id == 0


def test_unknown_tokens_and_ids(bpe):
    with pytest.raises(TrellisError, match="'thé' is not in the vocabulary"):
        bpe.id("thé")
    for number in (-1, 270):
        with pytest.raises(TrellisError, match="from 0 to 269"):
            bpe.token(number)


def test_bad_folders(tmp_path):
    with pytest.raises(TrellisError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TrellisError, match="not a sound tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TrellisError, match=r"tokenizer_config\.json is cut short or damaged"):
        load_tokenizer(tmp_path)


def test_one_token_is_no_vocabulary():
    with pytest.raises(TrellisError, match="one token"):
        SubwordTokenizer(HuggingFaceTokenizer(models.WordLevel({"a": 0}, unk_token="a")))


@pytest.mark.parametrize("told", ["<s>", {"content": "<s>", "lstrip": False}])
def test_the_token_that_begins_a_text_is_not_lost(bpe, told, tmp_path):
    bpe.save(tmp_path / "first")
    path = tmp_path / "first" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": told}))
    load_tokenizer(tmp_path / "first").save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())["bos_token"] == "<s>"
    assert load_tokenizer(tmp_path / "again").fingerprint() == bpe.fingerprint(), "ids do not depend on it"


@given(st.lists(st.text("ab \t", max_size=60)), st.integers(2, 7))
def test_documents_are_cut_within_long_words_alone(documents, longest):
    """The pieces are the document, none of them has a longer run, and what has no longer one is one piece."""
    long = re.compile(rf"\S{{{longest}}}|\s{{{longest}}}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subwords, "_LONG", long)
        for document in documents:
            pieces = list(subwords._cut([document]))
            assert "".join(pieces) == document
            assert max(len(run) for piece in pieces for run in re.findall(r"\S+|\s+|$", piece)) <= longest
            assert len(pieces) == 1 + len(long.findall(document))


def test_a_word_without_end_is_learnt_in_pieces():
    """One word of 300,000 letters: as a whole, it would take the square of that."""
    letters = random.Random(0).choices("abcdefghij", k=300_000)
    assert SubwordTokenizer.train_bpe(["".join(letters)], 300).vocab_size == 300
