"""Causal transformers as the network of states: read, refused, drawn afresh, and saved with the model."""

import builtins
import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, T5Config, T5ForConditionalGeneration

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.encoders import ROLES
from trellis.models.hugging_face import load_network, of_shape, shape_of
from trellis.models.model import drawn_from
from trellis.text import MemoryCorpus, WordTokenizer, prepare

from ..distillation import gguf_files
from .makers import LOW_RANK, VOCABULARY, assert_same_gradients, gradients, make_kind, random_ids
from .slow_twin import slow_score
from .test_networked import check_gradients

HIDDEN, POSITIONS = 8, 24
WORDS = WordTokenizer(["<unk>", "<eos>", *"abcdefghi"])  # as many as the models' vocabulary
assert WORDS.vocab_size == VOCABULARY
LLAMA = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=POSITIONS, initializer_range=0.3, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
# With dropout, which must not drop anything; and in float64, which Llama's norms are not, for finite differences.
GPT2 = GPT2Config(
    vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=2, n_positions=POSITIONS, initializer_range=0.3,
    bos_token_id=1, eos_token_id=1,
)  # fmt: skip


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    return saved(LLAMA if request.param == "llama" else GPT2, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(LLAMA, tmp_path_factory.mktemp("only-llama"))


def saved(config, where):
    with drawn_from(3):
        AutoModelForCausalLM.from_config(config).save_pretrained(where)
    return where


def config_of(folder, **parts):
    told = {"states": 12, "width": 6, "encoder": "pretrained", "network": str(folder)} | LOW_RANK | parts
    return HMMConfig(VOCABULARY, **told)


def test_states_are_one_sequence_of_the_language_model_s_tokens(folder):
    model, states = HMM(config_of(folder), seed=0), torch.tensor([4, 1, 7, 2])
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    encoder = model.encoder
    hidden = theirs(inputs_embeds=encoder.tables["states"][states][None], output_hidden_states=True).hidden_states[-1]
    encoded = encoder.encode(states)
    for role in ROLES:
        own = "entering" if role == "starting" else role
        assert_close(encoder.vectors(role, encoded), hidden[0] @ encoder.maps[own].weight.T)
    networks = {id(parameter) for parameter in model.network_parameters()}
    for name, parameter in encoder.named_parameters():
        assert (id(parameter) in networks) is not name.startswith("tables.")
    assert not any(parameter.shape == (VOCABULARY, HIDDEN) for parameter in encoder.network.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("support", "transition"), [("dense", "low_rank"), ("brown", "hierarchical")])
def test_scores_are_those_of_the_slow_twin_and_run_the_network_once(folder, support, transition, dropout):
    told = LOW_RANK | {"transition": transition, "support": support, "dropout": dropout, "encoder": "pretrained"}
    model, state, runs = make_kind(**told, network=str(folder), states=12), None, []
    model.encoder.network.register_forward_hook(lambda *_: runs.append(1))
    for seed in (4, 5):
        torch.manual_seed(seed)
        taking_part = model.taking_part()
        torch.manual_seed(seed)
        ids = random_ids(4, 7, VOCABULARY, seed)
        runs.clear()
        found, after = model.score(ids, state)
        assert runs == [1]
        slow, slow_after = slow_score(model, ids, state, None, taking_part)
        near = {"rtol": 1e-5, "atol": 1e-6}  # Llama's norms are of float32
        assert_close(found, slow, **near)
        assert_close(after, slow_after, **near)
        assert_same_gradients(gradients(model, found.sum()), gradients(model, slow.sum()), rtol=1e-4, atol=1e-4)
        state = after.detach()
    model.eval()
    runs.clear()
    with torch.no_grad():
        for seed in range(3):
            model.score(random_ids(4, 7, VOCABULARY, seed))
    assert runs == [1]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("support", ["dense", "brown"])
def test_gradients_are_those_of_finite_differences(support, dropout, tmp_path):
    told = LOW_RANK | {"support": support, "dropout": dropout, "encoder": "pretrained", "width": 4, "states": 12}
    check_gradients(make_kind(**told, network=str(saved(GPT2, tmp_path))))


def test_a_saved_model_needs_the_folder_no_longer(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "network")
    model, ids = HMM(config_of(copy), seed=0).eval(), random_ids(4, 7, VOCABULARY)
    want = model.score(ids)[0]
    model.save_pretrained(tmp_path / "model")
    shutil.rmtree(copy)
    again = HMM.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(again.score(ids)[0], want)
    assert_close(model.plain().score(ids)[0], want, rtol=1e-6, atol=1e-6)
    assert str(tmp_path) not in again.config.architecture


def test_random_weights_are_those_of_the_seed(folder):
    def weights(name, seed):
        return torch.nn.utils.parameters_to_vector(HMM(config_of(name), seed=seed).encoder.network.parameters())

    first = weights(f"random:{folder}", 0)
    assert torch.equal(first, weights(f"random:{folder}", 0))
    assert not torch.equal(first, weights(f"random:{folder}", 1))
    assert torch.equal(weights(folder, 0), weights(folder, 1))
    assert not torch.equal(first, weights(folder, 0))


def test_a_shape_is_enough_to_make_a_network_again(folder):
    network = load_network(str(folder), 5)
    again = of_shape(network.architecture)
    assert network.architecture == again.architecture == shape_of(f"random:{folder}")
    shapes = [{name: p.shape for name, p in one.module.named_parameters()} for one in (network, again)]
    assert shapes[0] == shapes[1]
    assert {p.dtype for p in network.module.parameters()} == {torch.float32}


def test_half_precision_is_widened(llama, tmp_path):
    AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float16).save_pretrained(tmp_path)
    assert {p.dtype for p in load_network(str(tmp_path), 5).module.parameters()} == {torch.float32}
    assert {p.dtype for p in of_shape(shape_of(str(tmp_path))).module.parameters()} == {torch.float32}


