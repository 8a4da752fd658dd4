"""A model's card says what it is, how well it does, and how to load it; what people wrote stays."""

import json

import pytest
from transformers import AutoModelForCausalLM

from trellis import WordTokenizer
from trellis.hf.card import figures_of

from .models import dense


@pytest.fixture
def run(tmp_path):
    """A run's folder with its best model."""
    dense().save_pretrained(tmp_path / "best", WordTokenizer(["<unk>", "<eos>", "a", "b", "c"]))
    (tmp_path / "config.yaml").write_text("data: {corpus: ptb}\ntraining: {batching: windows}\n")
    lines = [
        {"update": 1, "loss": 3.0},
        {"update": 1, "valid_perplexity": 1234.567},
        {"update": 2, "valid_perplexity": 99},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"valid_perp')
    return tmp_path


def test_a_card_has_the_shape_the_figures_and_their_protocol(run, tmp_path):
    AutoModelForCausalLM.from_pretrained(run / "best").save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: trellis\n")
    for line in ("3 states", "5 words", "validation perplexity: 99.00", "protocol: windows of 64 tokens", "text: ptb"):
        assert f"- {line}\n" in card
    assert "A leading token 1 says that a text begins, as after `<eos>`" in card
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    again.save_pretrained(tmp_path / "again")  # which lies in no run
    assert (tmp_path / "again" / "README.md").read_text() == card


def test_a_card_of_ours_is_written_anew_and_one_of_theirs_stays(run, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(run / "best")
    model.save_pretrained(tmp_path / "saved")
    card = tmp_path / "saved" / "README.md"
    written = card.read_text()
    card.write_text(written + "stale")
    model.save_pretrained(tmp_path / "saved")
    assert card.read_text() == written
    card.write_text("# My model\n")
    model.save_pretrained(tmp_path / "saved")
    assert card.read_text() == "# My model\n"


def test_a_model_without_a_run_says_how_to_measure_it(tmp_path):
    dense().save_pretrained(tmp_path / "model")
    assert figures_of(tmp_path / "model") == {}
    AutoModelForCausalLM.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "`trellis evaluate FOLDER CORPUS` measures it" in card
    assert "leading token" not in card


def test_settings_of_another_version_cost_the_figures_alone(run):
    (run / "config.yaml").write_text("training: {no_such_setting: 1}\n")
    assert figures_of(run / "best") == {}


def test_a_run_without_validation_has_no_perplexity(run):
    (run / "metrics.jsonl").unlink()
    assert figures_of(run / "best") == {"text": "ptb", "learnt as": "windows"}
