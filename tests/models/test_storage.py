import json
import pickle
import shutil

import pytest
import torch

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig, storage
from trellis.text import WordTokenizer, load_tokenizer

from .makers import CONFIGS, make, named, random_ids

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d", "e"])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def saved(tmp_path):
    HMM(CONFIGS[0], seed=0).save_pretrained(tmp_path / "model", WORDS)
    return tmp_path / "model"


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_scores_are_the_same_to_the_bit(config, tmp_path):
    model, ids = HMM(config, seed=3), random_ids(4, 9, 7)
    model.save_pretrained(tmp_path / "model")
    again = HMM.from_pretrained(tmp_path / "model")
    assert again.config == config
    assert torch.equal(again.score(ids)[0], model.score(ids)[0])
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_double_precision_survives(tmp_path):
    model, ids = make(CONFIGS[0]), random_ids(4, 9, 7)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(HMM.from_pretrained(tmp_path / "model").score(ids)[0], model.score(ids)[0])


def test_the_tokenizer_goes_along_and_nothing_is_pickled(saved):
    assert sorted(contents(saved)) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert load_tokenizer(saved).fingerprint() == WORDS.fingerprint()
    assert json.loads((saved / "config.json").read_text())["tokenizer"] == WORDS.fingerprint()
    for data in contents(saved).values():
        with pytest.raises(Exception, match=r"."):  # whatever it says, it is no pickle
            pickle.loads(data)


def test_loading_leaves_the_generator_alone(saved):
    torch.manual_seed(1)
    undisturbed = torch.rand(2)
    torch.manual_seed(1)
    HMM.from_pretrained(saved)
    assert torch.equal(torch.rand(2), undisturbed)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_cut_short_is_refused(name, share, saved):
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(TrellisError, match=f"{name} is cut short or damaged"):
        HMM.from_pretrained(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(TrellisError, match=name):
        HMM.from_pretrained(saved)


def test_no_folder_at_all(tmp_path):
    with pytest.raises(TrellisError, match=r"there is no config.json in .*nowhere: give the folder of a trained model"):
        HMM.from_pretrained(tmp_path / "nowhere")
    (tmp_path / "file").write_text("text")
    with pytest.raises(TrellisError, match=r"there is no config.json"):
        HMM.from_pretrained(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 99}, "another version of Trellis"),
        ({"format": None}, "another version of Trellis"),
        ({"model_type": "gpt2"}, "a model of another kind"),
        ({"states": 5}, r"\(emission.table is 7×4, not 7×5\)"),
        ({"vocab_size": 8}, r"\(emission.table is 7×4, not 8×4\)"),
        ({"emission": "low_rank", "rank": 2}, r"\(emission.left is absent, not 7×2\)"),
        ({"states": "many"}, "'states' must be a whole number"),
        ({"stats": 4}, "did you mean 'states'"),
    ],
)
def test_another_configuration_is_refused(change, sentence, saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(TrellisError, match=sentence):
        HMM.from_pretrained(saved)


def test_json_that_is_no_object_is_refused(saved):
    (saved / "config.json").write_text("[1]")
    with pytest.raises(TrellisError, match="does not hold a JSON object"):
        HMM.from_pretrained(saved)


def test_weights_that_do_not_fit_change_nothing(saved):
    model = HMM(HMMConfig(7, 4, emission="low_rank", rank=2), seed=5)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(TrellisError, match="do not fit"):
        storage.restore(model, storage.read_tensors(saved / "model.safetensors"), saved)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class FailingTokenizer:
    """Writes half of its file, and then the disk is full."""

    def save(self, folder):
        (folder / "tokenizer.json").write_text("{")
        raise OSError(28, "No space left on device")

    def fingerprint(self):
        return "none"


def test_a_failing_save_leaves_the_old_model_and_nothing_else(saved):
    before = contents(saved)
    with pytest.raises(TrellisError, match=r"the disk of .* is full"):
        HMM(CONFIGS[0], seed=1).save_pretrained(saved, FailingTokenizer())
    assert contents(saved) == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_disk_that_fills_under_the_weights_is_a_full_disk(saved, monkeypatch):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise storage.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    before = contents(saved)
    monkeypatch.setattr(storage, "save_file", full)
    with pytest.raises(TrellisError, match=r"the disk of .* is full"):
        HMM(CONFIGS[0], seed=1).save_pretrained(saved)
    assert contents(saved) == before
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_again_replaces_the_old_model_whole(saved):
    model = HMM(CONFIGS[-1], seed=1)
    model.save_pretrained(saved)
    assert sorted(contents(saved)) == ["config.json", "model.safetensors"]
    assert HMM.from_pretrained(saved).config == CONFIGS[-1]
    assert list(saved.parent.iterdir()) == [saved]


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    """A model takes its folder's place, so a folder with other things in it must not be taken for one."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path / "thesis", tmp_path, tmp_path / "config.json"):
        with pytest.raises(TrellisError, match="choose another folder"):
            HMM(CONFIGS[0]).save_pretrained(folder)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "thesis"]


def test_an_empty_folder_will_do(tmp_path):
    HMM(CONFIGS[0], seed=0).save_pretrained(tmp_path / "a")
    (tmp_path / "b").mkdir()
    HMM(CONFIGS[0], seed=0).save_pretrained(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    HMM(CONFIGS[0], seed=0).save_pretrained(tmp_path / "new" / "deep" / "a")
    assert contents(tmp_path / "new" / "deep" / "a") == contents(tmp_path / "b")
