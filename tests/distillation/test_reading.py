"""The state at each token is the teacher's after reading the window up to that token, one token at a time."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.distillation.reading import ROWS, Reader, same_tokens
from trellis.distillation.teachers import find_teacher
from trellis.errors import TrellisError
from trellis.text import SubwordTokenizer, WordTokenizer

from .makers import DOCUMENTS


@pytest.fixture(scope="module")
def teacher(llama):
    return find_teacher(str(llama), 0).open(-1)


def everything(reader, windows=None):
    """All positions and states, in the order of the text."""
    parts = list(reader.states(range(reader.windows) if windows is None else windows))
    position = np.concatenate([part for part, _ in parts])
    return position, torch.cat([states for _, states in parts])


def slow_states(teacher, ids, window):
    """Each token's state by reading its window up to it and no further."""
    found = []
    for place in range(len(ids)):
        first = place // window * window
        begin = [] if teacher.begin is None else [teacher.begin]
        read = torch.tensor([[*begin, *(int(word) for word in ids[first : place + 1])]])
        found.append(teacher.states(read)[0, -1])
    return torch.stack(found)


@pytest.mark.parametrize("begin", [0, None])
def test_states_at_tokens(teacher, text, bpe, begin):
    teacher = dataclasses.replace(teacher, begin=begin)
    ids = text.ids[:150]  # two windows and a shorter one
    position, states = everything(Reader(teacher, ids, bpe))
    assert position.tolist() == list(range(150))
    torch.testing.assert_close(states, slow_states(teacher, ids, 64), rtol=1e-4, atol=1e-5)


def test_some_windows_alone_and_more_than_a_batch(teacher, text, bpe):
    reader = Reader(teacher, np.tile(text.ids, 3), bpe)
    assert reader.windows > ROWS
    _, whole = everything(reader)
    position, states = everything(reader, np.array([2, ROWS + 1]))
    assert position.tolist() == [*range(128, 192), *range(64 * (ROWS + 1), 64 * (ROWS + 2))]
    torch.testing.assert_close(states, whole[torch.from_numpy(position)], rtol=1e-4, atol=1e-5)


def test_a_teacher_that_reads_less_has_shorter_windows(teacher, text, bpe):
    reader = Reader(dataclasses.replace(teacher, longest=20), text.ids[:50], bpe)
    assert reader.window == 19
    _, states = everything(reader)
    torch.testing.assert_close(states, slow_states(teacher, text.ids[:50], 19), rtol=1e-4, atol=1e-5)


def slow_word_states(teacher, words, ids, window=64):
    """Spell each window word by word, pieces of a word found by encoding it with its space."""
    theirs, found = teacher.tokenizer, []
    for start in range(0, len(ids), window):
        read, fresh = [teacher.begin], True
        for number in ids[start : start + window]:
            word = words.token(int(number))
            if word == "<eos>":
                read.append(theirs.eos_id)
            else:
                read += theirs.encode(word if fresh else f" {word}")
            fresh = word == "<eos>"
            found.append(teacher.states(torch.tensor([read]))[0, -1])
    return torch.stack(found)


def test_words_have_the_state_at_their_last_piece(teacher, word_text, words):
    teacher = dataclasses.replace(teacher, longest=None)
    ids = word_text.ids[:150]
    assert words.unk_id in ids
    position, states = everything(Reader(teacher, ids, words))
    assert position.tolist() == list(range(150))
    torch.testing.assert_close(states, slow_word_states(teacher, words, ids), rtol=1e-4, atol=1e-5)


def test_windows_of_too_many_pieces_are_halved(teacher, word_text, words):
    ids = word_text.ids[:64]
    assert len(teacher.tokenizer.encode(words.decode(ids[:-1]))) > 40
    position, states = everything(Reader(dataclasses.replace(teacher, longest=41), ids, words))
    assert position.tolist() == list(range(64 if len(ids) >= 64 else len(ids)))
    first, *_ = everything(Reader(dataclasses.replace(teacher, longest=None), ids[:4], words))[1]
    torch.testing.assert_close(states[0], first, rtol=1e-4, atol=1e-5)


