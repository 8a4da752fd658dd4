"""The shipped configurations: found by name wherever Trellis is installed, and each of them sound."""

from pathlib import Path

import pytest

import trellis
from trellis import configs
from trellis.config import load


@pytest.mark.parametrize("name", configs.names())
def test_a_shipped_config_is_sound_and_says_how_it_is_run(name):
    path = configs.shipped(name)
    assert path == Path(trellis.__file__).parent / "configs" / f"{name}.yaml"
    assert load(path).folder == Path("runs") / name
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(f"trellis train {name}" in line for line in head)


def test_there_are_shipped_configs():
    assert set(configs.names()) >= {"ptb-scalar", "ptb-low-rank", "lee"}
    assert configs.names() == sorted(configs.names())


@pytest.mark.parametrize("name", ["", "ptb", "../lee", "lee.yaml", "configs/lee", "LEE"])
def test_what_is_not_shipped_is_not_found(name):
    assert configs.shipped(name) is None
