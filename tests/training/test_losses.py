"""Workers of torchrun that die at the worst moments: the run ends with the same bits, and nobody is left behind."""

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from .runs import assert_same_run

MOMENTS = 9  # at which workers are killed, in losses.py


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all cases, and what was said in each."""
    folder, mark = tmp_path_factory.mktemp("losses"), uuid.uuid4().hex
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TRELLIS_MARK": mark}
    # PyTorch's warnings in C++ are written in pieces, which end up within the lines of other processes.
    environment = os.environ | own | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    script = str(Path(__file__).with_name("losses.py"))
    with (folder / "said.txt").open("wb") as said:
        subprocess.run([sys.executable, script, str(folder)], stdout=said, stderr=said, check=False, env=environment)
    cases = re.split(r"^begin (.+)\n", (folder / "said.txt").read_text(), flags=re.MULTILINE)
    return folder, mark, dict(zip(cases[1::2], cases[2::2], strict=True))


def ours(said):
    """What Trellis said, and not torchrun."""
    theirs = re.compile(r"[EW]\d{4} |(\[rank\d\]:)?\[[EW]\d{4} |worker |end ")
    return [line for line in said.splitlines() if not theirs.match(line)]


@pytest.mark.slow  # a dozen starts of two processes, once for all
def test_killed_at_the_worst_moments_a_run_ends_with_the_same_bits(runs):
    folder, _, said = runs
    assert "end undisturbed 0" in said["undisturbed"]
    assert "end killed 0" in said["killed"], said["killed"]
    assert len(re.findall("^worker", said["killed"], re.MULTILINE)) == 2 * (MOMENTS + 1)
    assert_same_run(folder / "killed", folder / "undisturbed")
    assert [path.name for path in (folder / "killed" / "run").glob(".*")] == [".run.lock"]


@pytest.mark.slow
def test_each_loss_is_told_in_two_lines(runs):
    told = [line for line in ours(runs[2]["killed"]) if "validation perplexity" not in line]
    lost = re.compile(
        rf"the process of rank (\d) was lost: torchrun starts all processes again, restart (\d) of {MOMENTS}; if it "
        "cannot, run the same command with --resume."
    )
    losses = {int(match[2]): int(match[1]) for line in told if (match := lost.fullmatch(line))}
    # The first died before anybody knew of it, the last when nobody needed it. When they do not learn, torchrun may end
    # the others before they have said what they know.
    assert losses.items() <= {2: 0, 3: 1, 4: 0, 5: 0, 6: 0, 7: 1, 8: 1}.items()
    assert {3, 4, 5, 6, 7} <= losses.keys()
    went_on = [re.sub(", in .*", "", line) for line in told if "going on" in line]
    beginning = "going on from the beginning, without a checkpoint"
    assert went_on[:6] == [beginning] * 3 + ["going on from update 8 of 12"] * 3
    assert went_on[6] in went_on[5::2]  # the first process may have written its last checkpoint or not
    assert went_on[7:] == ["going on from update 12 of 12"]
    assert [line for line in told if not (lost.fullmatch(line) or "going on" in line)] == []
    assert len(told) == len(losses) + len(went_on)


@pytest.mark.slow
def test_without_restarts_a_loss_is_one_sentence(runs):
    said = runs[2]["no restarts"]
    assert ours(said) == ["error: the process of rank 1 was lost: run the same command with --resume to go on."]
    assert re.search("^end no restarts (2|-9)$", said, re.MULTILINE)  # the survivor's code, or that of who was killed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell processes of their parent's death")
def test_workers_die_with_the_torchrun_that_started_them(runs):
    _, mark, said = runs
    assert len(re.findall("^worker", said["agent"], re.MULTILINE)) == 2
    assert "end agent" not in said["agent"]
    deadline = time.monotonic() + 20
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def marked(mark):
    """Processes that were started with a mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes())
        except OSError:
            continue
    return found