def test_a_word_longer_than_the_teacher_reads_ends_with_its_last_pieces(teacher, words):
    long = WordTokenizer([*words.words, "qxzvbnm" * 9])
    ids = np.array([long.vocab_size - 1])
    _, states = everything(Reader(dataclasses.replace(teacher, longest=9), ids, long))
    pieces = teacher.tokenizer.encode("qxzvbnm" * 9)
    torch.testing.assert_close(states[0], teacher.states(torch.tensor([[0, *pieces[-8:]]]))[0, -1])


def test_unknown_words_are_spelt_as_the_teachers_unknown(teacher, words):
    ids = np.array([words.unk_id, words.unk_id])
    theirs = teacher.tokenizer
    _, literal = everything(Reader(teacher, ids[:1], words))
    torch.testing.assert_close(literal[0], teacher.states(torch.tensor([[0, *theirs.encode("<unk>")]]))[0, -1])
    token = theirs.token(260)
    known = dataclasses.replace(teacher, tokenizer=SubwordTokenizer(theirs._tokenizer, "<eos>", token))
    _, states = everything(Reader(known, ids[:1], words))
    torch.testing.assert_close(states[0], teacher.states(torch.tensor([[0, *theirs.encode(token)]]))[0, -1])


def test_the_same_tokens_are_the_same_ids(teacher, bpe, words):
    assert same_tokens(teacher, bpe)
    assert not same_tokens(teacher, SubwordTokenizer.train_bpe([line[::-1] for line in DOCUMENTS], 300))
    assert not same_tokens(teacher, words)
    assert not same_tokens(dataclasses.replace(teacher, vocab_size=299), bpe)
    shape = dataclasses.replace(teacher, tokenizer=None)
    assert same_tokens(shape, bpe)
    assert not same_tokens(shape, words)


def test_a_teacher_with_further_pieces_cuts_words_otherwise(teacher, bpe):
    fewer = SubwordTokenizer.train_bpe(DOCUMENTS, 290)  # the same merges, but not the last ten
    assert [fewer.token(number) for number in range(290)] == [bpe.token(number) for number in range(290)]
    assert fewer.encode(DOCUMENTS[-1]) != bpe.encode(DOCUMENTS[-1])
    assert not same_tokens(teacher, fewer)
    with pytest.raises(TrellisError, match=r"has another vocabulary: set data\.tokenizer to the teacher's folder"):
        Reader(teacher, np.array(fewer.encode(DOCUMENTS[-1])), fewer)


def test_a_teacher_may_have_tokens_added_to_its_pieces_and_ids_without_a_token(teacher, bpe):
    described = bpe.description()
    special = described["added_tokens"][0]
    assert special["special"]
    further = [special | {"id": 300, "content": "<pad>"}, special | {"id": 301, "content": "user", "special": False}]
    described["added_tokens"] += further
    padded = SubwordTokenizer(HuggingFaceTokenizer.from_str(json.dumps(described)), "<eos>")
    assert padded.vocab_size == 302
    more = dataclasses.replace(teacher, vocab_size=320, tokenizer=padded)  # whose table is padded further
    assert same_tokens(more, bpe)
    assert same_tokens(more, padded)
    assert not same_tokens(teacher, padded)


def test_a_teacher_may_know_more_words(teacher, words):
    more = dataclasses.replace(teacher, tokenizer=WordTokenizer([*words.words, "another"]))
    assert same_tokens(more, words)


def test_another_vocabulary_is_refused(teacher, text, words):
    other = SubwordTokenizer.train_bpe(["completely different things, truly", *DOCUMENTS[:3]], 300)
    for theirs in (teacher, dataclasses.replace(teacher, tokenizer=words)):
        with pytest.raises(TrellisError, match="has another vocabulary"):
            Reader(theirs, text.ids, other)
