"""Folders go both ways: what Trellis saved transformers loads, what transformers saved Trellis loads, to the bit."""

import json
import shutil

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import trellis
from trellis.beginnings import beginning
from trellis.errors import TrellisError
from trellis.hf import TrellisConfig, TrellisForCausalLM
from trellis.hf.files import fresh
from trellis.models.pretrained import load_pretrained
from trellis.text import SubwordTokenizer, WordTokenizer, load_tokenizer
from trellis.text.tokenizer import write_folder

from ..models.makers import random_ids
from .models import EOS, MAKERS, counting, dense, obvious

every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def words(count: int) -> WordTokenizer:
    return WordTokenizer(["<unk>", "<eos>", *(f"w{number}" for number in range(count - 2))])


@pytest.fixture
def folder(tmp_path):
    """A saved dense model of five words."""
    dense().float().save_pretrained(tmp_path / "model", words(5))
    return tmp_path / "model"


@every_maker
def test_a_folder_goes_to_transformers_and_back_to_the_bit(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path / "ours", words(model.config.vocab_size))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert not theirs.training
    ids_BT = random_ids(2, 4, model.config.vocab_size)
    scored_BT, _ = model.score(ids_BT)
    theirs.save_pretrained(tmp_path / "theirs")
    back = trellis.load_model(tmp_path / "theirs")
    assert torch.equal(back.score(ids_BT)[0], scored_BT)
    assert back.config == model.config
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert type(again) is type(theirs)
    assert_close(again(ids_BT).logits, theirs(ids_BT).logits, rtol=1e-12, atol=1e-12)
    assert again.config.to_diff_dict() == theirs.config.to_diff_dict()
    assert str(tmp_path) not in (tmp_path / "theirs" / "config.json").read_text()
    pair = load_pretrained(tmp_path / "theirs")
    assert pair.tokenizer.encode("w0 <eos> w1") == [2, EOS, 3]


def test_the_configuration_says_what_is_in_the_folder(folder):
    config = AutoConfig.from_pretrained(folder)
    assert (type(config), config.vocab_size, config.trellis["states"]) == (TrellisConfig, 5, 3)
    loaded = AutoModelForCausalLM.from_pretrained(folder).config
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id, loaded.begins) == (EOS, EOS, EOS, "eos")
    assert AutoModelForCausalLM.from_config(loaded).model.config == trellis.load_model(folder).config


def test_a_model_without_a_tokenizer_has_no_special_tokens(tmp_path):
    dense().save_pretrained(tmp_path / "model")
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "model").config
    assert (config.bos_token_id, config.eos_token_id, config.begins) == (None, None, "start")


def test_a_model_of_sequences_begins_at_its_start_and_says_so_in_every_folder(folder, tmp_path):
    (folder / "fitted.json").write_text(json.dumps({"kind": "strings", "running": False, "perplexity": 3.5}))
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert theirs.config.begins == "start"
    theirs.save_pretrained(tmp_path / "copy")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "copy").config.begins == "start"
    assert beginning(load_pretrained(tmp_path / "copy"), None) is None
    assert_close(theirs(torch.tensor([[EOS]])).logits[0, 0], obvious(theirs.model, []))
    assert "validation perplexity: 3.50" in (tmp_path / "copy" / "README.md").read_text()


def test_a_model_of_running_text_begins_after_eos_in_every_folder(folder, tmp_path):
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "copy")
    state = beginning(load_pretrained(tmp_path / "copy"), None)
    assert_close(state, theirs.model.score(torch.tensor([[EOS]]))[1])
    assert_close(theirs(torch.tensor([[EOS]])).logits[0, 0], theirs.model.next_token(state)[0])


def test_a_token_that_begins_texts_is_the_mark(tmp_path):
    tokenizer = SubwordTokenizer.train_bpe(["a b c"], 260)
    write_folder(tmp_path / "tokenizer", tokenizer._tokenizer, eos_token="<eos>", bos_token="a")
    named = load_tokenizer(tmp_path / "tokenizer")
    dense(named.vocab_size).save_pretrained(tmp_path / "model", named)
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "model").config
    assert (config.bos_token_id, config.eos_token_id) == (named.id("a"), named.eos_id)


def test_what_else_stands_in_a_folder_stays_and_old_files_are_replaced(folder, tmp_path):
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "notes.txt").write_text("mine")
    with torch.no_grad():
        theirs.model.start.table.add_(torch.tensor([1.0, 0.0, 0.0]))
    theirs.save_pretrained(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert torch.equal(trellis.load_model(folder).start.table, theirs.model.start.table)
    assert not list(folder.glob(".*"))
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "tokenizer first")
    theirs.save_pretrained(tmp_path / "tokenizer first")
    assert load_pretrained(tmp_path / "tokenizer first").tokenizer.vocab_size == 5


def test_weights_of_another_time_than_their_configuration_are_refused(folder, tmp_path):
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        theirs.model.start.table.add_(torch.tensor([1.0, 0.0, 0.0]))
    theirs.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    with pytest.raises(TrellisError):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_process_that_is_not_the_main_one_writes_nothing(folder, tmp_path):
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "none", is_main_process=False)
    assert not (tmp_path / "none").exists()
    theirs.save_pretrained(tmp_path / "one", state_dict=theirs.state_dict())
    assert (tmp_path / "one" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quantization_config": {"load_in_8bit": True}}, "read as it was saved: leave quantization_config out"),
        ({"dtype": torch.bfloat16}, "not computed in torch.bfloat16"),
        ({"dtype": "float16"}, "not computed in torch.float16"),
        ({"device_map": {"a": "cpu", "b": "meta"}}, "in one place"),
    ],
)
def test_options_that_would_change_the_numbers_are_refused(folder, options, sentence):
    with pytest.raises(TrellisError, match=sentence):
        TrellisForCausalLM.from_pretrained(folder, **options)


@pytest.mark.parametrize("place", ["cpu", torch.device("cpu"), {"": "cpu"}, "auto", None])
def test_places_and_precisions_are_heeded(folder, place):
    model = AutoModelForCausalLM.from_pretrained(folder, device_map=place, dtype=torch.float64)
    assert (model.device.type, model.dtype) == ("cpu", torch.float64)
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.float32


def test_loading_information_is_given_to_those_who_ask(folder):
    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, TrellisForCausalLM)
    assert not any(told.values())


def test_what_is_no_folder_of_a_model_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrellisError, match=r"there is no config\.json"):
        TrellisForCausalLM.from_pretrained(tmp_path / "empty")


def test_n_grams_cannot_be_made_from_a_shape(tmp_path):
    counting().save_pretrained(tmp_path / "model", words(6))
    with pytest.raises(TrellisError, match="counted and has no weights"):
        fresh(AutoConfig.from_pretrained(tmp_path / "model"))


def test_saving_does_not_push(folder, tmp_path):
    with pytest.raises(TrellisError, match="call push_to_hub"):
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "x", push_to_hub=True)


def test_the_old_configuration_and_the_new_say_the_same_to_trellis(folder, tmp_path):
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "new")
    new = json.loads((tmp_path / "new" / "config.json").read_text())
    assert new["trellis"] == json.loads((folder / "config.json").read_text())
    assert new["model_type"] == "trellis_hmm"
    assert new["architectures"] == ["TrellisForCausalLM"]
