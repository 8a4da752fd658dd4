import shutil

import numpy as np
import pytest
import torch

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig, load_model, storage
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.models.pretrained import Pretrained, load_pretrained
from trellis.text import SubwordTokenizer, WordTokenizer, load_tokenizer

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])


@pytest.fixture
def run(tmp_path):
    """A run's folder, with a model that is the best and one in a checkpoint."""
    for seed, name in enumerate(("best", "checkpoint-3")):
        HMM(HMMConfig(WORDS.vocab_size, states=3), seed=seed).save_pretrained(tmp_path / "run" / name, WORDS)
    (tmp_path / "run" / storage.RUN_FILE).write_text("model: {states: 3}\n")
    return tmp_path / "run"


def test_a_model_is_named_by_its_run_a_checkpoint_or_its_own_folder(run):
    ids = torch.tensor([[2, 3, 4, 1]])
    best, other = (HMM.from_pretrained(run / name).score(ids)[0] for name in ("best", "checkpoint-3"))
    assert not torch.equal(best, other)
    for name, truth in ((run, best), (str(run), best), (run / "best", best), (run / "checkpoint-3", other)):
        assert torch.equal(load_model(name).score(ids)[0], truth)
        assert torch.equal(load_pretrained(name).model.score(ids)[0], truth)
        assert torch.equal(HMM.from_pretrained(name).score(ids)[0], truth)
        assert load_tokenizer(name).fingerprint() == WORDS.fingerprint()
    assert load_pretrained(run).folder == run / "best"


def test_every_class_reads_its_own_kind_from_a_run(tmp_path):
    """Also one that is read in a way of its own."""
    counted = KneserNey.fit(KneserNeyConfig(5, order=2), np.arange(40) % 5, quiet=True)
    for model in (counted, LSTM(LSTMConfig(5, width=3), seed=0)):
        folder = tmp_path / model.config.kind
        model.save_pretrained(folder / "best")
        assert type(model).from_pretrained(folder).config == model.config
        with pytest.raises(TrellisError, match=r"holds a model of another kind, .* and not hmm: use load_model"):
            HMM.from_pretrained(folder)


def test_a_tokenizer_of_its_own_beside_a_run_is_the_one_that_was_named(run):
    WordTokenizer(["<unk>", "<eos>", "x", "y"]).save(run)
    assert load_tokenizer(run).vocab_size == 4
    with pytest.raises(TrellisError, match=r"has no tokenizer\.json; name a folder that a tokenizer was saved in"):
        load_tokenizer(run / "checkpoint-4")


@pytest.mark.parametrize("name", [None, 3, torch.nn.Linear(1, 1)])
def test_a_model_is_named_by_a_path(name):
    for load in (load_model, load_pretrained, HMM.from_pretrained):
        with pytest.raises(TrellisError, match=r"a model is named by its folder and not by a .*: give a path"):
            load(name)


def test_where_there_is_no_model(run):
    for load in (load_model, load_pretrained, HMM.from_pretrained):
        with pytest.raises(TrellisError, match="there is no model nowhere: give the folder of a run or of a saved"):
            load("nowhere")
        with pytest.raises(TrellisError, match=r"config\.json"):
            load(run.parent)
        with pytest.raises(TrellisError, match=r"config\.json"):
            load(run / storage.RUN_FILE)
    shutil.rmtree(run / "best")
    for load in (load_model, load_pretrained, HMM.from_pretrained):
        with pytest.raises(TrellisError, match="is a run without a model yet: train it further, or name a checkpoint"):
            load(run)


def test_the_pair_is_ready_for_use(run):
    found = load_pretrained(run)
    assert not found.model.training
    assert found.tokenizer.fingerprint() == WORDS.fingerprint()


def test_a_model_with_somebody_elses_tokenizer_is_refused(run):
    for words in (["<unk>", "<eos>", "x", "y", "z"], ["<unk>", "<eos>", "a", "b", "c", "d"]):
        WordTokenizer(words).save(run / "best")
        with pytest.raises(TrellisError, match=r"tokenizer\.json has changed since it was written: restore it"):
            load_pretrained(run)


def test_a_model_that_does_not_say_its_tokenizer_must_at_least_have_room_for_it(tmp_path):
    HMM(HMMConfig(WORDS.vocab_size, states=3), seed=0).save_pretrained(tmp_path / "model")
    WORDS.save(tmp_path / "model")
    assert load_pretrained(tmp_path / "model").tokenizer.vocab_size == 5
    WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d"]).save(tmp_path / "model")
    with pytest.raises(TrellisError, match="not the one its model was trained with"):
        load_pretrained(tmp_path / "model")


def test_questions_go_to_models_that_answer_them(run):
    found = load_pretrained(run)
    assert found.answering("viterbi", "sample") is found.model
    network = Pretrained(run, LSTM(LSTMConfig(WORDS.vocab_size, width=4), seed=0), WORDS)
    with pytest.raises(TrellisError, match="of kind lstm, which cannot say this: give an HMM, or"):
        network.answering("score", "viterbi")


def test_a_sentence_begins_after_the_end_of_another(run):
    found = load_pretrained(run)
    _, after = found.model.score(torch.tensor([[WORDS.eos_id]]))
    assert torch.equal(found.after_eos(), after)


def test_without_an_end_there_is_nothing_to_begin_after(run):
    endless = SubwordTokenizer(SubwordTokenizer.train_bpe(["a b c"] * 9, 300)._tokenizer, eos=None)
    assert Pretrained(run, load_model(run), endless).after_eos() is None
    never = HMM(HMMConfig(WORDS.vocab_size, states=1))
    never.set_tables(torch.ones(1), torch.ones(1, 1), torch.tensor([[0.5, 0.0, 0.5, 0.0, 0.0]]))
    assert Pretrained(run, never, WORDS).after_eos() is None
