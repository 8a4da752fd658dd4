"""Text of a model of ours: the documents of streams, cut where they end."""

import numpy as np
import pytest
import torch

from trellis.distillation.drawing import draw_texts, load_speaker
from trellis.distillation.streams import Stream
from trellis.distillation.teachers import find_teacher
from trellis.errors import TrellisError
from trellis.inference.draws import draw_softmax
from trellis.models.lstm import LSTM, LSTMConfig


@pytest.fixture
def teacher(words, tmp_path):
    model = LSTM(LSTMConfig(words.vocab_size, width=8, layers=1), seed=0)
    with torch.no_grad():
        model.words.vectors.mul_(8.0)
    model.save_pretrained(tmp_path / "lstm", words)
    return tmp_path / "lstm"


def drawn(stream, count=6, length=50, seed=0, told=lambda amount: None):
    return draw_texts(stream, count, length, 1.0, torch.Generator().manual_seed(seed), told)


def test_documents_end_where_they_should(teacher, words):
    stream, told = load_speaker(find_teacher(str(teacher), 0)), []
    documents = drawn(stream, told=told.append)
    assert isinstance(stream, Stream)
    assert sum(told) == 6 * 50
    assert len(documents) > 6
    assert all(document[-1] == words.eos_id for document in documents)
    assert not any((document[:-1] == words.eos_id).any() for document in documents)
    assert [document.tolist() for document in drawn(stream)] == [document.tolist() for document in documents]


def test_tokens_are_drawn_given_all_before_them_in_the_stream(teacher, words):
    """The same random numbers and a model that reads each stream from its beginning for every token."""
    stream, generator = load_speaker(find_teacher(str(teacher), 0)), torch.Generator().manual_seed(0)
    ids_BT = torch.full((6, 1), words.eos_id)
    for _ in range(50):
        state = stream.model.score(ids_BT)[1]
        ids_BT = torch.cat([ids_BT, draw_softmax(stream.model.next_token(state), generator)[:, None]], 1)
    rows = ids_BT[:, 1:].tolist()
    ended = [row[: max(place for place, word in enumerate(row) if word == words.eos_id) + 1] for row in rows]
    assert np.concatenate(drawn(stream)).tolist() == [word for row in ended for word in row]


def test_a_stream_without_an_end_is_one_document(teacher, words):
    stream = load_speaker(find_teacher(str(teacher), 0))
    with torch.no_grad():
        stream.model.words.bias[words.eos_id] = -1e9
    assert [len(document) for document in drawn(stream, count=3, length=20)] == [20] * 3


def test_a_folder_without_words_is_refused(teacher):
    for name in ("tokenizer.json", "manifest.json"):
        (teacher / name).unlink()
    with pytest.raises(TrellisError, match="put the one it was trained with beside it"):
        load_speaker(find_teacher(str(teacher), 0))