def test_fresh_logits_are_neither_flat_nor_sharp_whatever_the_network_s_size(llama, tmp_path):
    theirs = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        theirs.model.norm.weight.mul_(50.0)
    theirs.save_pretrained(tmp_path)
    model = HMM(config_of(tmp_path), seed=0)
    with torch.no_grad():
        encoded = model.encoder.encode(model.everything())
        leaving, entering = (model.encoder.vectors(role, encoded) for role in ("leaving", "entering"))
        assert 0.1 < float((leaving @ entering.T).std(1).mean()) < 2.5


def text_of(tmp_path, words="a b c d e f g h i"):
    return prepare(MemoryCorpus("letters", (words,)), WORDS, tmp_path / "cache", quiet=True)


def test_the_first_words_of_a_text_may_stand_for_the_states(folder, tmp_path):
    words = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
    text, config = text_of(tmp_path), config_of(folder, states=6, inputs="text")
    model = HMM.for_text(config, text, WORDS, seed=0)
    table = model.encoder.tables["states"]
    assert torch.equal(table, words[torch.from_numpy(np.array(text.ids[:6]).astype("int64"))])
    assert table.requires_grad
    model.save_pretrained(tmp_path / "model")
    ids = random_ids(2, 5, VOCABULARY)
    assert torch.equal(HMM.from_pretrained(tmp_path / "model").score(ids)[0], model.eval().score(ids)[0])


def test_texts_that_cannot_stand_for_states_are_refused(folder, tmp_path):
    config, text = config_of(folder, inputs="text"), text_of(tmp_path, "a b c")
    with pytest.raises(TrellisError, match=r"a text of \d tokens has too few for 12 states: set model.inputs=states"):
        HMM.for_text(config, text, WORDS, seed=0)
    with pytest.raises(TrellisError, match=r"model.inputs=text needs the text: make the model by HMM.for_text"):
        HMM(config, seed=0).score(random_ids(2, 5, VOCABULARY))
    told = {"encoder": "pretrained", "network": str(folder), "inputs": "text", "width": 4, "states": 3}
    with pytest.raises(TrellisError, match=r"has 11 words and the model 20: set model.inputs=states"):
        HMM(HMMConfig(20, **told, **LOW_RANK))


def test_a_budget_counts_the_network(folder):
    model = HMM(config_of(folder, parameters=4000), seed=0)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    wider = HMM(config_of(folder, width=model.config.width + 1))
    assert numbers <= 4000 < sum(parameter.numel() for parameter in wider.parameters())
    with pytest.raises(TrellisError, match="1,000 parameters are fewer than the smallest"):
        HMM(config_of(folder, parameters=1000))


def refused(name, sentence, states=12):
    with pytest.raises(TrellisError, match=sentence) as caught:
        HMM(config_of(name, states=states), seed=0)
    assert "\n" not in str(caught.value)


