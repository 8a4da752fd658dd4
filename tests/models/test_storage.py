import json
import pickle
import shutil

import pytest
import torch

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST, read_manifest
from trellis.models import HMM, HMMConfig, load_model, storage, tensor_files
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.registry import config_class, model_class
from trellis.text import WordTokenizer, load_tokenizer

from .makers import CONFIGS, VOCABULARY, every_config, every_kind, make, make_kind, random_ids

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d", "e"])


def rewrite(folder, text):
    """Another config.json, as of somebody who means it: without a manifest."""
    (folder / "config.json").write_text(text)
    (folder / MANIFEST).unlink(missing_ok=True)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def others():
    """Models of the other kinds."""
    yield KneserNey.fit(KneserNeyConfig(7), random_ids(1, 50, 7)[0].numpy(), quiet=True)
    for kind in ("feed_forward", "lstm", "awd_lstm", "hmm_rnn"):
        small = {"hidden": 6} if kind == "awd_lstm" else {"states": 5} if kind == "hmm_rnn" else {}
        yield model_class(kind)(config_class(kind)(7, width=4, **small), seed=0)


@pytest.fixture
def saved(tmp_path):
    HMM(CONFIGS[0], seed=0).save_pretrained(tmp_path / "model", WORDS)
    return tmp_path / "model"


@every_config
def test_scores_are_the_same_to_the_bit(config, tmp_path):
    model, ids = HMM(config, seed=3), random_ids(4, 9, 7)
    model.save_pretrained(tmp_path / "model")
    again = HMM.from_pretrained(tmp_path / "model")
    assert again.config == config
    assert torch.equal(again.score(ids)[0], model.score(ids)[0])
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]


@every_kind
def test_every_kind_of_hmm_survives_with_its_support(kind, tmp_path):
    model, ids = make_kind(torch.float32, **kind), random_ids(4, 9, VOCABULARY)
    model.save_pretrained(tmp_path / "model")
    again = HMM.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(again.score(ids)[0], model.score(ids)[0])
    assert storage.tensors_of(again).keys() == storage.tensors_of(model).keys()


def test_a_loaded_model_is_ready_for_use(saved, tmp_path):
    assert not HMM.from_pretrained(saved).training
    assert not load_model(saved).training
    for model in others():
        folder = tmp_path / model.config.kind
        model.save_pretrained(folder)
        assert not type(model).from_pretrained(folder).training


def test_a_run_is_loaded_as_its_best_model(saved, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / storage.RUN_FILE).write_text("")
    with pytest.raises(TrellisError, match="run is a run without a model yet"):
        load_model(run)
    HMM(HMMConfig(7, 3), seed=1).save_pretrained(run / "checkpoint-2")
    shutil.copytree(saved, run / "best")
    ids = random_ids(2, 5, 7)
    for named in (run, str(run), run / "best"):
        assert torch.equal(load_model(named).score(ids)[0], load_model(saved).score(ids)[0])
    assert load_model(run / "checkpoint-2").config.states == 3


def test_double_precision_survives(tmp_path):
    model, ids = make(CONFIGS[0]), random_ids(4, 9, 7)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(HMM.from_pretrained(tmp_path / "model").score(ids)[0], model.score(ids)[0])


def test_the_tokenizer_goes_along_and_nothing_is_pickled(saved):
    files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(contents(saved)) == sorted([*files, MANIFEST])
    assert sorted(read_manifest(saved)) == files
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
    (saved / MANIFEST).unlink()
    with pytest.raises(TrellisError, match=f"{name} is cut short or damaged"):
        HMM.from_pretrained(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(TrellisError, match=name):
        HMM.from_pretrained(saved)


def test_no_folder_at_all(tmp_path):
    with pytest.raises(TrellisError, match=r"there is no model .*nowhere: give the folder of a run or of a saved"):
        HMM.from_pretrained(tmp_path / "nowhere")
    (tmp_path / "file").write_text("text")
    with pytest.raises(TrellisError, match=r"there is no config.json"):
        HMM.from_pretrained(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 99}, "another version of Trellis"),
        ({"format": 3}, "another version of Trellis"),
        ({"format": None}, "another version of Trellis"),
        ({"model_type": "gpt2"}, "a model of another kind"),
        ({"states": 5}, r"\(emission.table is 7×4, not 7×5\)"),
        ({"vocab_size": 8}, r"\(emission.table is 7×4, not 8×4\)"),
        ({"emission": "low_rank", "width": 2}, r"\(emission.table is 7×4, not absent\)"),
        ({"start": "low_rank", "width": 2}, r"\(encoder.tables.entering is absent, not 4×2\)"),
        ({"support": "brown", "blocks": 2}, r"\(block_V is absent, not 7 of int64\)"),
        ({"states": "many"}, "'states' must be a whole number"),
        ({"stats": 4}, "did you mean 'states'"),
    ],
)
def test_another_configuration_is_refused(change, sentence, saved):
    config = json.loads((saved / "config.json").read_text())
    rewrite(saved, json.dumps(config | change))
    with pytest.raises(TrellisError, match=sentence):
        HMM.from_pretrained(saved)


