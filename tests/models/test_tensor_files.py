"""Tensors on disk that are not what they were, or not what they must be, are refused in one sentence."""

import json
import os
import subprocess
import sys

import pytest
import torch

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST, checksum
from trellis.models import HMM, HMMConfig, load_model
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.models.storage import CHECKSUM, WEIGHTS
from trellis.models.tensor_files import Shape, check_finite, numbers_in, read_tensors, write_tensors

from .makers import VOCABULARY, make_kind, random_ids


def told(folder):
    return json.loads((folder / "config.json").read_text())


def tell(folder, **changes):
    about = {name: value for name, value in (told(folder) | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / MANIFEST).unlink(missing_ok=True)


def rewrite(folder, **changes):
    """Other tensors in a saved model, as of an older version: without a manifest."""
    write_tensors(folder / WEIGHTS, read_tensors(folder / WEIGHTS) | changes)
    (folder / MANIFEST).unlink(missing_ok=True)


@pytest.fixture
def saved(tmp_path):
    HMM(HMMConfig(7, 4), seed=0).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_numbers_are_counted_without_reading_them(saved):
    assert numbers_in(saved / WEIGHTS) == 4 + 4 * 4 + 7 * 4


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_weights_may_be_read_by_those_who_may_read_any_new_file(umask, tmp_path):
    before = os.umask(umask)
    try:
        HMM(HMMConfig(7, 4), seed=0).save_pretrained(tmp_path / "model")
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    finally:
        os.umask(before)
    assert modes == {0o666 & ~umask}
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~umask


def test_any_bit_of_the_weights_that_changes_is_found(saved):
    whole = (saved / WEIGHTS).read_bytes()
    for place in range(0, len(whole), 7):
        mutated = bytearray(whole)
        mutated[place] ^= 1 << place % 8
        (saved / WEIGHTS).write_bytes(mutated)
        with pytest.raises(TrellisError, match=r"has changed since it was written|cut short or damaged"):
            load_model(saved)
    (saved / WEIGHTS).write_bytes(whole)
    load_model(saved)


def test_folders_of_older_versions_have_no_manifest_and_load(saved):
    """Some told the checksum of the weights in config.json, which still counts."""
    before = load_model(saved).score(random_ids(2, 5, 7))[0]
    for about in ({}, {CHECKSUM: checksum(saved / WEIGHTS)}):
        tell(saved, **about)
        assert torch.equal(load_model(saved).score(random_ids(2, 5, 7))[0], before)
    tell(saved, **{CHECKSUM: "0" * 64})
    with pytest.raises(TrellisError, match="safetensors has changed since it was written"):
        load_model(saved)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_refused_and_named(number, saved):
    table = read_tensors(saved / WEIGHTS)["transition.table"].clone()
    table[1, 2] = number
    rewrite(saved, **{"transition.table": table})
    with pytest.raises(TrellisError, match=rf"transition.table in .*model holds {number}, which is no number"):
        load_model(saved)


def test_what_is_impossible_may_be_impossible_on_disk_too(saved):
    table = read_tensors(saved / WEIGHTS)["transition.table"].clone()
    table[1, 2] = -torch.inf
    rewrite(saved, **{"transition.table": table})
    assert float(load_model(saved).tables().transition_SS[1, 2]) == 0.0


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_weights_of_networks_are_all_finite(number, tmp_path):
    model = LSTM(LSTMConfig(7, width=4), seed=0)
    with torch.no_grad():
        model.words.vectors[3, 1] = number
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(TrellisError, match=r"words\.vectors in .* holds .*inf|words\.vectors in .* holds nan"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("support", ["brown", "uniform"])
@pytest.mark.parametrize("index", [-1, 10**9])
@pytest.mark.parametrize("name", ["block_V", "states_MK"])
def test_blocks_and_states_that_are_none_are_refused(name, index, support, tmp_path):
    kind = {"support": "uniform", "transition": "low_rank"} if support == "uniform" else {}
    make_kind(torch.float32, **kind).save_pretrained(tmp_path / "model")
    indices = read_tensors(tmp_path / "model" / WEIGHTS)[name].clone()
    indices.view(-1)[2] = index
    rewrite(tmp_path / "model", **{name: indices})
    with pytest.raises(TrellisError, match=f"{name} in .* holds indices that are not from 0 to"):
        load_model(tmp_path / "model")


KNESER_NEY = {
    "keys in another order": lambda t: {"key_2": t["key_2"].flip(0)},
    "no last key": lambda t: {"key_3": t["key_3"][:-1], "kept_3": t["kept_3"][:-1]},
    "fewer shares than keys": lambda t: {"kept_3": t["kept_3"][:-1]},
    "fewer contexts": lambda t: {"left_2": t["left_2"][:-3]},
    "an end outside of the vocabulary": lambda t: {"end": torch.tensor(99)},
    "keys that are no whole numbers": lambda t: {"key_2": t["key_2"].double()},
    "no keys": lambda t: {"key_2": t["key_2"][:0], "kept_2": t["kept_2"][:0]},
}


@pytest.mark.parametrize("change", KNESER_NEY.values(), ids=KNESER_NEY.keys())
def test_tables_that_lead_outside_of_each_other_are_refused(change, tmp_path):
    model = KneserNey.fit(KneserNeyConfig(VOCABULARY, order=3), random_ids(1, 99, VOCABULARY)[0].numpy(), quiet=True)
    model.save_pretrained(tmp_path / "model")
    load_model(tmp_path / "model")
    rewrite(tmp_path / "model", **change(read_tensors(tmp_path / "model" / WEIGHTS)))
    with pytest.raises(TrellisError, match=r"the tables in .* do not fit its config\.json"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [{"states": 45_000}, {"vocab_size": 10**9}, {"states": 100_000},
     {"states": 4000, "vocab_size": 4000}, {"encoder": "residual", "start": "low_rank", "layers": 10**9}],
    ids=lambda change: " ".join(change),
)  # fmt: skip
def test_a_shape_that_the_file_cannot_fill_takes_no_memory(change, saved):
    tell(saved, **change)
    code = f"""
import resource
from trellis import TrellisError
from trellis.models import load_model
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_model({str(saved)!r})
except TrellisError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    said, megabytes = done.stdout.splitlines()
    assert "do not fit" in said
    assert int(megabytes) < 60


def test_shapes_tell_counts_from_measures():
    assert str(Shape.of(torch.zeros(2, 3))) == str(Shape.of(torch.zeros(2, 3, dtype=torch.float64))) == "2×3"
    assert str(Shape.of(torch.zeros(2, dtype=torch.int64))) == "2 of int64"
    assert str(Shape.of(torch.tensor(1.0))) == "one number"


def test_whole_numbers_are_always_finite():
    check_finite({"counts": torch.tensor([1, 2])}, "memory")
