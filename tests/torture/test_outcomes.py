"""The judge sees every kind of harm, and only harm."""

import os
import signal
import sys
import time

import pytest

from torture.outcomes import (
    BAD,
    KINDS,
    REFUSED,
    UNHARMED,
    HarmError,
    ended_well,
    no_numbers,
    refuse_others,
    refuse_partials,
    same,
)
from torture.server import Command, Ran, run
from torture.session import Session
from torture.trial import Trial, attempt, refusal
from torture.workshop import Workshop


def say(*lines, code=2):
    for line in lines:
        print(line, file=sys.stderr)
    return code


def tracebacks():
    raise KeyError("x")


def crashes():
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves_a_process():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return 0


def grows():
    bytearray(1 << 40)


COMMANDS = {
    "traceback": tracebacks,
    "crash": crashes,
    "hang": lambda: time.sleep(60),
    "orphan": leaves_a_process,
    "unexplained": lambda: 1,
}
MUMBLED = {
    "nothing said": (),
    "no sentence": ("error: it broke",),
    "two errors": ("error: one.", "error: two."),
    "something behind it": ("error: one.", "and more"),
    "no error": ("all is well.",),
}


def ran(tmp_path, function, **given):
    return run(Command((), tmp_path, function=function, **{"limit": 60.0, **given}))


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_that_ends_badly_is_seen(kind, tmp_path):
    with pytest.raises(HarmError) as fell:
        ended_well(ran(tmp_path, COMMANDS[kind], limit=0.3 if kind == "hang" else 60.0))
    assert fell.value.kind == kind


@pytest.mark.parametrize("lines", MUMBLED.values(), ids=MUMBLED)
def test_a_refusal_is_one_sentence_and_the_last_word(lines, tmp_path):
    with pytest.raises(HarmError) as fell:
        ended_well(ran(tmp_path, lambda: say(*lines)))
    assert fell.value.kind == "unexplained"


def test_what_ends_well_or_refuses_is_no_harm(tmp_path):
    assert ended_well(ran(tmp_path, lambda: 0))
    assert not ended_well(ran(tmp_path, lambda: say("on the way", "error: there is no such file: check the path.")))
    assert not ended_well(ran(tmp_path, lambda: say("error: what is that?")))


def test_what_a_sanitizer_finds_is_a_crash(tmp_path):
    for said in ("==7==ERROR: AddressSanitizer: heap-buffer-overflow", "walks.h:7:3: runtime error: out of bounds"):
        with pytest.raises(HarmError) as fell:
            ended_well(ran(tmp_path, lambda said=said: say(said, code=1)))
        assert fell.value.kind == "crash"


def test_memory_is_limited(tmp_path):
    found = ran(tmp_path, grows)
    assert "MemoryError" in found.err


def test_kills_and_requests_to_stop_come_when_they_shall(tmp_path):
    killed = ran(tmp_path, lambda: time.sleep(60), kill_after=0.05)
    assert (killed.code, killed.hung) == (-signal.SIGKILL, False)
    stopped = ran(tmp_path, lambda: time.sleep(60), stop_after=0.05)
    assert ended_well(stopped, stopped=True)
    with pytest.raises(HarmError):
        ended_well(stopped)


def test_a_fresh_process_runs_the_same_command(tmp_path):
    forked, fresh = (run(Command(("--version",), tmp_path, fresh=fresh)) for fresh in (False, True))
    assert (fresh.code, fresh.out) == (forked.code, forked.out) == (0, forked.out)
    assert fresh.out.startswith("trellis ")
    assert run(Command(("nonsense",), tmp_path, fresh=True)).code == 2


def test_answers_that_are_no_numbers_are_seen():
    assert no_numbers("perplexity nan")
    assert no_numbers('{"nats": NaN}')
    assert not no_numbers("the banana of nancy, nan-like <nan> and 'nan'")


def test_answers_are_the_same_to_a_millionth():
    assert same([{"a": 1.0, "b": "x"}], [{"a": 1.0 + 1e-9, "b": "x"}])
    assert not same([{"a": 1.0}], [{"a": 1.0 + 1e-5}])
    assert not same([{"a": 1.0}], [{"a": 1.0, "b": 2}])
    assert not same([1.0], [1.0, 1.0])
    assert not same("1", 1)


