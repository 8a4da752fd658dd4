import json

import pytest

from trellis import ops
from trellis.cli import main


def test_the_doctor_says_what_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kernels"], found["reason"]) == (ops.status().level, ops.status().reason)
    assert all(rate > 0 for rate in found["gigaflops_a_thread"].values())
    assert main(["doctor"]) == 0
    assert found["reason"] in " ".join(capsys.readouterr().out.split())


def test_the_doctor_says_when_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with ops.using(None):
        assert main(["doctor"]) == 0
    assert "PyTorch alone" in capsys.readouterr().out
