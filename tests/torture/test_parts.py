"""A short run of every part, and what the parts do."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch

from torture import damage, hostile
from torture.files import _damage, _files
from torture.kernels import note
from torture.kills import Trigger
from torture.outcomes import HarmError
from torture.server import Command, run
from torture.trial import Trial
from torture.workshop import Workshop
from trellis.ops import library

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # commands of every part
def test_a_short_run_tries_every_part_and_nothing_comes_out_badly(tmp_path):
    from torture.__main__ import PARTS

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    options = ["--minutes", "0", "--seed", "1", "--quiet", "--parts", *PARTS, "--kept", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "torture", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row[1].strip(): row for row in (line.split("|") for line in done.stdout.splitlines()[2:])}
    assert rows.keys() == {*PARTS, "all"}
    assert all(int(row[2].replace(",", "")) >= 1 and row[5].strip() == "0" for row in rows.values())
    assert not list(tmp_path.iterdir())


def test_every_native_kernel_is_among_the_operations_that_are_called(monkeypatch):
    if not library.PATH.exists():
        pytest.skip("the native kernels were not built")
    seen, real = set(), library._library()

    class Listening:
        def __getattr__(self, name):
            seen.add(name)
            return getattr(real, name)

    monkeypatch.setattr(library, "_library", Listening)
    note()
    source = (ROOT / "src" / "native" / "api.cpp").read_text("utf-8")
    assert seen == {f"trellis_{name}" for name in re.findall(r"int trellis_(\w+)\(const", source)}


def test_a_batch_names_the_call_that_crashed(tmp_path):
    from torture.batches import batch

    def prepare():
        def draw(random):
            number = random.random()
            return f"a call of {number}", lambda: os.abort() if number > 0.9 else None

        return draw

    workshop = Workshop(tmp_path / "workshop", 0)
    trial = Trial(workshop, "x", 0, tmp_path / "x")
    trial.folder.mkdir()
    with pytest.raises(HarmError, match="call ") as fell:
        batch(trial, prepare, lambda error: False, 100)
    assert fell.value.kind == "crash"
    number = int(re.match(r"call (\d+)", fell.value.why)[1])
    assert sum(fell.value.before.values()) == number
    again = Trial(workshop, "x", 0, tmp_path / "y", call=number)
    again.folder.mkdir()
    with pytest.raises(HarmError, match=f"call {number}: a call of .*: signal 6"):
        batch(again, prepare, lambda error: False, 100)


def test_a_batch_tells_refusals_from_tracebacks(tmp_path):
    from torture.batches import batch

    def fails(kind):
        raise kind("no")

    def prepare():
        return lambda random: ("a call", lambda: fails(random.choice((KeyError, ValueError))))

    trial = Trial(Workshop(tmp_path / "workshop", 0), "x", 0, tmp_path / "x")
    trial.folder.mkdir()
    with pytest.raises(HarmError, match="KeyError") as fell:
        batch(trial, prepare, lambda error: isinstance(error, ValueError), 20)
    assert (fell.value.kind, sum(fell.value.before.values()) + 1) == ("traceback", 20)
    assert fell.value.before["refused"] > 2
    (trial.folder / "bad.jsonl").unlink()
    assert batch(trial, prepare, lambda error: True, 20) == {"refused": 20}


def test_a_process_is_killed_at_the_change_of_files_that_was_chosen(tmp_path):
    def work():
        for name in "abcde":
            Path(name).write_text(name)
        Path("a").rename("z")
        return 0

    count = Trigger()
    assert run(Command((), tmp_path, function=work, before=count)).code == 0
    assert count.seen == 6
    for path in tmp_path.iterdir():
        path.unlink()
    killed = run(Command((), tmp_path, function=work, before=Trigger(3, lambda: os.kill(os.getpid(), 9))))
    assert killed.code == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


WAYS = sorted({*damage.ANY, damage.edit_json, damage.edit_header}, key=lambda way: way.__name__)


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_damage_is_done_and_said(way, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "kept.txt").write_text("kept")
    changed = 0
    for seed in range(30):
        folder = tmp_path / str(seed) / "model"
        folder.mkdir(parents=True)
        header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        contents = {
            "model.safetensors": struct.pack("<Q", len(header)) + header + b"12345678",
            "config.json": b'{"a": [1, 2]}',
        }
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        name = "config.json" if way is damage.edit_json else "model.safetensors"
        assert way(folder / name, Random(seed))
        left = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        changed += left != contents
    assert changed >= 25
    assert [path.read_text() for path in (tmp_path / "precious").iterdir()] == ["kept"]


def test_hostile_tensors_differ_from_good_ones():
    good = torch.arange(6.0).reshape(2, 3)
    seen = [hostile.hostile_tensor(good, Random(seed)) for seed in range(100)]
    assert torch.equal(good, torch.arange(6.0).reshape(2, 3))
    assert {tensor.dtype for tensor in seen} > {torch.float32, torch.float64, torch.int64}
    assert {tensor.dim() for tensor in seen} == {1, 2, 3}
    assert any(bool(tensor.isnan().any()) for tensor in seen if tensor.is_floating_point())
    assert any(not tensor.is_contiguous() for tensor in seen)
    ids = torch.arange(6)
    assert any(int(hostile.hostile_tensor(ids, Random(seed)).sum()) < 0 for seed in range(200))


def test_files_behind_a_link_are_left_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "config.json").write_text("{}")
    (tmp_path / "run").symlink_to(tmp_path / "precious", target_is_directory=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    found = _files([tmp_path / "run", tmp_path / "run" / "config.json", tmp_path / "model"])
    assert found == [tmp_path / "model" / "config.json"]


def test_several_damages_leave_a_manifest_there_and_other_folders_alone(tmp_path):
    gone = 0
    for seed in range(150):
        folder = tmp_path / str(seed)
        for name, file in (("precious", "kept.txt"), ("model", "config.json"), ("model", "manifest.json")):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_text('{"a": 1}')
        (folder / "model" / "loop").symlink_to(folder / "model" / "loop")
        trial = SimpleNamespace(random=Random(seed), folder=folder, what="")
        _damage(trial, "model")
        assert [path.name for path in (folder / "precious").iterdir()] == ["kept.txt"]
        manifest = folder / "model" / "manifest.json"
        if not manifest.exists() and not (folder / "model").is_symlink() and not manifest.is_symlink():
            gone += 1
            assert ";" not in trial.what  # the only damage
    assert gone > 2