def test_networks_that_cannot_be_are_refused(llama, tmp_path):
    refused(tmp_path / "nowhere", r"there is no network .*nowhere: set model.network to the folder of a causal model")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, r"the network .*empty cannot be loaded \(.*\): name the whole folder of a causal model")
    table = saved(GPT2, tmp_path / "gpt2")
    for prefix in ("", "random:"):
        refused(f"{prefix}{table}", r"has 24 positions, too few for 25 states: set model.states to 24 at most", 25)
    small = {"vocab_size": 8, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 1}
    T5ForConditionalGeneration(T5Config(**small)).save_pretrained(tmp_path / "t5")
    for prefix in ("", "random:"):
        refused(f"{prefix}{tmp_path / 't5'}", r"the network .*t5 cannot be loaded \(.*\): name the whole folder")


def test_rotary_positions_go_on_for_more_states_than_the_text_was_long(llama):
    model = HMM(config_of(llama, states=2 * POSITIONS), seed=0)
    assert torch.isfinite(model.tables().transition_SS).all()


def test_a_network_without_all_of_its_weights_is_refused(llama, tmp_path):
    broken = shutil.copytree(llama, tmp_path / "broken")
    told = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(told | {"num_hidden_layers": 3}))
    refused(
        broken, r"broken lacks weights of its shape \(model.layers.2.* is one of \d+\): fetch it again, or say random:"
    )
    (broken / "config.json").write_text(json.dumps(told))
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-100])
    refused(broken, r"broken cannot be loaded")
    (broken / "model.safetensors").unlink()
    refused(broken, r"broken cannot be loaded")
    HMM(config_of(f"random:{broken}"), seed=0)  # for which the shape is enough


def test_without_the_library_it_says_how_to_get_it(llama, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name == "transformers":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    refused(llama, r"needs the transformers library: run pip install 'trellis-lm\[teachers\]'")


@pytest.mark.parametrize("prefix", ["", "random:"])
def test_a_gguf_file_is_the_network_it_was_written_from(llama, prefix, tmp_path, monkeypatch):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package)
    monkeypatch.setattr(gguf_files, "_add_tokenizer", lambda *_: None)
    gguf_files.write_gguf(tmp_path / "it.gguf", AutoModelForCausalLM.from_pretrained(llama), None)
    first, second = (HMM(config_of(f"{prefix}{name}"), seed=0) for name in (tmp_path / "it.gguf", llama))
    shapes = [[p.shape for p in model.encoder.network.parameters()] for model in (first, second)]
    assert shapes[0] == shapes[1]
    if not prefix:
        ids = random_ids(2, 5, VOCABULARY)
        with torch.no_grad():
            second.encoder.tables["states"].copy_(first.encoder.tables["states"])
            assert_close(first.encoder.encode(ids[0]), second.encoder.encode(ids[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_gguf_file_without_a_package_is_a_sentence(package, tmp_path, monkeypatch):
    (tmp_path / "it.gguf").write_bytes(b"GGUF")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found("sys"))
    refused(tmp_path / "it.gguf", rf"needs the package {package}: run pip install 'trellis-lm\[gguf\]'")


def test_a_network_may_lie_in_the_data_folder(llama, monkeypatch):
    monkeypatch.setenv("TRELLIS_DATA", str(llama.parent))
    HMM(config_of(llama.name), seed=0)


@pytest.mark.parametrize("prefix", ["", "random:"])
def test_a_network_in_a_run_s_own_data_folder_keeps_its_name(folder, prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_DATA", str(tmp_path / "another"))
    data_dir, text = str(folder.parent), text_of(tmp_path)
    for more in ({}, {"parameters": 4000}):
        model = HMM.for_text(config_of(f"{prefix}{folder.name}", **more), text, WORDS, 0, data_dir)
        assert model.config.network == f"{prefix}{folder.name}"  # so that a run goes on when the folder has moved
        twin = HMM.for_text(config_of(f"{prefix}{folder}", **more), text, WORDS, 0)
        ids = random_ids(2, 5, VOCABULARY)
        assert torch.equal(model.score(ids)[0], twin.score(ids)[0])
    with pytest.raises(TrellisError, match=r"there is no network '.*', looked at .*another"):
        HMM.for_text(config_of(f"{prefix}{folder.name}"), text, WORDS, 0)
