"""Which states emit which words: from a text, a file or chance; and which of them take part in a batch."""

import pytest
import torch

from trellis import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.supports import Support, any_support, partition, shortened, support_of, uniform_subsets
from trellis.text import MemoryCorpus, WordTokenizer, prepare

from .makers import BLOCKS, DENSE, FLAT, STATES, VOCABULARY, make_kind, random_ids

LOW_RANK = FLAT["residual"]


@pytest.fixture
def text():
    words = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d"])
    return prepare(MemoryCorpus("little", ["a b c d a", "b c a d d", "c c a b"] * 5), words), words


def test_blocks_are_equal_and_one_after_the_other():
    support = partition(torch.tensor([1, 0, 1]), 6, 2)
    assert support.states_MK.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert support.lists().tolist() == [[3, 4, 5], [0, 1, 2], [3, 4, 5]]


def test_blocks_come_from_the_text_or_from_a_file(text, tmp_path):
    ids, words = text
    model = HMM.for_text(HMMConfig(6, 8, "brown", 4), ids, words, seed=0)
    assert sorted(set(model.block_V.tolist())) == [0, 1, 2, 3]
    path = tmp_path / "paths"
    path.write_text("".join(f"{bits}\t{words.token(word)}\t1\n" for word, bits in enumerate("001010")))
    config = HMMConfig(6, 8, str(path), 2)
    assert HMM.for_text(config, ids, words, seed=0).block_V.tolist() == [0, 0, 1, 0, 1, 0]
    with pytest.raises(TrellisError, match="neither dense, brown, words, uniform nor a file that is there: 'bronw'"):
        HMM.for_text(HMMConfig(6, 8, "bronw", 4), ids, words, seed=0)
    with pytest.raises(TrellisError, match=r"set model\.blocks=2"):
        HMM.for_text(HMMConfig(6, 8, str(path), 4), ids, words, seed=0)


def test_a_file_that_misses_words_stops_or_puts_them_where_asked(text, tmp_path):
    ids, words = text
    path = tmp_path / "paths"
    path.write_text("0\t<unk>\t1\n0\t<eos>\t1\n1\ta\t1\n")
    config = {"states": 8, "blocks": 2, "support": str(path)}
    with pytest.raises(TrellisError, match="no cluster for 3 of the vocabulary's 6 words"):
        HMM.for_text(HMMConfig(6, **config), ids, words, seed=0)
    model = HMM.for_text(HMMConfig(6, **config, unclustered="a"), ids, words, seed=0)
    assert model.block_V.tolist() == [0, 0, 1, 1, 1, 1]
    with pytest.raises(TrellisError, match="no cluster for 'z' either"):
        HMM.for_text(HMMConfig(6, **config, unclustered="z"), ids, words, seed=0)


def test_one_block_of_all_words_needs_no_clusters(text):
    assert support_of(HMMConfig(6, 8, "brown", 1), *text, seed=0).block_V.tolist() == [0] * 6


def test_a_dense_model_has_no_support(text):
    assert support_of(HMMConfig(6, 8), *text, seed=0) is None
    assert HMM.for_text(HMMConfig(6, 8), *text, seed=0).support is None
    assert make_kind(**DENSE["dense scalar"]).block_size == STATES


def test_a_state_in_no_subset_is_refused(text):
    config = HMMConfig(6, 40, "uniform", 5, width=6, **LOW_RANK)
    with pytest.raises(TrellisError, match="of the 40 states are in no word's block"):
        HMM.for_text(config, *text, seed=0)


def test_uniform_subsets_have_their_size_and_no_state_twice():
    support = uniform_subsets(50, 40, 7, seed=1)
    assert isinstance(support, Support)
    assert support.states_MK.shape == (50, 7)
    assert (support.states_MK.diff(dim=1) > 0).all()
    assert not torch.equal(support.states_MK[0], support.states_MK[1])
    assert torch.equal(support.states_MK, uniform_subsets(50, 40, 7, seed=1).states_MK)
    assert not torch.equal(support.states_MK, uniform_subsets(50, 40, 7, seed=2).states_MK)


def test_words_cannot_share_a_number_of_states_they_do_not_divide():
    with pytest.raises(TrellisError, match="such as 22"):
        HMM(HMMConfig(VOCABULARY, 25, "words", 1))


