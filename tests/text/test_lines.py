import torch

from trellis.text import WordTokenizer
from trellis.text.lines import read_lines, tensors

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])


def test_lines_are_numbered_and_their_gaps_and_unknown_words_counted():
    first, second = read_lines(["a x b", "<mask> c <mask>"], WORDS, eos=True)
    assert (first.number, first.text, first.ids, first.unknown, first.tokens) == (1, "a x b", [2, 0, 3, 1], 1, 4)
    assert not any(first.missing)
    assert (second.number, second.missing, second.unknown, second.tokens) == (2, [True, False, True, False], 0, 2)
    assert second.spelling(WORDS) == ["<mask>", "c", "<mask>", "<eos>"]


def test_the_end_of_a_line_is_a_token_only_if_asked_for():
    (line,) = read_lines(["a"], WORDS, eos=False)
    assert line.ids == [2]


def test_rows_are_padded_and_gaps_marked():
    ids_BT, lengths_B, missing_BT = tensors(list(read_lines(["a b", "<mask>"], WORDS, eos=False)), torch.device("cpu"))
    assert lengths_B.tolist() == [2, 1]
    assert ids_BT[0].tolist() == [2, 3]
    assert torch.equal(missing_BT, torch.tensor([[False, False], [True, False]]))
    assert tensors(list(read_lines(["a b"], WORDS, eos=False)), torch.device("cpu"))[2] is None
