import numpy as np
import pandas as pd
import pytest
import torch

from trellis.errors import InputError
from trellis.fitting.data import Numbers, Texts, Tokens
from trellis.fitting.recognising import recognise
from trellis.text import MemoryCorpus, open_corpus

STRINGS = ["a b", "c"]


class Dataset:
    """A table as `datasets` has them, by what of it is asked."""

    def __init__(self, **columns):
        self.columns_by_name = columns

    @property
    def column_names(self):
        return list(self.columns_by_name)

    def __getitem__(self, name):
        return self.columns_by_name[name]

    def __len__(self):
        return len(next(iter(self.columns_by_name.values())))


@pytest.mark.parametrize(
    "data",
    [
        STRINGS,
        tuple(STRINGS),
        iter(STRINGS),
        (text for text in STRINGS),
        dict.fromkeys(STRINGS).keys(),
        np.array(STRINGS),
        np.array(STRINGS, dtype=object),
        pd.Series(STRINGS, index=[7, 3]),
        pd.Series(STRINGS).astype("category"),
        pd.Index(STRINGS),
        pd.DataFrame({"number": [1, 2], "text": STRINGS}),
        pd.DataFrame({"only": STRINGS}),
        Dataset(label=[0, 1], text=STRINGS),
    ],
    ids=lambda data: type(data).__name__,
)
def test_strings_in_every_wrapping(data):
    found = recognise(data)
    assert isinstance(found, Texts)
    assert list(found.corpus) == STRINGS
    assert not found.running, "each is a sample of its own"


@pytest.mark.parametrize(
    "data",
    [
        [["a", "b"], ["c"]],
        [("a", "b"), ("c",)],
        (text.split() for text in STRINGS),
        [np.array(["a", "b"]), np.array(["c"])],
        pd.Series([["a", "b"], ["c"]]),
        np.array([["a", "b"], ["c"]], dtype=object),
    ],
    ids=lambda data: type(data).__name__,
)
def test_tokens_in_every_wrapping(data):
    found = recognise(data)
    assert isinstance(found, Tokens)
    assert found.sequences == [["a", "b"], ["c"]]


def test_a_table_of_tokens_has_a_sequence_a_row():
    assert recognise(np.array([["a", "b"], ["c", "d"]])).sequences == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("data", "lengths"),
    [
        ([[3, 1], [2]], None),
        ([np.array([3, 1]), np.array([2], dtype=np.uint8)], None),
        ([torch.tensor([3, 1]), torch.tensor([2])], None),
        ([pd.Series([3, 1]), pd.Series([2])], None),
        ((row for row in [[3, 1], [2]]), None),
        (pd.Series([[3, 1], [2]]), None),
        ([3, 1, 2], [2, 1]),
        (np.array([3, 1, 2]), [2, 1]),
        (np.array([[3], [1], [2]]), (2, 1)),
        (torch.tensor([3, 1, 2]), torch.tensor([2, 1])),
        (pd.Series([3, 1, 2]), pd.Series([2, 1])),
        (pd.Series([3, 1, 2], dtype="Int64"), [2, 1]),
        (Dataset(text=[3, 1, 2]), [2, 1]),
    ],
)
def test_whole_numbers_in_every_wrapping(data, lengths):
    found = recognise(data, lengths)
    assert isinstance(found, Numbers)
    assert [one.tolist() for one in found.sequences] == [[3, 1], [2]]


def test_the_named_column_of_a_table():
    table = {"title": STRINGS, "text": ["x", "y"]}
    for data in (pd.DataFrame(table), Dataset(**table)):
        assert list(recognise(data, column="title").corpus) == STRINGS
        with pytest.raises(InputError, match="no column 'titel': set column to one of title, text"):
            recognise(data, column="titel")
    with pytest.raises(InputError, match="no column 'text': set column to one of a, b"):
        recognise(pd.DataFrame({"a": STRINGS, "b": STRINGS}))
    with pytest.raises(InputError, match="column='text' does not fit"):
        recognise(STRINGS, column="text")


def test_real_datasets():
    datasets, arrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    # `from_dict` hashes the table by pickling, which some versions of pyarrow do not let it do.
    table = datasets.table.InMemoryTable(arrow.table({"text": STRINGS, "ids": [[3, 1], [2]]}))
    data = datasets.Dataset(table, fingerprint="any")
    assert list(recognise(data).corpus) == STRINGS
    assert list(recognise(data["text"]).corpus) == STRINGS
    assert [one.tolist() for one in recognise(data, column="ids").sequences] == [[3, 1], [2]]
    with pytest.raises(InputError, match="has parts, train"):
        recognise(datasets.DatasetDict({"train": data}))


def test_a_corpus_is_running_text(tmp_path):
    (tmp_path / "x.txt").write_text("a b\nc\n")
    for corpus in (MemoryCorpus("x", ("a b", "c")), open_corpus(tmp_path / "x.txt")):
        found = recognise(corpus)
        assert found.corpus is corpus
        assert found.running
        with pytest.raises(InputError, match="lengths does not fit, since data is a corpus"):
            recognise(corpus, [1])


