import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trellis.errors import TrellisError
from trellis.training import checkpoints, distributed
from trellis.training.distributed import World

from .runs import SHARED, STOPPED, diary, run, settings, shared_model, tensors


@pytest.fixture(scope="module")
def two():
    """What two processes made of every case, and what they said."""
    script = str(Path(__file__).with_name("processes.py"))
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]  # standalone: a port nobody else has
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *launch, script, folder],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        yield Path(folder), done.stdout


def assert_close_runs(a, b):
    """The diary's numbers and the newest weights, but for the order of sums."""
    ours, theirs = diary(a), diary(b)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow  # starts two processes, once for all
@pytest.mark.parametrize("case", SHARED)
def test_two_processes_learn_what_one_does(case, two, tmp_path):
    folder, _ = two
    run(tmp_path, settings(**SHARED[case]), make=shared_model(case))
    assert_close_runs(folder / case, tmp_path)


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on(two, tmp_path):
    folder, said = two
    assert said.count("resumed: stopped after update 9 of 18") == 2
    run(tmp_path, settings(**STOPPED))
    assert_close_runs(folder / "resumed", tmp_path)


@pytest.mark.slow
def test_what_two_began_one_can_finish(two, tmp_path):
    folder, _ = two
    begun = folder / "left to one"
    assert [path.name for path in checkpoints.found(begun / "run")][-1] == "checkpoint-9"
    run(begun, settings(**STOPPED), resume=True)
    run(tmp_path, settings(**STOPPED))
    assert_close_runs(begun, tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 7])
def test_shares_are_every_row_once_and_fair(size, rows):
    shares = [list(range(rows))[World(rank, size).share(rows)] for rank in range(size)]
    assert list(itertools.chain(*shares)) == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("device", "way"), [("cpu", "gloo"), ("cuda:1", "nccl"), ("mps", "gloo")])
def test_processes_meet_where_they_compute_if_that_is_a_gpu_of_nvidias(device, way, monkeypatch):
    called = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: called.append(str(device)))
    monkeypatch.setattr(distributed.atexit, "register", lambda function: None)
    monkeypatch.setattr(distributed, "_join", called.append)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
    here = distributed.world(torch.device(device))
    assert called == (["cuda:1", "nccl"] if way == "nccl" else ["gloo"])
    assert here == World(1, 2, torch.device(device if way == "nccl" else "cpu"))


def failing(*_, **__):
    raise RuntimeError("[gloo] Connection closed by peer\nframe #0: and so on")


def test_a_group_that_fails_is_one_sentence_and_leaves_time_to_say_who_was_lost(monkeypatch):
    slept = []
    monkeypatch.setattr(distributed.time, "sleep", slept.append)
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), 0, 2)]))
    monkeypatch.setattr(distributed, "gather", lambda *_: ("name", {}))
    monkeypatch.setattr(distributed, "Wires", lambda *_: None)
    monkeypatch.setattr(distributed.dist, "init_process_group", failing)
    monkeypatch.setattr(distributed.dist, "all_reduce", failing)
    sentence = "the processes lost each other .*closed by peer.: run the same command with --resume.$"
    with pytest.raises(TrellisError, match=sentence):
        distributed._join("gloo")
    with pytest.raises(TrellisError, match=sentence):
        World(0, 2).sum(1.0)
    assert slept == [5.0, 5.0]


def test_a_store_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(distributed, "rendezvous", failing)
    monkeypatch.setenv("MASTER_ADDR", "first")
    monkeypatch.setenv("MASTER_PORT", "29400")
    with pytest.raises(TrellisError, match="torchrun cannot be reached at first:29400: see that it runs there"):
        distributed._join("gloo")


def test_one_process_meets_nobody(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert distributed.world(torch.device("cpu")) == World()


def test_alone_a_process_is_its_own_sum():
    tensor = torch.tensor([1.0, 2.0])
    World().sum_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert World().sum(1.5, 2) == (1.5, 2.0)
    assert World().chief
    assert not World(1, 2).chief
