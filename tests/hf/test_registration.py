"""Transformers knows Trellis's models whichever of the two is imported first, and neither imports the other."""

import json
import subprocess
import sys
import warnings

import pytest
import torch
from torch.testing import assert_close

import trellis
from trellis.hf import registration
from trellis.text import WordTokenizer

from .models import dense


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    dense().save_pretrained(folder, WordTokenizer(["<unk>", "<eos>", "a", "b", "c"]))
    return folder


def told(code: str, *arguments) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


LOADED = """
config, model = AutoConfig.from_pretrained(sys.argv[1]), AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(config.model_type, type(model).__name__, *AutoTokenizer.from_pretrained(sys.argv[1])("b a")["input_ids"])
"""
ANSWER = ["trellis_hmm", "TrellisForCausalLM", "3", "2"]


def test_trellis_first_and_it_imports_neither_pytorch_nor_transformers(folder):
    before = "import sys, trellis; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
    # PreTrainedModel's module imports the table halfway through its own import, when no model can be registered.
    after = "from transformers.modeling_utils import PreTrainedModel\n"
    names = "from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer\n"
    assert told(before + after + names + LOADED, folder) == ANSWER


def test_transformers_first(folder):
    code = "import sys\nfrom transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer\nimport trellis\n"
    assert told(code + LOADED, folder) == ANSWER


def test_transformers_need_not_be_there():
    code = """
import sys
sys.modules["transformers"] = None
import trellis
print(trellis.__version__)
try:
    from trellis.hf import TrellisConfig
except ImportError:
    print("refused")
"""
    assert told(code) == [trellis.__version__, "refused"]


def test_watching_twice_watches_once(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(registration, "TABLE", "transformers.no_such_module")
    registration.watch()
    registration.watch()
    watching = [finder for finder in sys.meta_path if isinstance(finder, registration._Watching)]
    assert len(watching) == 1
    assert watching[0].find_spec("json", None) is None
    assert watching[0].find_spec("transformers.no_such_module", None) is None
    assert watching[0] not in sys.meta_path  # it has seen what it waited for


def test_a_transformers_that_cannot_be_told_goes_on_and_a_warning_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "trellis.hf.configuration", None)
    with pytest.warns(UserWarning, match=r"cannot be told of Trellis's models.*install transformers 5"):
        registration._register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.undo()
        registration._register()  # and again, which changes nothing


def test_every_kind_that_has_a_model_type_of_ours_is_known():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from trellis.hf.configuration import KINDS
    from trellis.models import registry

    assert {*KINDS, "transformer"} == set(registry.KINDS)  # which transformers knows as a Llama
    assert {f"trellis_{kind}" for kind in KINDS} <= set(CONFIG_MAPPING.keys())


def test_the_folder_of_a_network_is_a_causal_model_too(tmp_path):
    from transformers import AutoModelForCausalLM

    from trellis.models.lstm import LSTM, LSTMConfig

    model = LSTM(LSTMConfig(5, width=4, layers=1), seed=0).eval()
    model.save_pretrained(tmp_path / "lstm")
    assert json.loads((tmp_path / "lstm" / "config.json").read_text())["model_type"] == "trellis_lstm"
    ids_BT = torch.tensor([[1, 4, 0], [2, 2, 3]])
    with torch.no_grad():
        logits_BTV = AutoModelForCausalLM.from_pretrained(tmp_path / "lstm")(ids_BT).logits
        _, state = model.score(ids_BT)
        assert_close(logits_BTV[:, -1].log_softmax(-1), model.next_token(state))