def test_what_is_lost_is_named():
    refuse_others({"a": "1", "more": "2"}, {"a": "1"})
    for found in ({}, {"a": "2"}):
        with pytest.raises(HarmError, match="leaves it: a"):
            refuse_others(found, {"a": "1"})


def test_memory_for_what_is_not_there_is_no_refusal():
    assert refusal(Ran(2, "", "error: the file is damaged.", 0.0)) == REFUSED
    with pytest.raises(HarmError) as fell:
        refusal(Ran(2, "", "error: there is not enough memory: ask for fewer states.", 0.0))
    assert fell.value.kind == "memory"


# Parts that do harm, as a session sees them.


def leaves_a_partial(trial):
    (trial.folder / ".run-x.partial").mkdir()
    refuse_partials(trial.folder)
    return UNHARMED


def writes_outside(trial):
    trial.guard()
    trial.run(function=lambda: (trial.folder / "precious" / "kept.txt").write_text("other") and 0)
    trial.look_around()
    return UNHARMED


def prints_nan(trial):
    trial.well(function=lambda: print("perplexity nan") or 0)
    return UNHARMED


def needs_what_is_lost(trial):
    trial.must(function=lambda: say("error: it is gone."))
    return UNHARMED


def is_wrong_itself(trial):
    raise RuntimeError("a loop of links")


HARM = {
    "partial": leaves_a_partial,
    "outside": writes_outside,
    "nan": prints_nan,
    "lost": needs_what_is_lost,
    "unexplained": is_wrong_itself,
}


@pytest.mark.parametrize("kind", HARM)
def test_harm_is_counted_and_kept_with_what_repeats_it(kind, tmp_path):
    session = Session(
        {"bad": (HARM[kind], 1.0)}, Workshop(tmp_path / "workshop", 5), tmp_path / "faults", tmp_path / "kept"
    )
    assert session.one("bad", 3).kind == kind
    tally = session.tallies["bad"].as_dict()
    assert (tally["tried"], tally[kind], tally["worst"][0]["fault"]) == (1, 1, "bad:3")
    assert "--seed 5 --only bad:3" in (tmp_path / "kept" / "bad-3" / "fault.json").read_text()
    assert not (tmp_path / "faults" / "bad-3").exists()


def test_a_session_gives_every_part_a_turn_and_its_share(tmp_path):
    parts = {
        "quick": (lambda trial: time.sleep(0.001) or UNHARMED, 1.0),
        "twice": (lambda trial: time.sleep(0.001) or REFUSED, 2.0),
    }
    session = Session(parts, Workshop(tmp_path / "workshop", 0), tmp_path / "faults", tmp_path / "kept")
    session.run(0.0, quiet=True)
    assert [tally.faults for tally in session.tallies.values()] == [1, 1]
    session.run(0.5, quiet=True)
    assert session.tallies["twice"].seconds > 1.5 * session.tallies["quick"].seconds
    assert session.tallies["twice"].counts == {REFUSED: session.tallies["twice"].faults}


def test_the_same_number_draws_the_same_fault(tmp_path):
    workshop = Workshop(tmp_path / "workshop", 0)
    drawn = [
        Trial(workshop, part, number, tmp_path).random.random()
        for part, number in [("a", 1), ("a", 1), ("a", 2), ("b", 1)]
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_a_batch_is_as_bad_as_its_worst(tmp_path):
    def part(trial):
        raise HarmError("traceback", "call 7: KeyError", {REFUSED: 3, UNHARMED: 4})

    outcome = attempt(part, Trial(Workshop(tmp_path / "workshop", 0), "x", 0, tmp_path / "x"))
    assert (outcome.kind, outcome.counts) == ("traceback", {REFUSED: 3, UNHARMED: 4, "traceback": 1})
    assert outcome.bad


def test_every_kind_has_a_meaning():
    assert (REFUSED, UNHARMED, *BAD) == KINDS
