"""Teachers are found, told apart, and refused in a sentence."""

import json
import shutil

import pytest

from trellis.distillation.teachers import check_layer, find_teacher
from trellis.errors import TrellisError


def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_a_copy_is_the_same_teacher(llama, tmp_path):
    assert find_teacher(str(copied(llama, tmp_path)), 0).hash() == find_teacher(str(llama), 7).hash()


def test_a_weight_a_setting_or_a_token_makes_another_teacher(llama, tmp_path):
    copy = copied(llama, tmp_path)
    hashes = [find_teacher(str(copy), 0).hash()]
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    hashes.append(find_teacher(str(copy), 0).hash())
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.01}))
    hashes.append(find_teacher(str(copy), 0).hash())
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + " ")
    hashes.append(find_teacher(str(copy), 0).hash())
    assert len(set(hashes)) == 4


def test_the_version_that_wrote_a_config_makes_no_other_teacher(llama, tmp_path):
    copy = copied(llama, tmp_path)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"transformers_version": "0.0"}))
    assert find_teacher(str(copy), 0).hash() == find_teacher(str(llama), 0).hash()


def test_a_random_teacher_is_its_shape_and_seed(llama, tmp_path):
    copy = copied(llama, tmp_path)
    (copy / "model.safetensors").unlink()
    assert find_teacher(f"random:{copy}", 1).hash() == find_teacher(f"random:{llama}", 1).hash()
    assert find_teacher(f"random:{copy}", 2).hash() != find_teacher(f"random:{llama}", 1).hash()
    assert find_teacher(f"random:{llama}", 0).hash() != find_teacher(str(llama), 0).hash()


def test_a_teacher_is_looked_for_in_the_data_folder_and_a_run(llama, tmp_path, monkeypatch):
    assert find_teacher(llama.name, 0, str(llama.parent)).path == llama
    monkeypatch.setenv("TRELLIS_DATA", str(llama.parent))
    assert find_teacher(f"random:{llama.name}", 0).path == llama
    shutil.copytree(llama, tmp_path / "run" / "best")
    assert find_teacher(str(tmp_path / "run"), 0).path == tmp_path / "run" / "best"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (None, "needs a teacher"),
        ("nowhere", "there is no teacher 'nowhere'"),
        ("random:nowhere", "there is no teacher 'nowhere'"),
        (".", "no config.json"),
        ("notes.txt", "is no teacher"),
        ("config.json", "is no teacher"),
    ],
)
def test_what_is_no_teacher_is_refused(name, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    for file in ("notes.txt",):
        (tmp_path / file).write_text("{}")
    if name == "config.json":
        (tmp_path / "shape").mkdir()
        (tmp_path / "shape" / name).write_text("{}")
        name = f"shape/{name}"
    with pytest.raises(TrellisError, match=sentence):
        find_teacher(name, 0)


def test_layers_are_counted_from_the_embeddings_and_from_the_end():
    assert [check_layer(layer, 3, "it") for layer in (0, 1, 3, -1, -2, -4)] == [0, 1, 3, 3, 2, 0]
    for layer in (4, -5):
        with pytest.raises(TrellisError, match=f"has no layer {layer}"):
            check_layer(layer, 3, "it")
