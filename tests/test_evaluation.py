import math

import numpy as np
import pytest
import torch

from trellis.errors import TrellisError
from trellis.evaluation import Evaluation, evaluate
from trellis.models import HMM, Bigram, HMMConfig, Unigram
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.text import MemoryCorpus, WordTokenizer, prepare

from . import reference

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "never"])
NEVER = WORDS.id("never")
PROTOCOLS = ("stream", "streams", "windows", "sequences")
TOKENS = 1100  # more than a chunk of a stream, more than 16 × 32, and 17 windows and a bit


def prepared(words, tmp_path):
    """An id file of exactly these words, as one document; its end is one token more."""
    return prepare(MemoryCorpus("text", (" ".join(words),)), WORDS, tmp_path / "cache")


def some_words(count, seed=0):
    return np.random.default_rng(seed).choice(["a", "b", "c", "zebra"], size=count, p=[0.5, 0.3, 0.15, 0.05]).tolist()


def model_of():
    """A float64 model of three states, for which the word "never" has probability zero everywhere."""
    model = HMM(HMMConfig(WORDS.vocab_size, 3), seed=0).double()
    start, transition, emission = (table.double() for table in model.tables())
    emission[:, NEVER] = 0.0
    model.set_tables(start, transition, emission / emission.sum(1, keepdim=True))
    return model


def pieces(protocol, count):
    """Where each independent piece of the text begins and ends."""
    if protocol == "sequences":
        return [(0, count)]  # one document
    if protocol == "windows":
        return [(begin, min(begin + 64, count)) for begin in range(0, count, 64)]
    rows = 1 if protocol == "stream" else min(16, count)
    sizes = [count // rows + (row < count % rows) for row in range(rows)]
    ends = np.cumsum(sizes).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def by_hand(model, ids, protocol):
    start, transition, emission = (table.log() for table in model.tables())
    ids = torch.from_numpy(np.asarray(ids, dtype=np.int64))
    return -sum(
        float(reference.log_likelihood(start, transition, emission.T[ids[begin:end]]))
        for begin, end in pieces(protocol, len(ids))
    )


@pytest.mark.parametrize("count", [TOKENS, 130, 40, 9, 0])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nats_are_those_of_the_pieces_one_by_one(protocol, count, tmp_path):
    model, file = model_of(), prepared(some_words(count), tmp_path)
    found = evaluate(model, file, protocol)
    assert found.nats == pytest.approx(by_hand(model, file.ids, protocol), rel=1e-12)
    assert found.tokens == len(file) == count + 1
    assert found.perplexity == pytest.approx(math.exp(found.nats / (count + 1)))
    assert found.impossible_at is None


def test_the_protocols_differ_and_say_their_names(tmp_path):
    model, file = model_of(), prepared(some_words(TOKENS), tmp_path)
    found = [evaluate(model, file, protocol) for protocol in PROTOCOLS]
    names = ["one stream", "16 streams", "windows of 64 tokens", "every document from its start"]
    assert [one.protocol for one in found] == names
    assert len({round(one.nats, 6) for one in found}) == 3
    with pytest.raises(TrellisError, match=r"unknown protocol 'window': did you mean 'windows'\?"):
        evaluate(model, file, "window")


def test_what_it_was_divided_by(tmp_path):
    texts = ("a b zebra", "", "c é")
    file = prepare(MemoryCorpus("text", texts), WORDS, tmp_path)
    found = evaluate(model_of(), file)
    assert (found.tokens, found.words, found.bytes, found.unknown) == (8, 8, len("a b zebra\n\nc é\n".encode()), 2)
    assert found.unknown_rate == 2 / 8
    assert found.bits_per_byte == pytest.approx(found.nats / math.log(2) / 16)
    assert found.word_perplexity == pytest.approx(math.exp(found.nats / 8))


def test_figures_by_hand():
    found = Evaluation("p", nats=math.log(2) * 12, tokens=4, unknown=1, words=3, bytes=6)
    assert found.perplexity == pytest.approx(8)
    assert found.word_perplexity == pytest.approx(16)
    assert found.bits_per_byte == pytest.approx(2)
    assert found.as_dict() == {
        "protocol": "p",
        "perplexity": found.perplexity,
        "nats": found.nats,
        "tokens": 4,
        "unknown_rate": 0.25,
        "bits_per_byte": found.bits_per_byte,
        "word_perplexity": found.word_perplexity,
        "impossible_at": None,
    }
    assert Evaluation("p", nats=math.inf, tokens=4, unknown=1, words=3, bytes=6).perplexity == math.inf
    assert Evaluation("p", nats=1e5, tokens=4, unknown=1, words=3, bytes=6).perplexity == math.inf  # no overflow


# Streams of 1101 tokens: rows of 69 (13 of them) and 68. The last pair is the trap: the earlier word in the text is met
# in a later batch.
@pytest.mark.parametrize(
    "places",
    [[0], [1099], [63], [64], [517], [13 * 69], [13 * 69 + 68], [1023], [1024], [300, 700], [5 * 69 + 60, 900]],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_first_impossible_token_is_found_in_the_text(protocol, places, tmp_path):
    words = some_words(TOKENS)
    for place in places:
        words[place] = "never"
    found = evaluate(model_of(), prepared(words, tmp_path), protocol)
    assert found.impossible_at == places[0]
    assert found.nats == found.perplexity == found.bits_per_byte == math.inf


def test_sequences_are_scored_one_by_one_from_the_start(tmp_path):
    words = some_words(300)
    documents = [words[begin : begin + size] for begin, size in ((0, 7), (7, 1), (8, 120), (128, 30), (158, 142))]
    corpus = MemoryCorpus("some", tuple(" ".join(document) for document in documents))
    ids, model = prepare(corpus, WORDS, tmp_path), model_of()
    parts = np.split(np.asarray(ids.ids, dtype=np.int64), ids.documents[:-1])
    with torch.no_grad():
        alone = sum(-float(model.score(torch.from_numpy(part)[None])[0].sum()) for part in parts)
    found = evaluate(model, ids, "sequences")
    assert found.nats == pytest.approx(alone, rel=1e-6)
    assert (found.tokens, found.protocol) == (len(ids), "every document from its start")


def test_any_scorer_will_do(tmp_path):
    file = prepared(some_words(TOKENS), tmp_path)
    model = Bigram.fit(file, WORDS.vocab_size)
    ids = torch.from_numpy(np.asarray(file.ids, dtype=np.int64))
    for protocol in PROTOCOLS:
        truth = -sum(float(model.score(ids[None, a:b])[0].sum()) for a, b in pieces(protocol, len(ids)))
        assert evaluate(model, file, protocol).nats == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_rests_while_measuring_and_the_mode_is_as_it_was(training, tmp_path):
    model, file = LSTM(LSTMConfig(WORDS.vocab_size, width=4), seed=0), prepared(some_words(40), tmp_path)
    exact = evaluate(model.eval(), file).nats
    model.train(training)
    assert evaluate(model, file).nats == exact
    assert model.training is training
    assert model.recurrence.training is training


@pytest.mark.parametrize("text", ["some words", ["some", "words"], None, [[1, 2]]])
def test_only_tokenised_text_is_measured(text):
    with pytest.raises(TrellisError, match=r"not (str|list|NoneType): give prepare\(corpus, tokenizer\)"):
        evaluate(Unigram(torch.zeros(3)), text)
