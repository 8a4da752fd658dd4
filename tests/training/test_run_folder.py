"""A run's folder: one process at a time, nobody else's files, and nothing outside of it."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from trellis.errors import TrellisError
from trellis.training import run_folder
from trellis.training.run_folder import HEAD, claimed, clear

from .runs import run, settings

HERE = Path(__file__).parent


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def precious(tmp_path):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    (folder / "place.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["checkpoint-13", "checkpoint-1", "best", "restart-1", "tensorboard"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_link_to_a_folder_is_refused_and_what_it_leads_to_stays(resume, name, precious, tmp_path):
    run(tmp_path, settings(epochs=0.3))
    link = tmp_path / "run" / name
    if link.is_dir():
        link.rename(tmp_path / "aside")
    link.symlink_to(precious, target_is_directory=True)
    before = contents(precious)
    with pytest.raises(TrellisError, match=rf"{name} is a link, by which a run would|holds a run already"):
        run(tmp_path, settings(), resume=resume)
    assert contents(precious) == before
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", ".run.lock"])
def test_a_link_to_a_file_is_not_written_through(name, precious, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(precious / "thesis.txt")
    with pytest.raises(TrellisError, match="is a link"):
        run(tmp_path, settings())
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_links_in_the_places_of_partial_files_are_not_followed(precious, tmp_path):
    run(tmp_path, settings(epochs=0.3))
    names = [f".metrics.jsonl-{os.getpid()}.partial", ".checkpoint-9-abc.partial", ".best-abc.old.partial"]
    for name, target in zip(names, ("thesis.txt", ".", "."), strict=True):
        (tmp_path / "run" / name).symlink_to(precious / target)
    before = contents(precious)
    run(tmp_path, settings(epochs=0.3), resume=True)
    assert contents(precious) == before
    assert not any((tmp_path / "run" / name).is_symlink() for name in names)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", ".x-1.partial"])
def test_a_folder_that_is_not_a_run_keeps_its_files(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine: 1\n")
    with pytest.raises(TrellisError, match=f"is not the folder of a run, and its {name} would be lost"):
        run(tmp_path, settings())
    assert contents(tmp_path / "run") == {name: b"mine: 1\n"}


def test_files_that_are_in_nobodys_way_stay_beside_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").write_text("mine")
    run(tmp_path, settings(epochs=0.3))
    assert (tmp_path / "run" / "log.txt").read_text() == "mine"


def test_a_run_that_was_killed_before_its_first_checkpoint_may_begin_again(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(f"{HEAD} And so on.\n")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"update": 1}\n')
    run(tmp_path, settings(epochs=0.3))
    assert '{"update": 1}\n' not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_only_what_a_run_makes_is_cleared(tmp_path):
    for name in (".checkpoint-3-abc.partial", ".best-abc.partial", ".metrics.jsonl-7.partial", ".others-1.partial"):
        (tmp_path / name).mkdir()
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".others-1.partial"]


def begin(folder, error, *names):
    """Claim a folder, leave these files there, and end with the error."""
    with claimed(folder):
        for name in names:
            (folder / name).write_text("some")
        raise error


@pytest.mark.parametrize(
    ("error", "names", "left"),
    [
        (TrellisError, [], set()),
        (TrellisError, ["config.yaml"], set()),
        (TrellisError, ["config.yaml", "metrics.jsonl"], {".run.lock", "config.yaml", "metrics.jsonl"}),
        (TrellisError, ["thesis.txt"], {".run.lock", "thesis.txt"}),
        (KeyboardInterrupt, [], set()),
        (KeyboardInterrupt, ["config.yaml"], {".run.lock", "config.yaml"}),
    ],
)
def test_a_refused_run_leaves_no_folder_and_an_interrupted_one_its_settings(error, names, left, tmp_path):
    with pytest.raises(error):
        begin(tmp_path / "run", error, *names)
    assert contents(tmp_path / "run").keys() == left
    assert (tmp_path / "run").exists() == bool(left)


def test_a_refused_run_leaves_a_folder_that_was_there(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(TrellisError):
        begin(tmp_path / "run", TrellisError)
    assert (tmp_path / "run").exists()


def test_a_thread_may_claim_its_folder_again(tmp_path):
    with claimed(tmp_path / "run"), claimed(tmp_path / "run"):
        pass
    with claimed(tmp_path / "run"):
        pass


def child(folder, *, wait):
    """Another process that trains in the folder; with `wait`, it stands still at its first update until told."""
    code = f"""
        import sys
        sys.path.insert(0, {str(HERE)!r})
        from pathlib import Path
        from runs import run, settings
        from trellis import TrellisError
        from trellis.training import loop
        learn = loop._Run._update

        def slowly(self, *arguments):
            if {wait} and self.place.update == 4:
                print("training", flush=True)
                sys.stdin.readline()
            return learn(self, *arguments)

        loop._Run._update = slowly
        try:
            run(Path({str(folder)!r}), settings(), resume=True)
        except TrellisError as error:
            raise SystemExit(str(error))
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_second_process_is_refused_and_the_first_ends_well(tmp_path):
    first = child(tmp_path, wait=True)
    assert first.stdout.readline() == "training\n"
    before = contents(tmp_path / "run")
    second = child(tmp_path, wait=False)
    _, said = second.communicate(timeout=120)
    assert second.returncode == 1
    assert said == f"another process is training in {tmp_path / 'run'}: wait for it, or choose another folder.\n"
    assert contents(tmp_path / "run") == before
    first.communicate("go\n", timeout=120)
    assert first.returncode == 0


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    first = child(tmp_path, wait=True)
    assert first.stdout.readline() == "training\n"
    first.kill()
    first.communicate()
    run(tmp_path, settings(), resume=True)


def test_a_run_goes_on_by_itself_in_its_own_torchrun_job_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job of that name")
    run(tmp_path, settings(epochs=0.3))
    run(tmp_path, settings(epochs=0.3))  # its own, and finished
    for other in ("a job", "none", "a job of that name, or another"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", other)
        with pytest.raises(TrellisError, match="holds a run already"):
            run(tmp_path, settings(epochs=0.3))
    run(tmp_path, settings(epochs=0.3), resume=True)  # by a job without a name, and so by none
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job of that name")
    with pytest.raises(TrellisError, match="holds a run already"):
        run(tmp_path, settings(epochs=0.3))


def test_a_job_waits_for_its_own_dying_process_to_let_go_and_for_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    held, release = threading.Event(), threading.Event()

    def hold():
        with claimed(tmp_path / "run"):
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    with pytest.raises(TrellisError, match="another process is training"), claimed(tmp_path / "run"):
        pass
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setattr(run_folder.time, "sleep", lambda _: release.set())  # it dies while it is waited for
    with claimed(tmp_path / "run"):
        assert release.is_set()
    holder.join()