def test_json_that_is_no_object_is_refused(saved):
    rewrite(saved, "[1]")
    with pytest.raises(TrellisError, match="does not hold a JSON object"):
        HMM.from_pretrained(saved)


def test_weights_that_do_not_fit_change_nothing(saved):
    model = HMM(HMMConfig(7, 4, emission="low_rank", width=2), seed=5)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(TrellisError, match="do not fit"):
        storage.restore(model, tensor_files.read_tensors(saved / "model.safetensors"), saved)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_restored_numbers_count_as_changed(saved):
    """What is kept of a model goes by PyTorch's count of changes."""
    model = HMM(CONFIGS[0], seed=5)
    before = [tensor._version for tensor in model.parameters()]
    storage.restore(model, tensor_files.read_tensors(saved / "model.safetensors"), saved)
    assert all(now._version > then for now, then in zip(model.parameters(), before, strict=True))


OLD_SETTINGS = {
    "trellis_hmm": {
        "vocab_size": 7, "states": 4, "start": "scalar", "transition": "scalar", "emission": "scalar", "rank": 3,
        "shared": False,
    },
    "trellis_blocked": {
        "vocab_size": 7, "states": 4, "blocks": 2, "width": 6, "transition": "hierarchical", "parameters": "neural",
        "embeddings": "independent", "clusters": "brown", "unclustered": None, "dropout": 0.5,
    },
}  # fmt: skip


@pytest.fixture(params=OLD_SETTINGS)
def old(request, tmp_path):
    """A model as version 0.1.0 wrote it."""
    folder = tmp_path / "old"
    folder.mkdir()
    about = {"model_type": request.param, "format": 1} | OLD_SETTINGS[request.param]
    (folder / "config.json").write_text(json.dumps(about))
    tensor_files.write_tensors(folder / "model.safetensors", {"emission.table": torch.zeros(7, 4)})
    return folder


@pytest.mark.parametrize("load", [load_model, HMM.from_pretrained])
def test_an_hmm_of_the_older_layout_says_what_to_do(load, old):
    with pytest.raises(TrellisError) as refused:
        load(old)
    assert str(refused.value) == (
        f"{old} was saved by an older layout of Trellis: train it again, or use it with the version that wrote it "
        "(0.1.0)."
    )


def test_a_model_of_the_older_layout_may_be_replaced(old):
    HMM(CONFIGS[0], seed=0).save_pretrained(old)
    assert HMM.from_pretrained(old).config == CONFIGS[0]


def test_other_kinds_are_the_same_in_both_formats(tmp_path):
    for model in others():
        folder = tmp_path / model.config.kind
        model.eval().save_pretrained(folder)
        about = json.loads((folder / "config.json").read_text())
        assert about["format"] == storage.FORMAT == 2
        rewrite(folder, json.dumps(about | {"format": 1}))
        assert torch.equal(load_model(folder).score(random_ids(2, 5, 7))[0], model.score(random_ids(2, 5, 7))[0])
        (folder / "config.json").write_text(json.dumps(about | {"format": 3}))
        with pytest.raises(TrellisError, match="another version of Trellis"):
            load_model(folder)


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
        raise tensor_files.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    before = contents(saved)
    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(TrellisError, match=r"the disk of .* is full"):
        HMM(CONFIGS[0], seed=1).save_pretrained(saved)
    assert contents(saved) == before
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_again_replaces_the_old_model_whole(saved):
    model = HMM(CONFIGS[-1], seed=1)
    model.save_pretrained(saved)
    assert sorted(contents(saved)) == ["config.json", MANIFEST, "model.safetensors"]
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
