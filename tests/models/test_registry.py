import json

import pytest
import torch

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.models import HMM, HMMConfig, Model, ModelConfig, load_model, storage, tensor_files
from trellis.models.registry import KINDS, config_class, model_class

from .makers import random_ids


class Counted(Model):
    """A model of one parameter, one buffer that counts and one that is made anew each time."""

    def __init__(self, config, seed=None):
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("scratch", torch.zeros(4), persistent=False)


def test_a_saved_hmm_is_found_again_by_its_kind(tmp_path):
    model, ids = HMM(HMMConfig(7, 4), seed=1), random_ids(2, 5, 7)
    model.save_pretrained(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert type(again) is HMM
    assert torch.equal(again.score(ids)[0], model.score(ids)[0])


def test_a_saved_model_tells_its_kind_and_every_setting(tmp_path):
    """A name that changes here is a model that no longer loads: raise storage.FORMAT."""
    HMM(HMMConfig(7, 4), seed=1).save_pretrained(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "config.json").read_text())
    written = [
        "model_type", "format", "vocab_size", "states", "support", "blocks", "unclustered", "start", "transition",
        "emission", "encoder", "width", "parameters", "shared", "monolithic", "layers", "skip", "relu", "norm", "heads",
        "network", "inputs", "architecture", "bias", "memory", "memory_dropout", "memory_words", "ngrams", "cache",
        "dropout", "init_scale",
    ]  # fmt: skip
    assert (list(about), about["model_type"], about["format"]) == (written, "trellis_hmm", 2)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("trellis_lstmm", "did you mean 'lstm'?"), ("gpt2", "Trellis reads only its own"), (None, "reads only its own")],
)
def test_kinds_that_do_not_exist(kind, said, tmp_path):
    HMM(HMMConfig(7, 4), seed=1).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": kind}))
    (path.parent / MANIFEST).unlink()
    with pytest.raises(TrellisError, match=said.replace("?", r"\?")):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_names_what_is_there(kind):
    config, model = config_class(kind), model_class(kind)
    assert (config.kind, model.config_class) == (kind, config)
    assert issubclass(config, ModelConfig)
    assert issubclass(model, Model)


@pytest.mark.parametrize("kind", [3, None, "Hmm"])
def test_a_kind_is_one_of_the_table(kind):
    with pytest.raises(TrellisError, match=f"there is no kind of model '{kind}'"):
        config_class(kind)


def test_counts_stay_whole_numbers_and_what_is_made_anew_is_not_kept(tmp_path):
    model = Counted(HMMConfig(7, 4)).double()
    model.count += 2**53
    storage.save(model, tmp_path / "model", None)
    tensors = tensor_files.read_tensors(tmp_path / "model" / "model.safetensors")
    assert sorted(tensors) == ["count", "weight"]
    again = Counted(HMMConfig(7, 4))
    storage.restore(again, tensors, tmp_path)
    assert (again.weight.dtype, again.count.dtype) == (torch.float64, torch.int64)
    assert torch.equal(again.count, model.count)
    with pytest.raises(TrellisError, match=r"\(count is 3, not 3 of int64\)"):
        storage.restore(again, tensors | {"count": torch.zeros(3)}, tmp_path)
