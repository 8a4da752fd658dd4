"""Teachers of the transformers library give the states that the library gives."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from trellis.distillation.reading import same_tokens
from trellis.distillation.teachers import find_teacher
from trellis.errors import TrellisError
from trellis.models.registry import config_class, model_class
from trellis.text import load_tokenizer

from .gguf_files import write_gguf
from .makers import load_llama, save_llama

IDS = torch.tensor([[0, 5, 7, 250, 299], [0, 1, 1, 2, 3]])


@pytest.mark.parametrize("layer", [0, 1, 2, 3, -1, -2])
def test_states_are_the_hidden_states_of_the_library(llama, layer):
    expected = load_llama(llama)(IDS, output_hidden_states=True).hidden_states[layer]
    teacher = find_teacher(str(llama), 0).open(layer)
    torch.testing.assert_close(teacher.states(IDS), expected.detach())
    assert teacher.width == 16
    assert teacher.begin == 0


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_learnt_positions_are_part_of_the_embeddings(bpe, tmp_path, layer):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()
    model.save_pretrained(tmp_path)
    bpe.save(tmp_path)
    teacher = find_teacher(str(tmp_path), 0).open(layer)
    expected = model(IDS, output_hidden_states=True).hidden_states[layer]
    torch.testing.assert_close(teacher.states(IDS), expected.detach())
    assert teacher.longest == 32


def test_layers_past_the_wanted_one_do_not_run(llama):
    source = find_teacher(str(llama), 0)
    teacher = source.open(1)
    body = teacher.states.__wrapped__.__closure__
    stack = next(c.cell_contents for c in body if isinstance(c.cell_contents, torch.nn.ModuleList))
    stack[1].forward = stack[2].forward = None  # which would fail if called
    assert teacher.states(IDS).shape == (2, 5, 16)


def test_the_head_is_the_output_embedding(llama):
    expected = load_llama(llama).lm_head.weight
    torch.testing.assert_close(find_teacher(str(llama), 0).open(-1).head_VR, expected.detach())


def test_weights_in_half_precision_are_read_in_full(llama, tmp_path):
    load_llama(llama).half().save_pretrained(tmp_path)
    shutil.copy(llama / "tokenizer.json", tmp_path)
    assert find_teacher(str(tmp_path), 0).open(-1).states(IDS).dtype == torch.float32


@pytest.mark.parametrize("place", ["folder", "file"])
def test_a_random_teacher_depends_on_the_seed_alone(llama, place):
    where = f"random:{llama if place == 'folder' else llama / 'config.json'}"
    torch.manual_seed(1)
    one = find_teacher(where, 3).open(-1).states(IDS)
    before = torch.random.get_rng_state()
    two, other = (find_teacher(where, seed).open(-1).states(IDS) for seed in (3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, find_teacher(str(llama), 0).open(-1).states(IDS))


def test_our_own_transformer_teaches(bpe, tmp_path):
    config = config_class("transformer")(300, width=16, layers=2, heads=2, begin=0)
    model = model_class("transformer")(config, seed=1).eval()
    model.save_pretrained(tmp_path, bpe)
    teacher = find_teacher(str(tmp_path), 0).open(-1)
    log_probs = (teacher.states(IDS) @ teacher.head_VR.T).log_softmax(-1)
    expected = model.score(IDS[:, 1:])[0]  # its windows begin with 0 too
    torch.testing.assert_close(log_probs[:, :-1].gather(2, IDS[:, 1:, None])[..., 0], expected.detach())


def test_missing_weights_are_never_drawn_at_random(llama, tmp_path):
    copy = shutil.copytree(llama, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrellisError, match=r"lacks weights of its shape \(model.layers.1.mlp.up_proj.weight"):
        find_teacher(str(copy), 0).open(-1)


@pytest.mark.parametrize("damage", ["cut", "gone", "kind", "other"])
def test_a_broken_teacher_is_one_sentence(llama, tmp_path, damage):
    copy = shutil.copytree(llama, tmp_path / "copy")
    weights, config = copy / "model.safetensors", copy / "config.json"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "gone":
        weights.unlink()
    elif damage == "kind":
        config.write_text(json.dumps({"model_type": "no such thing"}))
    else:
        save_llama(tmp_path / "other", load_tokenizer(llama), hidden_size=32)
        shutil.copy(tmp_path / "other" / "config.json", config)
    with pytest.raises(TrellisError, match=r"cannot be loaded|lacks weights") as told:
        find_teacher(str(copy), 0).open(-1)
    assert "\n" not in str(told.value)


def test_a_teacher_without_a_tokenizer_is_refused_unless_it_is_random(llama, tmp_path):
    copy = shutil.copytree(llama, tmp_path / "copy")
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(TrellisError, match=r"has no tokenizer\.json"):
        find_teacher(str(copy), 0).open(-1)
    assert find_teacher(f"random:{copy}", 0).open(-1).tokenizer is None


def test_the_library_is_loaded_for_teachers_alone_and_its_lack_is_a_sentence(llama):
    code = (
        "import sys, trellis, trellis.cli, trellis.distillation\n"
        "assert not {'transformers', 'faiss', 'sklearn'} & set(sys.modules)\n"
        "sys.modules['transformers'] = None\n"
        "from trellis.distillation.teachers import find_teacher\n"
        f"find_teacher({str(llama)!r}, 0).open(-1)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "TrellisError: a teacher of this kind needs the transformers library: run pip install" in found.stderr


def test_a_gguf_file_is_the_model_it_was_written_from(llama, bpe, tmp_path):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package)
    write_gguf(tmp_path / "it.gguf", load_llama(llama), bpe)
    teacher, original = (find_teacher(str(place), 0).open(-1) for place in (tmp_path / "it.gguf", llama))
    torch.testing.assert_close(teacher.states(IDS), original.states(IDS), rtol=1e-4, atol=1e-5)
    assert same_tokens(teacher, bpe)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_gguf_file_without_a_package_is_a_sentence(tmp_path, monkeypatch, package):
    (tmp_path / "it.gguf").write_bytes(b"GGUF")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found("sys"))
    with pytest.raises(TrellisError, match=rf"needs the package {package}: run pip install 'trellis-lm\[gguf\]'"):
        find_teacher(str(tmp_path / "it.gguf"), 0).open(-1)
