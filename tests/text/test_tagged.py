"""Tagged files are read as they stand, and what is wrong with one is said with its line."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis import TrellisError
from trellis.text.tagged import (
    Columns,
    TaggedSentence,
    labels_of,
    read_tag_names,
    read_tagged,
    some_sentences,
    tag_names,
)

TEXT = "The\tDET\tDT\ncat\tNOUN\tNN\n\nIt\tPRON\tPRP\nsat\tVERB\tVBD\n"
SENTENCES = [TaggedSentence(["The", "cat"], ["DET", "NOUN"]), TaggedSentence(["It", "sat"], ["PRON", "VERB"])]


def written(folder, text):
    path = folder / "tagged.tsv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.replace("\n", "\r\n"),
        f"\n\n{TEXT}\n\n \n",
        TEXT.rstrip(),
        TEXT.replace("\n\n", "\n\t\n"),
        f"# a comment\n{TEXT}# another, in a sentence\n",
    ],
)
def test_sentences_are_words_and_tags(tmp_path, text):
    assert read_tagged(written(tmp_path, text)) == SENTENCES


def test_columns_are_chosen_and_none_may_hold_tags(tmp_path):
    path = written(tmp_path, TEXT)
    assert [sentence.tags for sentence in read_tagged(path, Columns(3))] == [["DT", "NN"], ["PRP", "VBD"]]
    assert read_tagged(path, Columns(tag=1, word=3))[0] == TaggedSentence(["DT", "NN"], ["The", "cat"])
    assert read_tagged(path, Columns(0))[1] == TaggedSentence(["It", "sat"], ["", ""])
    assert read_tagged(written(tmp_path, "one\ntwo\n\nthree\n"), Columns(0))[0].words == ["one", "two"]


def test_a_number_sign_that_is_tagged_is_a_word(tmp_path):
    assert read_tagged(written(tmp_path, "#\tSYM\n1\tNUM\n"))[0].words == ["#", "1"]


def test_conll_lines_that_are_no_words_are_left_out(tmp_path):
    text = "# text = don't\n1-2\tdon't\t_\t_\n1\tdo\tdo\tAUX\n2\tn't\tnot\tPART\n"
    assert read_tagged(written(tmp_path, text), Columns(4, 2)) == [TaggedSentence(["do", "n't"], ["AUX", "PART"])]


def test_words_with_spaces_stay_one_word(tmp_path):
    assert read_tagged(written(tmp_path, "1 000\xa0km\tNUM\n"))[0].words == ["1_000_km"]


def test_a_compressed_file_is_read(tmp_path):
    with gzip.open(tmp_path / "tagged.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(TEXT)
    assert read_tagged(tmp_path / "tagged.tsv.gz") == SENTENCES


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("The\tDET\ncat NOUN\n", Columns(), "line 2 has no column 2; write word and tag with a tab between"),
        (TEXT, Columns(4), "line 1 has no column 4"),
        ("The\t\n", Columns(), "line 1 has an empty tag; fill it in"),
        ("The\tDET\n\tNOUN\n", Columns(), "line 2 has an empty word; fill it in"),
        ("\n\n", Columns(), "holds no words; give a file with a word"),
        ("# nothing\n", Columns(), "holds no words; give a file with a word"),
        (TEXT, Columns(1), "column 1 cannot hold both words and tags"),
        (TEXT, Columns(2, 0), "columns are counted from 1"),
        (TEXT, Columns(-1), "columns are counted from 1"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path, text, columns, said):
    with pytest.raises(TrellisError, match=said):
        read_tagged(written(tmp_path, text), columns)


def test_files_that_are_not_there_or_no_text_are_refused(tmp_path):
    with pytest.raises(TrellisError, match="There is no file"):
        read_tagged(tmp_path / "none.tsv")
    (tmp_path / "bytes.tsv").write_bytes(b"caf\xe9\tNOUN\n")
    with pytest.raises(TrellisError, match="not UTF-8 at line 1"):
        read_tagged(tmp_path / "bytes.tsv")


def test_labels_are_states_of_tags_and_ends():
    names = tag_names(SENTENCES)
    assert names == ["DET", "NOUN", "PRON", "VERB", "<eos>"]
    assert tag_names([TaggedSentence(["untagged"], [""])]) == ["<eos>"]
    assert labels_of(SENTENCES, names).tolist() == [0, 1, 4, 2, 3, 4]
    assert labels_of(SENTENCES, names, np.array([False, True])).tolist() == [-1, -1, 4, 2, 3, 4]
    assert labels_of(SENTENCES, names[:-1]).tolist() == [0, 1, -1, 2, 3, -1]
    with pytest.raises(TrellisError, match="the tag NOUN is none of those named"):
        labels_of(SENTENCES, ["DET", "<eos>"])
    assert labels_of(SENTENCES[:1], ["<eos>"], np.array([False])).tolist() == [-1, -1, 0]


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 3))
def test_more_sentences_include_fewer(first, second, seed):
    fewer, more = sorted((first, second))
    some, others = some_sentences(str(fewer), 60, seed), some_sentences(str(more), 60, seed)
    assert (some.sum(), others.sum()) == (fewer, more)
    assert not (some & ~others).any()


def test_a_share_is_a_number_of_sentences():
    assert some_sentences("25%", 40).sum() == 10
    assert some_sentences("100%", 7).all()
    assert not (some_sentences("10", 40, 0) == some_sentences("10", 40, 1)).all()


@pytest.mark.parametrize("wanted", ["many", "%", "-1", "8", "101%", "nan%", "inf%", "1.5", ""])
def test_what_is_no_number_of_sentences_is_refused(wanted):
    with pytest.raises(TrellisError, match=r"no number of sentences|cannot be labelled"):
        some_sentences(wanted, 7)


def test_names_of_states_are_lines(tmp_path):
    (tmp_path / "tags.txt").write_text("DET\nNOUN\nNOUN\n")
    assert read_tag_names(tmp_path / "tags.txt") == ["DET", "NOUN", "NOUN"]
    (tmp_path / "tags.txt").write_text("DET\n\nNOUN\n")
    with pytest.raises(TrellisError, match="line 2 is empty"):
        read_tag_names(tmp_path / "tags.txt")
