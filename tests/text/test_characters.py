import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.errors import TrellisError
from trellis.text import ByteTokenizer, CharacterTokenizer, MemoryCorpus, load_tokenizer, prepare

LETTERS = CharacterTokenizer.train(["abba", "a b\n", "é語"])
ANY = st.text(st.characters(codec="utf-8"))
SEEN = st.text(st.sampled_from("ab é\n語"))


def test_every_character_is_a_token_the_frequent_first():
    assert LETTERS.characters == ("<unk>", "<eos>", "a", "b", "\n", " ", "é", "語")
    assert LETTERS.encode("ab xé") == [2, 3, 5, 0, 6]
    assert LETTERS.decode([2, 1, 6]) == "a<eos>é"
    assert LETTERS.encode("<eos>") == [0, 0, 0, 0, 0], "what spells a special token is text"
    assert (LETTERS.id("語"), LETTERS.token(7), LETTERS.unk_id, LETTERS.eos_id) == (7, "語", 0, 1)


@given(text=SEEN)
def test_text_of_seen_characters_comes_back(text):
    assert LETTERS.decode(LETTERS.encode(text)) == text
    assert LETTERS.encode_batch([text, "a"]) == [LETTERS.encode(text), [2]]


def test_rare_characters_are_unknown_and_sizes_are_kept():
    assert CharacterTokenizer.train(["aabbc"], min_count=2).characters[2:] == ("a", "b")
    assert CharacterTokenizer.train(["aaabbc"], vocab_size=4).characters[2:] == ("a", "b")
    with pytest.raises(TrellisError, match="fewer than two different characters"):
        CharacterTokenizer.train(["aaaa"])
    with pytest.raises(TrellisError, match="ask for 4 or more"):
        CharacterTokenizer.train(["ab"], vocab_size=3)
    for broken in (["a", "b", "c", "d"], ["<unk>", "<eos>", "a", "a"], ["<unk>", "<eos>", "ab", "c"]):
        with pytest.raises(TrellisError, match="each character once"):
            CharacterTokenizer(broken)


def test_ids_and_tokens_that_there_are_not():
    with pytest.raises(TrellisError, match="no token 8"):
        LETTERS.token(8)
    with pytest.raises(TrellisError, match="'x' is not in the vocabulary"):
        LETTERS.id("x")
    with pytest.raises(TrellisError, match="no token 257"):
        ByteTokenizer().token(257)
    with pytest.raises(TrellisError, match="not in the vocabulary"):
        ByteTokenizer().id("ab")


@given(text=ANY)
def test_bytes_are_never_unknown_and_come_back(text):
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_have_the_spelling_of_byte_level_tokenizers():
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.unk_id) == (257, 256, None)
    assert [tokenizer.token(id) for id in b" a\n"] == ["Ġ", "a", "Ċ"]
    assert all(tokenizer.id(tokenizer.token(id)) == id for id in range(257))
    assert tokenizer.decode([97, 256, 0xC3]) == "a<eos>\ufffd"


@pytest.mark.parametrize("tokenizer", [LETTERS, ByteTokenizer()], ids=["characters", "bytes"])
def test_saved_and_loaded_it_is_the_same_here_and_in_other_libraries(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("ab ba\n", "é語", "a\r\nx", "<eos> <unk>", ""):
        assert loaded.encode(text) == tokenizer.encode(text) == theirs.encode(text).ids
    assert theirs.decode(tokenizer.encode("a é\n語")) == "a é\n語"


def test_fingerprints_tell_vocabularies_apart():
    other = CharacterTokenizer.train(["abba", "a b\n", "é語x"])
    assert len({LETTERS.fingerprint(), other.fingerprint(), ByteTokenizer().fingerprint()}) == 3


def test_documents_end_with_eos(tmp_path):
    file = prepare(MemoryCorpus("x", ("ab", "é?")), LETTERS, tmp_path)
    assert file.ids.tolist() == [2, 3, 1, 6, 0, 1]
    assert file.meta.unknown == 1