def test_one_block_a_word_has_no_use_for_a_number_of_blocks():
    config = HMMConfig(VOCABULARY, 2 * VOCABULARY, "words", 128, width=6, **LOW_RANK)
    assert HMM(config).states_MK.shape == (VOCABULARY, 2)
    with pytest.raises(TrellisError, match="would leave no state of the 1 in a block"):
        HMM(HMMConfig(VOCABULARY, VOCABULARY, "words", width=6, dropout=0.6))


def test_a_support_that_is_not_known_yet_has_its_shape():
    support = any_support(HMMConfig(VOCABULARY, STATES, "brown", BLOCKS))
    assert support.block_V.tolist() == [0] * VOCABULARY
    assert support.states_MK.shape == (BLOCKS, STATES // BLOCKS)
    assert any_support(HMMConfig(VOCABULARY, STATES, "uniform", BLOCKS)).states_MK.shape == (VOCABULARY, 8)


@pytest.mark.parametrize("kind", [{}, DENSE["dense residual"]], ids=["blocks", "dense"])
def test_evaluation_uses_every_state_and_training_another_choice_each_batch(kind):
    model, ids = make_kind(**kind, dropout=0.5), random_ids(2, 6, VOCABULARY)
    model.train()
    assert not torch.equal(model.score(ids)[0], model.score(ids)[0])
    model.eval()
    assert torch.equal(model.score(ids)[0], model.score(ids)[0])


def test_as_many_states_of_every_block_take_part():
    taking_part = make_kind(dropout=0.5).taking_part()
    assert taking_part.states_MJ.shape == (BLOCKS, 4)
    assert (taking_part.states_MJ // 8 == torch.arange(BLOCKS)[:, None]).all()
    assert (taking_part.states_MJ.diff(dim=1) > 0).all()
    assert torch.equal(taking_part.all_S, taking_part.states_MJ.flatten())
    assert taking_part.alive_S is None
    taking_part = make_kind(**DENSE["dense residual"], dropout=0.25).taking_part()
    assert taking_part.states_MJ.shape == (1, 18)
    assert (taking_part.all_S.diff() > 0).all()


@pytest.mark.parametrize("kind", [{}, DENSE["dense residual"], LOW_RANK | {"support": "uniform"}])
def test_all_states_take_part_in_use_without_dropout_and_where_states_are_given(kind):
    for model, labelled in (
        (make_kind(**kind, dropout=0.5).eval(), False),
        (make_kind(**kind), False),
        (make_kind(**kind, dropout=0.5), True),
    ):
        assert model.taking_part(labelled=labelled).all_S.tolist() == list(range(STATES))


def test_every_state_is_dropped_now_and_then():
    model, count = make_kind(**DENSE["dense residual"], dropout=0.5), torch.zeros(STATES)
    torch.manual_seed(0)
    for _ in range(400):
        count[model.taking_part().all_S] += 1
    assert ((count / 400 - 0.5).abs() < 0.15).all()


def test_a_word_of_overlapping_blocks_keeps_a_state():
    """Whatever dropout draws; the states that it keeps for others stay as many."""
    config = HMMConfig(VOCABULARY, STATES, "uniform", BLOCKS, width=6, dropout=0.9, **LOW_RANK)
    model = HMM(config, seed=1, support=uniform_subsets(VOCABULARY, STATES, 1, seed=3))
    for seed in range(20):
        torch.manual_seed(seed)
        kept = model.taking_part()
        assert kept.alive_S[model.states_MK].any(1).all()
        assert torch.equal(kept.alive_S.nonzero().flatten(), kept.all_S)
        assert config.kept(STATES) <= len(kept.all_S) <= config.kept(STATES) + VOCABULARY
        assert torch.isfinite(model.score(torch.arange(VOCABULARY)[None])[0]).all()


def test_lists_are_cut_to_the_states_alive():
    states = torch.arange(80).view(2, 40)
    alive = torch.zeros(2, 40, dtype=torch.bool)
    alive[0, [3, 7, 39]] = alive[1, 5:25] = True
    cut, living = shortened(states, alive)
    assert cut.shape == living.shape == (2, 32)  # of the longest, 20, the next multiple of 16
    assert cut[0].tolist() == [3, 7, 39] + [3] * 29
    assert living[0].tolist() == [True] * 3 + [False] * 29
    assert cut[1, :20].tolist() == list(range(45, 65))
    assert living[1].sum() == 20
