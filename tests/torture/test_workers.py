"""What came of a run that lost a worker or a machine is judged by its bits, its exit codes and what it said."""

from types import SimpleNamespace

import pytest

from torture.workers import Losses, _judge

WHOLE = {"best/model.safetensors": "0"}
LATE = SimpleNamespace(returncode=1)  # a machine that came back, and failed


def run(*codes, said="", digest=WHOLE, late=None, ended=True):
    nodes = [SimpleNamespace(returncode=code) for code in codes] + ([late] if late else [])
    return SimpleNamespace(
        nodes=nodes, late=late, ended=lambda: ended, orphans=lambda: 0, said=lambda: said, digest=lambda: digest
    )


KILLED = "(exitcode: -9)"
CASES = {
    "as undisturbed": (run(0, said=KILLED), {}, {"same": 1}),
    "other bits": (run(0, said=KILLED, digest={}), {}, {"different": 1}),
    "failed": (run(1, said=KILLED + "Traceback"), {}, {"failed": 1, "tracebacks": 1}),
    "did not end": (run(None, said=KILLED, ended=False), {}, {"hung": 1}),
    "may stop": (run(1, said="Traceback"), {"machine_lost": True, "may_stop": True}, {"stopped": 1}),
    "came back when all was done": (run(0, said="Traceback", late=LATE), {"machine_lost": True}, {"same": 1}),
    "came back to others that failed": (
        run(1, said="Traceback", late=LATE), {"machine_lost": True}, {"failed": 1, "tracebacks": 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_came_of_a_run(case):
    made, given, wanted = CASES[case]
    assert _judge(made, Losses(), WHOLE, **given) == Losses(tried=1, kills=1, **wanted)


def test_a_run_that_ended_before_it_lost_anything_does_not_count():
    assert _judge(run(0), Losses(), WHOLE) == Losses()
