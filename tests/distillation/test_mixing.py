"""A run's own text and a teacher's as one."""

import numpy as np
import pytest

from trellis.distillation.mixing import mixed, with_sampled
from trellis.distillation.settings import SampledSettings
from trellis.errors import TrellisError
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.text import IdFile

from .makers import DOCUMENTS


def documents(text):
    return [document.tolist() for document in np.split(np.asarray(text.ids), np.asarray(text.documents)[:-1])]


@pytest.fixture
def teacher(words, tmp_path):
    LSTM(LSTMConfig(words.vocab_size, width=8, layers=1), seed=0).save_pretrained(tmp_path / "lstm", words)
    return str(tmp_path / "lstm")


def test_copies_of_the_text_stand_before_the_teachers(word_text, words, teacher, own_cache):
    told = SampledSettings(teacher=teacher, tokens=300, copies=3)
    text = with_sampled(word_text, words, told, quiet=True)
    own = documents(word_text)
    assert documents(text)[: 3 * len(DOCUMENTS)] == own * 3
    drawn = documents(text)[3 * len(DOCUMENTS) :]
    assert sum(map(len, drawn)) >= 300
    assert all(document[-1] == words.eos_id for document in drawn)
    assert text.meta.tokens == 3 * len(word_text) + sum(map(len, drawn)) == len(text.ids)
    assert text.meta.words == 3 * word_text.meta.words + sum(map(len, drawn))
    unknown = sum(document.count(words.unk_id) for document in drawn)
    assert text.meta.unknown == 3 * word_text.meta.unknown + unknown


def test_what_was_made_is_found_and_other_settings_are_another_text(word_text, words, teacher, own_cache):
    def made(**changes):
        told = SampledSettings(**({"teacher": teacher, "tokens": 300, "copies": 2} | changes))
        return with_sampled(word_text, words, told, quiet=True)

    first = made()
    assert made().folder == first.folder
    others = [made(copies=1), made(tokens=2000), made(seed=1)]
    assert len({first.meta.content_hash, *(one.meta.content_hash for one in others)}) == 4


def test_a_damaged_text_is_made_anew(word_text, own_cache):
    text = mixed(word_text, word_text, 1)
    ids = (text.folder / "ids.bin").read_bytes()
    (text.folder / "ids.bin").write_bytes(ids[:-2])
    assert IdFile.found(text.folder) is None
    assert (mixed(word_text, word_text, 1).folder / "ids.bin").read_bytes() == ids


def test_a_teacher_of_other_words_is_refused(text, bpe, teacher, own_cache):
    with pytest.raises(TrellisError, match="has other words than this run"):
        with_sampled(text, bpe, SampledSettings(teacher=teacher, tokens=300), quiet=True)


@pytest.mark.parametrize("changes", [{"tokens": 0}, {"copies": 0}, {"seed": -1}])
def test_numbers_that_mean_nothing_are_refused(changes):
    with pytest.raises(TrellisError, match=f"sampled.{next(iter(changes))} "):
        SampledSettings(**changes)
