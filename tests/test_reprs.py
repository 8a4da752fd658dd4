"""What a notebook shows of a result fits on a line, and begins with what people look for."""

from pathlib import Path

import pytest
import torch

from trellis import HMM, HMMConfig, open_corpus
from trellis.evaluation import Evaluation
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.models.supports import partition
from trellis.text import MemoryCorpus, WordTokenizer, prepare
from trellis.text.characters import ByteTokenizer, CharacterTokenizer
from trellis.text.hub import HubCorpus
from trellis.text.integers import IntegerTokenizer
from trellis.text.subwords import SubwordTokenizer
from trellis.training.loop import Trained

LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4}
WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b"])


def test_corpora(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    assert repr(open_corpus(tmp_path / "a.txt")) == "FileCorpus('a.txt', 1 file)"
    assert repr(MemoryCorpus("x", ("a b",) * 1200)) == "MemoryCorpus('x', 1,200 documents)"
    assert repr(HubCorpus("wikitext-103", "train", "remedy")) == "HubCorpus('wikitext-103', 'train')"
    assert len(repr(open_corpus("pydocs"))) < 80


def test_ids(tmp_path):
    ids = prepare(MemoryCorpus("x", ("a b", "a")), WORDS, tmp_path)
    assert repr(ids) == "IdFile('x', 5 tokens in 2 documents, vocabulary of 4)"


def test_tokenizers():
    assert repr(WORDS) == "WordTokenizer(4 words)"
    assert repr(SubwordTokenizer.train_bpe(["a b"], 257)) == "SubwordTokenizer(257 tokens)"
    assert repr(CharacterTokenizer.train(["ab"])) == "CharacterTokenizer(4 characters)"
    assert repr(ByteTokenizer()) == "ByteTokenizer()"
    assert repr(IntegerTokenizer(7)) == "IntegerTokenizer(7 symbols)"


def test_an_evaluation_says_its_perplexity_first():
    found = Evaluation("one stream", nats=1500 * 5.0, tokens=1500, unknown=30, words=1500, bytes=9000)
    assert repr(found) == "Evaluation(perplexity=148.41, one stream, 1,500 tokens, 2.00% unknown)"
    shown = found._repr_html_()
    assert shown.startswith("<table>")
    assert "148.41 a token" in shown
    assert "one stream" in shown


def test_a_finished_run():
    run = Trained(Path("runs/<x>/best"), 99.5, 455.25, "stream", 1_200_000, 60.0, 5.0)
    assert repr(run) == (
        "Trained(perplexity 99.50, unigram 455.25, protocol stream, tokens 1.2M, time 1m05s, best runs/<x>/best)"
    )
    assert "<td>99.50</td>" in run._repr_html_()
    assert "runs/&lt;x&gt;/best" in run._repr_html_()  # no name is markup
    unmeasured = Trained(Path("b"), None, None, "stream", 10, 1.0, 0.0)
    assert repr(unmeasured) == "Trained(tokens 10, time 1s, best b)"


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (lambda: HMM(HMMConfig(5, 4)), "HMM(4 states, scalar, 5 words, 40 parameters)"),
        (
            lambda: HMM(HMMConfig(5, 4, memory=1, **LOW_RANK)),
            "HMM(4 states, low_rank, table vectors of 4, memory of 1 word, 5 words, 92 parameters)",
        ),
        (
            lambda: HMM(
                HMMConfig(5, 4, support="brown", blocks=2, **(LOW_RANK | {"transition": "hierarchical"})),
                support=partition(torch.tensor([0, 1, 0, 1, 0]), 4, 2),
            ),
            "HMM(4 states, brown blocks of 2 states, low_rank start, hierarchical transition, low_rank emission, "
            "table vectors of 4, 5 words, ",
        ),
    ],
)
def test_models(model, shown):
    found = repr(model())
    assert found.startswith(shown)
    assert found.endswith(" parameters)")
    assert "\n" not in found


def test_other_kinds_of_model():
    found = repr(LSTM(LSTMConfig(5, width=4, layers=1)))
    assert found.startswith("LSTM(5 words, ")
    assert found.endswith(" parameters)")


def test_answers_show_few_numbers_and_the_shapes_of_many():
    model = HMM(HMMConfig(5, 9)).eval()
    few, many = torch.tensor([[1, 2]]), torch.zeros(40, 30, dtype=torch.int64)
    assert repr(model.viterbi(few)).startswith("Paths(log_prob_B=tensor([")
    assert repr(model.viterbi(many)) == "Paths(log_prob_B=40 float32, states_BT=40×30 int64)"
    assert repr(model.k_best(many, 2)) == "KBest(log_prob_BK=40×2 float32, states_BKT=40×2×30 int64)"
    for found in (model.smooth(many), model.filter(many), model.sample(40, 30), model.expected_counts(many)):
        assert len(repr(found)) < 300
        assert "\n" not in repr(found)
    assert repr(model.tables()).startswith("Tables(start_S=tensor([")
