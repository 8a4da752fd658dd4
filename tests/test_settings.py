from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest

from trellis.errors import TrellisError
from trellis.settings import build, check, closest, likeness, nearest


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    steps: int = 3


@dataclass(frozen=True)
class Outer:
    name: str
    size: int
    kind: Literal["small", "large"] = "small"
    quiet: bool = False
    limit: int | None = None
    either: int | str = 0
    rates: tuple[float, ...] = (1.0,)
    files: list[str] = field(default_factory=list)
    inner: Inner = Inner()


REQUIRED = {"name": "x", "size": 1}


def test_nothing_given_is_the_default():
    assert build(Outer, REQUIRED) == Outer("x", 1)


def test_every_type_finds_its_place():
    given = {
        "name": "x",
        "size": 2,
        "kind": "large",
        "quiet": True,
        "limit": 7,
        "either": "word",
        "rates": [1, 0.5],
        "files": ["a", "b"],
        "inner": {"rate": 1e-3, "steps": 5},
    }
    found = build(Outer, given)
    assert found == Outer("x", 2, "large", True, 7, "word", (1.0, 0.5), ["a", "b"], Inner(1e-3, 5))
    assert [type(rate) for rate in found.rates] == [float, float]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"inner": {"rate": "1e-3"}}, ("inner.rate", 1e-3)),  # as YAML reads it
        ({"inner": {"rate": 1}}, ("inner.rate", 1.0)),
        ({"inner": {"steps": 5.0}}, ("inner.steps", 5)),
        ({"limit": None}, ("limit", None)),
        ({"limit": 4.0}, ("limit", 4)),
    ],
)
def test_numbers_are_read_as_meant(values, expected):
    found = build(Outer, REQUIRED | values)
    for name in expected[0].split("."):
        found = getattr(found, name)
    assert found == expected[1]
    assert type(found) is type(expected[1])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"sise": 1}, r"unknown setting 'sise': did you mean 'size'\?"),
        ({"inner": {"stops": 1}}, r"unknown setting 'inner.stops': did you mean 'steps'\?"),
        ({"zzz": 1}, "unknown setting 'zzz': choose from either, files, inner, kind, limit, name, quiet, rates, size"),
        ({1: 1}, "unknown setting '1': choose from"),
        ({"kind": "smal"}, r"'kind' cannot be 'smal': did you mean 'small'\?"),
        ({"kind": 4}, "'kind' cannot be 4: choose from large, small"),
        ({"size": 1.5}, r"'size' must be a whole number, not 1\.5"),
        ({"size": True}, "'size' must be a whole number, not True"),
        ({"size": "1"}, "'size' must be a whole number, not '1'"),
        ({"size": None}, "'size' must be a whole number, not None"),
        ({"limit": "none"}, "'limit' must be a whole number, not 'none'"),
        ({"quiet": 1}, "'quiet' must be true or false, not 1"),
        ({"name": 1}, "'name' must be text, not 1"),
        ({"inner": {"rate": "fast"}}, r"'inner\.rate' must be a number, not 'fast'"),
        ({"inner": {"rate": True}}, r"'inner\.rate' must be a number, not True"),
        ({"inner": 3}, "'inner' must be a group of settings, not 3"),
        ({"inner": None}, "'inner' must be a group of settings, not None"),
        ({"rates": 0.5}, r"'rates' must be a list, not 0\.5"),
        ({"rates": "0.5"}, r"'rates' must be a list, not '0\.5'"),
        ({"rates": ["a"]}, "'rates' must be a number, not 'a'"),
    ],
)
def test_what_does_not_fit_is_explained(values, sentence):
    with pytest.raises(TrellisError, match=sentence):
        build(Outer, REQUIRED | values)


def test_what_is_lacking_is_named():
    with pytest.raises(TrellisError, match="the settings 'Outer' lack 'size'"):
        build(Outer, {"name": "x"})
    with pytest.raises(TrellisError, match="the settings 'model' lack 'name' and 'size'"):
        build(Outer, {}, "model.")


def test_nearest_suggests_or_lists():
    assert nearest("steam", ["streams", "windows"]) == "did you mean 'streams'?"
    assert nearest("qqq", ["b", "a"]) == "choose from a, b."


def test_the_closest_is_alike_enough_or_none():
    assert closest("steam", ["streams", "windows"]) == "streams"
    assert closest("steam", ["streams", "windows"], at_least=0.95) is None
    assert closest("steam", []) is None


def test_likeness_is_between_nothing_and_the_same():
    assert (likeness("abc", "abc"), likeness("abc", "xyz")) == (1.0, 0.0)
    assert 0 < likeness("lrr", "lr") < 1


@dataclass(frozen=True)
class Checked:
    size: int = 1
    rate: float | None = None
    kind: Literal["small", "large"] = "small"
    parts: list[int] = field(default_factory=list)
    inner: Inner = Inner()

    def __post_init__(self):
        check(self, "here.")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"size": 1.5}, r"'here\.size' must be a whole number, not 1\.5"),
        ({"size": True}, r"'here\.size' must be a whole number, not True"),
        ({"rate": "fast"}, r"'here\.rate' must be a number, not 'fast'"),
        ({"kind": "larg"}, r"'here\.kind' cannot be 'larg': did you mean 'large'"),
        ({"parts": 3}, r"'here\.parts' must be a list, not 3"),
        ({"parts": ["a"]}, r"'here\.parts' must be a whole number, not 'a'"),
    ],
)
def test_settings_made_by_hand_are_checked_too(values, sentence):
    with pytest.raises(TrellisError, match=sentence):
        Checked(**values)


def test_settings_made_by_hand_hold_what_would_be_read_from_a_file():
    made = Checked(size=np.int16(3), rate=2, parts=(np.int64(1), 2))
    assert made == Checked(3, 2.0, parts=[1, 2])
    assert [type(made.size), type(made.rate), type(made.parts[0])] == [int, float, int]
    assert Checked(inner=Inner(rate=0.5)).inner.rate == 0.5
