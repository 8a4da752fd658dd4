import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trellis import folders
from trellis.errors import TrellisError
from trellis.folders import (
    clear_partial,
    disk_trouble,
    one_at_a_time,
    remove_folder,
    reserve,
    whole_folder,
    write_atomically,
)
from trellis.manifests import MANIFEST, check_listed, read_manifest


def write(folder, text):
    with whole_folder(folder) as partial:
        (partial / "a").write_text(text)
        (partial / "deep").mkdir()
        (partial / "deep" / "b").write_text(text)


def fail_half_way(folder, trouble):
    with whole_folder(folder) as partial:
        (partial / "a").write_text("half")
        raise trouble


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def read(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.fixture(params=["exchange", "two renames"])
def swapping(request, monkeypatch):
    """With and without the system call that swaps two names at once."""
    if request.param == "two renames":
        monkeypatch.setattr(folders, "_exchange", lambda a, b: False)


@pytest.mark.usefixtures("swapping")
def test_a_folder_is_made_and_replaced_and_nothing_else_is_left(tmp_path):
    for text in ("one", "two", "three"):
        write(tmp_path / "new" / "x", text)
        assert read(tmp_path / "new" / "x") == {"a": text, "deep/b": text}
        assert names(tmp_path / "new") == ["x"]
    assert (tmp_path / "new" / "x").stat().st_mode & 0o777 == 0o755


def test_nothing_is_visible_before_the_end(tmp_path):
    write(tmp_path / "x", "old")
    with whole_folder(tmp_path / "x") as partial:
        (partial / "a").write_text("new")
        assert read(tmp_path / "x")["a"] == "old"
        assert [name for name in names(tmp_path) if not name.startswith(".")] == ["x"]
    assert read(tmp_path / "x") == {"a": "new"}


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk of .*x is full; make room or choose another folder"),
        (errno.EDQUOT, "the disk of .*x is full"),
        (errno.EROFS, "x cannot be written; choose another folder"),
    ],
)
@pytest.mark.usefixtures("swapping")
def test_trouble_while_writing_leaves_all_as_it_was(number, sentence, tmp_path):
    write(tmp_path / "x", "old")
    with pytest.raises(TrellisError, match=sentence):
        fail_half_way(tmp_path / "x", OSError(number, os.strerror(number)))
    assert read(tmp_path / "x") == {"a": "old", "deep/b": "old"}
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("trouble", [OSError(errno.EIO, "broken disk"), ValueError("mine"), KeyboardInterrupt()])
def test_other_errors_pass_through_and_clean_up_too(trouble, tmp_path):
    with pytest.raises(type(trouble)) as caught:
        fail_half_way(tmp_path / "x", trouble)
    assert caught.value is trouble
    assert names(tmp_path) == []


def test_everything_is_on_the_disk_before_the_names_change(tmp_path, monkeypatch):
    """Otherwise a power cut could leave the new name with empty files."""
    write(tmp_path / "x", "old")
    seen = []

    def to_disk(path):
        seen.append((path.name, read(tmp_path / "x")["a"]))

    monkeypatch.setattr(folders, "_to_disk", to_disk)
    write(tmp_path / "x", "new")
    assert {name for name, text in seen if text == "old"} >= {"a", "deep", "b"}
    assert seen[-1] == (tmp_path.name, "new")


def test_a_disk_that_fills_at_the_very_end_changes_nothing(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path / "x", "old")
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_to_disk", full)
        with pytest.raises(TrellisError, match="is full"):
            write(tmp_path / "x", "new")
    assert read(tmp_path / "x") == {"a": "old", "deep/b": "old"}
    assert names(tmp_path) == ["x"]


def test_a_swap_that_fails_half_way_is_undone(tmp_path, monkeypatch):
    write(tmp_path / "x", "old")
    rename = Path.rename

    def failing(self, target):
        if target == tmp_path / "x" and not self.name.endswith(".old.partial"):
            raise OSError(errno.EIO, "broken disk")
        return rename(self, target)

    monkeypatch.setattr(folders, "_exchange", lambda a, b: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="broken disk"):
        write(tmp_path / "x", "new")
    assert read(tmp_path / "x") == {"a": "old", "deep/b": "old"}
    assert names(tmp_path) == ["x"]


KILLED = """
import os, signal, sys
from pathlib import Path
from trellis import folders

calls = int(sys.argv[2])
def die(*arguments, **options):
    global calls
    calls -= 1
    if calls < 0:
        os.kill(os.getpid(), signal.SIGKILL)

rename = Path.rename
def renamed(self, target):
    die()
    done = rename(self, target)
    die()
    return done

folders._exchange = lambda a, b: False
Path.rename = renamed
folders.shutil.rmtree = die
with folders.whole_folder(sys.argv[1]) as partial:
    (partial / "a").write_text("new")
"""


