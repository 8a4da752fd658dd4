import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.errors import TrellisError
from trellis.text import WordTokenizer, load_tokenizer, open_corpus

DOCUMENTS = ["b c b <unk> a", "", "c <eos> d a b"]
WORDS = ("<unk>", "<eos>", "b", "a", "c", "d")


def test_words_go_by_falling_count_then_alphabet():
    assert WordTokenizer.train(DOCUMENTS).words == WORDS


def test_size_counts_the_specials_and_min_count_drops_the_rare():
    assert WordTokenizer.train(DOCUMENTS, vocab_size=4).words == WORDS[:4]
    assert WordTokenizer.train(DOCUMENTS, min_count=2).words == WORDS[:5]


def test_unknown_words_and_written_specials_share_an_id():
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.encode(" b  zebra\t<unk> <eos>\n") == [2, 0, 0, 1]
    assert tokenizer.encode_batch(["a", ""]) == [[3], []]
    assert (tokenizer.vocab_size, tokenizer.unk_id, tokenizer.eos_id) == (6, 0, 1)


@pytest.mark.parametrize(("name", "types"), [("ptb", 10_000), ("wikitext-2", 33_278)])
def test_published_vocabularies(data_dir, name, types):
    tokenizer = WordTokenizer.train(open_corpus(name, "train", data_dir))
    assert tokenizer.vocab_size == types
    assert tokenizer.words[2] == "the"


@given(documents=st.lists(st.text("abcé語 \t\n\x1c\x85\u2028", max_size=30)), text=st.text("abcé語 \x1d\x1f\n"))
def test_hugging_face_reads_the_same_ids_from_the_folder(documents, text, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "words"
    tokenizer = WordTokenizer.train(["a b", *documents])
    tokenizer.save(folder)
    theirs = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
    loaded = load_tokenizer(folder)
    assert isinstance(loaded, WordTokenizer)
    assert theirs.encode(text).ids == tokenizer.encode(text) == loaded.encode(text)
    assert loaded.fingerprint() == tokenizer.fingerprint()


@given(st.lists(st.sampled_from(WORDS)))
def test_decoding_undoes_encoding(words):
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.decode(tokenizer.encode(" ".join(words))) == " ".join(words)


def test_tokens_have_ids_and_ids_have_tokens():
    tokenizer = WordTokenizer([*WORDS, "zebra"])
    assert [tokenizer.id(tokenizer.token(number)) for number in range(7)] == list(range(7))
    with pytest.raises(TrellisError, match=r"'zebras' is not in the vocabulary; did you mean 'zebra'\?"):
        tokenizer.id("zebras")
    for number in (-1, 7):
        with pytest.raises(TrellisError, match="from 0 to 6"):
            tokenizer.token(number)


def test_the_fingerprint_follows_words_and_order():
    lists = (WORDS, WORDS[:-1], ("<unk>", "<eos>", "a", "b", "c", "d"))
    assert len({WordTokenizer(words).fingerprint() for words in lists}) == 3


@pytest.mark.parametrize("documents", [["same same"], [""], ["<unk> <eos>"]])
def test_one_word_is_no_vocabulary(documents):
    with pytest.raises(TrellisError, match="fewer than two words"):
        WordTokenizer.train(documents)


def test_bad_settings_and_lists():
    with pytest.raises(TrellisError, match="ask for 4 or more"):
        WordTokenizer.train(DOCUMENTS, vocab_size=3)
    for words in (["a", "b", "c", "d"], [*WORDS, "a"]):
        with pytest.raises(TrellisError, match="each word once"):
            WordTokenizer(words)


@pytest.mark.parametrize("damage", ["not json", "[]", "{}", '{"model": {"vocab": {"<unk>": 0, "<eos>": 2}}}'])
def test_a_damaged_folder_is_named(tmp_path, damage):
    WordTokenizer(WORDS).save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(damage)
    with pytest.raises(TrellisError, match=r"tokenizer\.json .* again"):
        load_tokenizer(tmp_path)


def test_the_folder_tells_other_libraries_its_special_tokens(tmp_path):
    WordTokenizer(WORDS).save(tmp_path / "deep" / "down")
    config = json.loads((tmp_path / "deep" / "down" / "tokenizer_config.json").read_text())
    assert (config["unk_token"], config["eos_token"]) == ("<unk>", "<eos>")


@pytest.mark.parametrize(
    ("words", "unknown", "fewest"),
    [(1_500, "", 1), (2_500, "", 2), (2_500, "<unk>", 1), (300_500, "", 3), (3_000_500, "", 5)],
)
def test_words_seen_too_seldom_for_the_size_of_the_text_are_left_out(words, unknown, fewest):
    seldom = " ".join(f"seen{times} " * times for times in range(1, 6))
    text = [seldom, unknown, "often " * words, "again again again again again"]
    found = WordTokenizer.train(text, min_count=None).words
    assert {word for word in found if word.startswith("seen")} == {f"seen{times}" for times in range(fewest, 6)}
