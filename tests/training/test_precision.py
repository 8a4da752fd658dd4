import pytest
import torch

from trellis.errors import TrellisError
from trellis.text import BATCHINGS
from trellis.training import precision

from ..pretend_device import pretend_device
from .runs import METHODS, diary, run, settings


@pytest.fixture
def _fresh():
    precision.bf16_works.cache_clear()
    yield
    precision.bf16_works.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_a_processor_that_dies_of_bf16_is_found_out_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "PROBE", "import os; os.abort()")
    with pytest.raises(TrellisError, match=r"bf16 products crash on this processor: set training.precision=float32"):
        run(tmp_path, settings(precision="bf16"))
    assert not (tmp_path / "run").exists()
    precision.check_precision("float32")  # asks nobody


@pytest.mark.usefixtures("_fresh")
def test_a_processor_that_survives_is_asked_once(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "PROBE", f"open({str(tmp_path / 'asked')!r}, 'a').write('x')")
    for _ in range(3):
        precision.check_precision("bf16")
    assert (tmp_path / "asked").read_text() == "x"


@pytest.mark.usefixtures("_fresh")
def test_the_processor_is_not_asked_for_what_a_gpu_will_do(monkeypatch):
    monkeypatch.setattr(precision, "PROBE", "import os; os.abort()")
    precision.check_precision("bf16", torch.device("cuda", 1))


def test_bf16_where_there_are_no_such_products_is_one_sentence(tmp_path):
    sentence = r"^there are no bf16 products on lazy:0: set training\.precision=float32\.$"
    with pretend_device() as device:
        with pytest.raises(TrellisError, match=sentence):
            precision.check_precision("bf16", device)
        with pytest.raises(TrellisError, match=sentence):
            run(tmp_path, settings(precision="bf16", device=str(device)))
        precision.check_precision("float32", device)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("method", METHODS)
def test_bf16_learns_what_float32_does(method, batching, tmp_path):
    if not precision.bf16_works():
        pytest.skip("bf16 products crash on this processor")
    losses = {}
    for kind in ("float32", "bf16"):
        run(tmp_path / kind, settings(precision=kind, method=method, batching=batching, epochs=4.0))
        losses[kind] = [line["loss"] for line in diary(tmp_path / kind) if "loss" in line]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bf16"] != losses["float32"]


@pytest.mark.usefixtures("_fresh")
def test_a_torch_that_lies_where_the_user_works_is_not_what_is_asked(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'run by us')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(precision, "PROBE", "import torch")
    assert precision.bf16_works()
    assert not (tmp_path / "run by us").exists()
