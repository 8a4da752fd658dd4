"""`trellis untag` and `trellis tag`: from tagged words to a tagger, and back."""

import numpy as np
import pytest

from trellis import load_model, load_tokenizer
from trellis.cli import main
from trellis.tagging import accuracy, decode_sentences, tagging_scores
from trellis.text.tagged import read_tagged

from .commands import LINES, call, done, records, rows

TAGS = {"the": "D", "a": "D", "one": "D", "saw": "V", "likes": "V", "heard": "V"}


@pytest.fixture(scope="module")
def tagged(place):
    path = place / "tagged.tsv"
    sentences = ["".join(f"{word}\t{TAGS.get(word, 'N')}\n" for word in line.split()) for line in LINES * 2]
    path.write_text("\n".join(sentences))
    return path


@pytest.fixture(scope="module")
def tagger(place, tagged):
    """Learnt from the tags of ten sentences, and the words of all."""
    folder = place / "untagged"
    assert main(["untag", str(tagged), str(folder), "--labelled", "10"]) == 0
    told = ["training.objective=joint", "training.init=counts", "training.method=baum_welch", "model.states=4",
            "training.batching=sequences", "training.epochs=2", "training.full_batch=true"]  # fmt: skip
    text = [str(folder / "words.txt"), f"data.labels={folder / 'labels.npy'}"]
    assert main(["train", *text, *told, f"out={place / 'tagger'}"]) == 0
    return place / "tagger"


def test_words_labels_and_names_are_written(capsys, tagged, tmp_path):
    (told,) = records(done(capsys, "untag", tagged, tmp_path / "out", "--labelled", "25%", "--seed", 3, "--json"))
    lines = (tmp_path / "out" / "words.txt").read_text().splitlines()
    names = (tmp_path / "out" / "tags.txt").read_text().splitlines()
    labels = np.load(tmp_path / "out" / "labels.npy")
    assert lines == LINES * 2
    assert names == ["D", "N", "V", "<eos>"]
    assert (told["sentences"], told["labelled"], told["tokens"], told["states"]) == (54, 14, len(labels), 4)
    at = 0
    for line in lines:
        *own, end = labels[at : at + len(line.split()) + 1]
        assert own in ([names.index(TAGS.get(word, "N")) for word in line.split()], [-1] * len(own))
        assert end == 3
        at += len(own) + 1
    assert at == len(labels)


def test_sentences_without_labels_may_be_left_out(capsys, tagged, tmp_path):
    done(capsys, "untag", tagged, tmp_path / "out", "--labelled", "5", "--only")
    assert len((tmp_path / "out" / "words.txt").read_text().splitlines()) == 5
    assert (np.load(tmp_path / "out" / "labels.npy") >= 0).all()
    assert len((tmp_path / "out" / "tags.txt").read_text().splitlines()) == 4


def test_a_tagger_learns_from_few_sentences(capsys, tagged, tagger, place):
    (found,) = records(done(capsys, "tag", tagger, tagged, "--names", place / "untagged" / "tags.txt", "--json"))
    assert found["accuracy"] == 1.0
    assert found["words"] == sum(len(line.split()) for line in LINES * 2)


@pytest.mark.parametrize("options", [[], ["--posterior"]])
def test_scores_are_the_librarys(capsys, tagged, run, options):
    (found,) = records(done(capsys, "tag", run, tagged, "--no-bos", "--json", *options))
    model, tokenizer, sentences = load_model(run).eval(), load_tokenizer(run), read_tagged(tagged)
    states = decode_sentences(model, tokenizer, sentences, posterior=bool(options), quiet=True)
    flat = [state for path in states for state in path]
    tags = [tag for sentence in sentences for tag in sentence.tags]
    assert found == vars(tagging_scores(flat, tags))
    shown = done(capsys, "tag", run, tagged, "--no-bos", *options)
    assert f"{found['many_to_one']:.4f}" in shown
    told = records(done(capsys, "tag", run, tagged, "--no-bos", "--tokens", "--json", *options))
    assert [line["states"] for line in told] == states
    guesses = [guess for line in told for guess in line["stands_for"]]
    assert np.mean([guess == tag for guess, tag in zip(guesses, tags, strict=True)]) == found["many_to_one"]


def test_words_without_tags_are_tagged(capsys, tagger, place, tmp_path):
    (tmp_path / "words.tsv").write_text("the\ncat\nsaw\n\none\nbone\n")
    names = place / "untagged" / "tags.txt"
    out = done(capsys, "tag", tagger, tmp_path / "words.tsv", "--column", 0, "--names", names, "--tokens")
    assert [row[:2] + row[3:] for row in rows(out)] == [
        ["1", "the", "D", ""],
        ["1", "cat", "N", ""],
        ["1", "saw", "V", ""],
        ["2", "one", "D", ""],
        ["2", "bone", "N", ""],
    ]


def test_accuracy_is_the_librarys(capsys, tagged, tagger, tmp_path):
    (tmp_path / "tags.txt").write_text("D\nN\nN\nX\n")  # two states of one tag
    (found,) = records(done(capsys, "tag", tagger, tagged, "--names", tmp_path / "tags.txt", "--json"))
    told = records(done(capsys, "tag", tagger, tagged, "--tokens", "--json"))
    flat = [[value for line in told for value in line[name]] for name in ("states", "tags")]
    assert found["accuracy"] == accuracy(*flat, ["D", "N", "N", "X"])
    assert 0 < found["accuracy"] < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tag", "RUN", "TAGGED", "--column", 0], "without tags there is nothing to score"),
        (["tag", "RUN", "TAGGED", "--column", 3], "line 1 has no column 3"),
        (["tag", "RUN", "TAGGED", "--column", 1], "cannot hold both words and tags"),
        (["tag", "RUN", "TAGGED", "--names", "NAMES"], "names 4 states, but the model has 8: give its own"),
        (["tag", "RUN", "none.tsv"], "There is no file none.tsv"),
        (["untag", "TAGGED", "OUT", "--labelled", "99"], "99 of 54 sentences cannot be labelled"),
        (["untag", "TAGGED", "OUT", "--labelled", "0", "--only"], "leaves no sentence"),
        (["untag", "TAGGED", "PLACE"], "holds other files, which would be lost"),
        (["train", "TEXT", "training.init=counts"], "training.init=counts counts labels: give data.labels"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(capsys, run, place, tagged, tmp_path, arguments, said):
    names = {"RUN": run, "TAGGED": tagged, "OUT": tmp_path / "out", "PLACE": place, "TEXT": place / "train.txt",
             "NAMES": tmp_path / "tags.txt"}  # fmt: skip
    (tmp_path / "tags.txt").write_text("D\nN\nV\n<eos>\n")
    more = [f"out={tmp_path / 'run'}"] if arguments[0] == "train" else []
    code, _, err = call(capsys, *(names.get(argument, argument) for argument in arguments), *more)
    assert (code, err.count("error:")) == (2, 1)
    assert said in err
    assert not (tmp_path / "out").exists()