@pytest.mark.slow  # five processes
def test_killed_at_any_moment_of_a_swap_the_old_or_the_new_folder_is_there(tmp_path):
    """Before and after each of the two renames, and before what was replaced is deleted."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    found = []
    for moment in range(5):
        runs = tmp_path / str(moment)
        with whole_folder(runs / "best-1") as partial:
            (partial / "a").write_text("old")
        done = subprocess.run([sys.executable, script, runs / "best-1", str(moment)], check=False)
        assert done.returncode == -signal.SIGKILL
        clear_partial(runs)
        assert names(runs) == ["best-1"]
        found.append(read(runs / "best-1")["a"])
    assert found == ["old", "old", "old", "new", "new"]


def test_clearing_spares_all_that_is_not_half_written(tmp_path):
    for name in ("x", ".x-abc.partial", ".x-abd.old.partial", ".y-abc.partial", ".hidden", "x.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    clear_partial(tmp_path, "x")
    assert names(tmp_path) == [".hidden", ".y-abc.partial", "x", "x.partial"]
    assert read(tmp_path / "x") == {"a": "x"}
    clear_partial(tmp_path)
    assert names(tmp_path) == [".hidden", "x", "x.partial"]


def test_clearing_takes_half_written_files_too(tmp_path):
    for name in ("x", ".x-17.partial", ".y-17.partial"):
        (tmp_path / name).write_text(name)
    clear_partial(tmp_path, "x")
    assert names(tmp_path) == [".y-17.partial", "x"]


def test_a_folder_is_removed_out_of_sight(tmp_path, monkeypatch):
    write(tmp_path / "checkpoint-3", "old")
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", lambda path, ignore_errors: seen.append(path.name))
        remove_folder(tmp_path / "checkpoint-3")
    assert seen[0].startswith(".checkpoint-3-")
    assert names(tmp_path) == seen
    clear_partial(tmp_path)
    assert names(tmp_path) == []


def test_a_file_in_the_way_is_not_harmed(tmp_path):
    (tmp_path / "x").write_text("precious")
    with pytest.raises(TrellisError, match="x cannot be written; choose another folder"):
        write(tmp_path / "x", "new")
    with pytest.raises(TrellisError, match="cannot be written"):
        write(tmp_path / "x" / "inside", "new")
    assert (tmp_path / "x").read_text() == "precious"
    assert names(tmp_path) == ["x"]


def test_a_link_stays_a_link(tmp_path):
    write(tmp_path / "disk" / "x", "old")
    (tmp_path / "x").symlink_to(tmp_path / "disk" / "x")
    write(tmp_path / "x", "new")
    assert (tmp_path / "x").is_symlink()
    assert read(tmp_path / "disk" / "x")["a"] == "new"
    assert names(tmp_path) == ["disk", "x"]


def test_the_remedy_can_be_the_callers(tmp_path):
    with (
        pytest.raises(TrellisError, match=r"cannot be written; set TRELLIS_CACHE\.$"),
        disk_trouble(tmp_path, "set TRELLIS_CACHE"),
    ):
        raise PermissionError(errno.EACCES, "no")


# files


@pytest.mark.parametrize("content", ["zwölf\n", b"\x00\xff", ""])
def test_a_file_is_made_and_replaced_and_nothing_else_is_left(tmp_path, content):
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        write_atomically(tmp_path / name, content)
        assert (tmp_path / name).read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(tmp_path) == ["new", "old"]


def test_a_file_has_the_permissions_that_any_other_would_have(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_is_on_the_disk_before_its_name_changes(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")
    seen = []
    monkeypatch.setattr(folders, "_to_disk", lambda path: seen.append((path.read_text(), (tmp_path / "x").read_text())))
    write_atomically(tmp_path / "x", "new")
    assert seen == [("new", "old")]
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_trouble_while_writing_a_file_leaves_the_old_one(tmp_path, monkeypatch, trouble):
    def fail(path):
        raise trouble

    (tmp_path / "x").write_text("old")
    monkeypatch.setattr(folders, "_to_disk", fail)
    with pytest.raises(type(trouble)) as caught:
        write_atomically(tmp_path / "x", "new")
    assert caught.value is trouble
    assert (tmp_path / "x").read_text() == "old"
    assert names(tmp_path) == ["x"]


# the lock


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "new" / "x"
    with one_at_a_time(path) as held, one_at_a_time(path, wait=False) as refused:
        assert (held is not None, refused) == (True, None)
        with one_at_a_time(tmp_path / "new" / "y", wait=False) as other:
            assert other is not None
    with one_at_a_time(path, wait=False) as again:
        assert again is not None


def test_a_child_that_inherits_the_lock_holds_it_for_as_long_as_it_lives(tmp_path):
    with one_at_a_time(tmp_path / "x") as held:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held,))
    with one_at_a_time(tmp_path / "x", wait=False) as refused:
        assert refused is None
    child.communicate()
    with one_at_a_time(tmp_path / "x", wait=False) as free:
        assert free is not None


def test_what_goes_wrong_under_the_lock_frees_it(tmp_path):
    for wait in (True, False):
        with pytest.raises(ValueError, match="mine"), one_at_a_time(tmp_path / "x", wait=wait):
            raise ValueError("mine")


def test_links_are_removed_and_not_what_they_lead_to(tmp_path):
    write(tmp_path / "precious", "old")
    for name in ("x", ".x-abc.partial", ".x-abd.old.partial"):
        (tmp_path / name).symlink_to(tmp_path / "precious", target_is_directory=True)
    remove_folder(tmp_path / "x")
    clear_partial(tmp_path, "x")
    assert names(tmp_path) == ["precious"]
    assert read(tmp_path / "precious")["a"] == "old"


def test_a_link_in_the_place_of_a_partial_file_is_not_written_through(tmp_path):
    (tmp_path / "precious").write_text("old")
    (tmp_path / f".x-{os.getpid()}.partial").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "x", "new")
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "x").read_text() == "new"
    assert names(tmp_path) == ["precious", "x"]


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("old")
    (tmp_path / ".x.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"), one_at_a_time(tmp_path / "x"):
        pass
    assert (tmp_path / "precious").read_text() == "old"


def test_the_files_of_a_folder_are_listed_unless_they_are_for_people(tmp_path):
    write(tmp_path / "x", "text")
    assert list(read_manifest(tmp_path / "x")) == ["a"], "folders within have manifests of their own"
    check_listed(tmp_path / "x" / "a")
    with whole_folder(tmp_path / "y", for_people=True) as partial:
        (partial / "a").write_text("text")
    assert names(tmp_path / "y") == ["a"]


def test_a_name_that_is_too_long_is_said(tmp_path):
    with pytest.raises(TrellisError, match="cannot be written; choose another folder"):
        write(tmp_path / ("x" * 300), "text")


@pytest.mark.parametrize("link", ["ids", "labels"])
def test_a_link_in_the_cache_is_replaced_and_not_what_it_leads_to(link, tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "kept.txt").write_text("kept")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / link).symlink_to(tmp_path / "precious")
    folder = tmp_path / "cache" / link / ("400" if link == "labels" else "")
    with whole_folder(folder) as partial:
        (partial / "new").write_text("new")
    assert (folder / "new").read_text() == "new"
    assert [path.read_text() for path in (tmp_path / "precious").iterdir()] == ["kept"]


@pytest.mark.parametrize("make", [write, write_atomically], ids=["folder", "file"])
def test_what_a_killed_process_left_goes_and_what_another_writes_stays(make, tmp_path):
    (tmp_path / ".x-0123abcd.partial").mkdir()
    (tmp_path / ".x-0123abcd.partial" / "a").write_text("half")
    (tmp_path / ".x-17.partial").write_text("half")
    (tmp_path / ".y-17.partial").write_text("half")
    with whole_folder(tmp_path / "x-1") as ours:  # whose name begins alike
        (ours / "a").write_text("whole")
        make(tmp_path / "x", "new")
        assert names(tmp_path) == sorted([ours.name, ".y-17.partial", "x"])
    assert names(tmp_path) == [".y-17.partial", "x", "x-1"]
    assert (tmp_path / "x-1" / "a").read_text() == "whole"


def test_a_folder_that_was_taken_for_left_over_before_its_lock_was_held_is_made_again(tmp_path, monkeypatch):
    made, fresh = [], folders._fresh_folder

    def deleted_at_first(folder):
        made.append(fresh(folder))
        if len(made) == 1:
            made[0].rmdir()
            made[0].touch()  # so that there is something to open, and then it goes
            monkeypatch.setattr(fcntl, "flock", lambda *_: made[0].unlink(missing_ok=True))
        return made[-1]

    monkeypatch.setattr(folders, "_fresh_folder", deleted_at_first)
    write(tmp_path / "x", "text")
    assert len(made) == 2
    assert (tmp_path / "x" / "a").read_text() == "text"


def test_room_for_a_mapping_is_taken_before_it_is_written(tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 20)
    assert (tmp_path / "sparse").stat().st_blocks == 0
    reserve(tmp_path / "sparse")
    assert (tmp_path / "sparse").stat().st_blocks * 512 == 1 << 20
