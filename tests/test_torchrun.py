"""What torchrun says of itself, and processes that end with it."""

import subprocess
import sys
import textwrap

import pytest

from trellis.torchrun import job, restarts

PARENT = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", '''
    from trellis.torchrun import end_with_torchrun
    end_with_torchrun()
    print("ready", flush=True)
    import time
    time.sleep(60)
    '''])
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell processes of their parent's death")
@pytest.mark.parametrize("started_by_torchrun", [True, False])
def test_a_process_ends_with_its_torchrun_but_not_with_another_parent(started_by_torchrun, monkeypatch):
    if started_by_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")
    else:
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    source = textwrap.dedent(PARENT).replace("time.sleep(60)", f"time.sleep({60 if started_by_torchrun else 0.5})")
    source = source.replace("sleep(0.5)", "sleep(0.5); print('alive', flush=True)")
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        # The child holds the pipe: what is left in it ends when the child does.
        assert parent.stdout.read() == ("" if started_by_torchrun else "alive\n")


def test_a_job_has_a_name_if_it_was_given_one(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert job() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun's own word for it
    assert job() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "night-7")
    assert job() == "night-7"


def test_restarts_are_as_torchrun_counts_them(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS", raising=False)
    assert restarts() == (0, 0)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert restarts() == (2, 3)
