import gc
import random

import numpy as np
import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models

from trellis.constraints import contains, length
from trellis.constraints.spelling import spelling_of, spelt
from trellis.errors import TrellisError
from trellis.text import ByteTokenizer, CharacterTokenizer, IntegerTokenizer, SubwordTokenizer

from .texts import trained


def agrees(tokenizer, examples=400):
    """Whether spellings, joined, are what `decode` writes, for all tokens alone and for rows of any."""
    within, first = spelt(tokenizer)
    ids = [id for id, spelling in enumerate(within) if spelling is not None]
    choose = random.Random(1)
    rows = [[id] for id in ids] + [choose.choices(ids, k=choose.randint(2, 5)) for _ in range(examples)]
    for row in rows:
        written = first[row[0]] + b"".join(within[id] for id in row[1:])
        if b"\xef\xbf\xbd" not in written and "�" not in (text := written.decode(errors="replace")):
            assert tokenizer.decode(row) == text, row
    return len(ids)


def test_words_and_numbers(words):
    assert spelt(words)[0] == [b" <unk>", None, b" the", b" big", b" dog", b" dogs"]
    assert spelt(words)[1] == [b"<unk>", None, b"the", b"big", b"dog", b"dogs"]
    assert agrees(words) == 5
    assert agrees(IntegerTokenizer(12)) == 12
    assert spelling_of(IntegerTokenizer(12)).allowed_V.all()


def test_characters_bytes_and_byte_level_subwords():
    characters, raw, subwords = trained()
    assert agrees(characters) == characters.vocab_size - 2
    assert agrees(raw) == 256
    assert agrees(subwords) == subwords.vocab_size - 1
    assert spelt(raw)[0][10] == b"\n"
    assert spelt(subwords)[0][subwords.id("Ġ")] == b" "
    assert [spelt(characters)[0][id] for id in (0, 1)] == [None, None]


def test_half_a_surrogate_pair_is_never_written():
    within, _ = spelt(CharacterTokenizer(["<unk>", "<eos>", "a", "\ud800"]))
    assert within == [None, None, b"a", None]


def test_llama(llama):
    assert agrees(llama, 3_000) == 31_997
    within, first = spelt(llama)
    assert within[:3] == [None, None, None]
    assert within[llama.id("<0x0A>")] == b"\n"
    assert (within[llama.id("▁the")], first[llama.id("▁the")]) == (b" the", b"the")
    assert (within[llama.id("<0x20>")], first[llama.id("<0x20>")]) == (b" ", b"")


def subwords(tokens, decoder, special=()):
    tokenizer = HuggingFaceTokenizer(models.WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="?"))
    tokenizer.add_special_tokens(list(special))
    if decoder is not None:
        tokenizer.decoder = decoder
    return SubwordTokenizer(tokenizer)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.ByteLevel(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    ],
)
def test_other_decoders(decoder):
    tokens = ["▁the", "▁", "s", "▁▁x", "<pad>", "<0x41>", "日", "Ġa", "a▁b"]
    if decoder is None or "Byte" in str(type(decoder)):
        tokens = ["the", "Ġ", "s", "<pad>", "日", "Ġa"]
    tokenizer = subwords(tokens, decoder, ["<pad>"])
    assert agrees(tokenizer) == len(tokens) - 1
    assert spelt(tokenizer)[0][tokenizer.id("<pad>")] is None


def test_ids_that_a_vocabulary_skips_are_never_written():
    tokenizer = SubwordTokenizer(HuggingFaceTokenizer(models.WordLevel({"a": 0, "b": 3}, unk_token="?")))
    assert spelt(tokenizer)[1] == [b"a", None, None, b"b"]


def test_decoders_that_are_not_known_are_refused():
    tokenizer = subwords(["the", "##re"], decoders.WordPiece())
    with pytest.raises(TrellisError, match=r"decoder WordPiece.* is not known"):
        contains("the").automaton(tokenizer)


def test_spellings_are_made_once_and_go_with_their_tokenizer():
    tokenizer = ByteTokenizer()
    assert spelling_of(tokenizer) is spelling_of(tokenizer)
    assert np.array_equal(spelling_of(tokenizer).allowed_V, np.arange(257) != 256)
    assert length(1).automaton(tokenizer) is not length(1).automaton(tokenizer)
    kept = spelling_of(tokenizer)
    del tokenizer
    gc.collect()
    with pytest.raises(AssertionError):
        _ = kept.tokenizer