def test_a_string_is_a_name_a_file_or_a_text(tmp_path):
    (tmp_path / "x.txt").write_text("3 1\n2\n")
    assert list(recognise(tmp_path / "x.txt").corpus) == ["3 1", "2"]
    assert list(recognise(str(tmp_path / "x.txt")).corpus) == ["3 1", "2"]
    (tmp_path / "x.jsonl").write_text('{"text": "a b"}\n')
    assert list(recognise(str(tmp_path / "x.jsonl")).corpus) == ["a b"]
    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb" / "ptb.train.txt").write_text("a b\n")
    assert recognise("ptb", data_dir=str(tmp_path)).corpus.name == "ptb"
    running = recognise("a text of some words\nand lines")
    assert (list(running.corpus), running.running) == (["a text of some words", "and lines"], True)
    with pytest.raises(InputError, match=r"^data: there is no corpus or file called 'pydoc': did you mean 'pydocs'"):
        recognise("pydoc")
    with pytest.raises(InputError, match=r"^data: There is no file my file\.txt"):
        recognise("my file.txt")
    with pytest.raises(InputError, match="data is an empty string"):
        recognise("  ")


def test_asked_about_a_string_it_is_one_text():
    for text in ("pydocs", "word", "two words", "two\nlines"):
        assert list(recognise(text, asked=True).corpus) == [text]
    with pytest.raises(InputError, match=r"no file words\.txt"):
        recognise("words.txt", asked=True)


def test_numpy_files_are_whole_numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.array([3, 1, 2]))
    np.save(tmp_path / "rows.npy", np.array([[3, 1], [2, 0]]))
    assert [one.tolist() for one in recognise(tmp_path / "x.npy", [2, 1]).sequences] == [[3, 1], [2]]
    assert [one.tolist() for one in recognise(str(tmp_path / "rows.npy")).sequences] == [[3, 1], [2, 0]]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "data is None"),
        ([], "data is empty"),
        (iter([]), "data is empty"),
        (pd.Series([], dtype=object), "data is empty"),
        (np.array([]), "data is empty"),
        (3, "data is of type int"),
        (b"abc", "data is of type bytes"),
        ({"a b", "b c"}, "data is a set, which has no order"),
        (frozenset({0, 1}), "data is a set"),
        ([{0, 1}, {0, 2}], "data holds objects"),
        ({"train": STRINGS}, "data has parts, train: give one of them"),
        (["a b", ""], r"data\[1\] is empty: leave empty sequences out"),
        (["a b", " \n"], r"data\[1\] is empty"),
        ([[1, 2], []], r"data\[1\] is empty"),
        ([["a"], []], r"data\[1\] is empty"),
        ([["a", ""]], r"data\[0\] holds an empty token, at place 1"),
        (["a", 3], "data mixes strings and whole numbers"),
        ([["a", 3]], r"data\[0\] mixes strings and whole numbers"),
        ([["a"], [3]], "data mixes lists of strings and lists of whole numbers"),
        ([[1, 2], [0.5]], r"data\[1\] holds floats where whole numbers belong"),
        ([[1, 2], np.array([0.5])], r"data\[1\] holds floats"),
        ([[1, 2], [1, float("nan")]], r"data\[1\]\[1\] is missing"),
        ([[1, 2], [1, None]], r"data\[1\]\[1\] is missing"),
        ([[1, 2], [1, -1]], r"data\[1\] holds -1"),
        ([[1, 2**70]], "beyond 64 bits"),
        ([[[1], [2, 3]]], r"data\[0\] holds lists"),
        ([np.zeros((2, 2), dtype=int)], r"data\[0\] has shape \(2, 2\)"),
        (np.zeros((2, 2, 2), dtype=str), r"data has shape \(2, 2, 2\)"),
        (pd.Series(["a", None]), r"data\[1\] is missing"),
        (pd.Series(["a", pd.NA], dtype="string"), r"data\[1\] is missing"),
        (pd.Series([1, None]), "data holds NaN"),
        (pd.Series([1, None], dtype="Int64"), "data holds NaN"),
        (pd.Series([0.5, 1.5]), "data holds floats"),
        (torch.tensor([0.5]), "data holds floats"),
    ],
)
def test_bad_data_is_a_value_error_that_names_the_argument(data, said):
    with pytest.raises(InputError, match=said):
        recognise(data)


def test_lengths_are_for_whole_numbers_in_a_row():
    for data in (STRINGS, [["a"]], [[1, 2], [3]], np.array([[1, 2], [3, 4]])):
        with pytest.raises(InputError, match="lengths does not fit"):
            recognise(data, [1, 1])


def test_the_name_is_that_of_the_argument():
    with pytest.raises(InputError, match=r"^valid is empty"):
        recognise([], name="valid")
