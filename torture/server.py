"""Commands in forked children of a process that has imported everything: thousands of faults, one import of PyTorch.

This process runs no operation of PyTorch itself, so that no pool of threads is there when it forks. A few commands run
in fresh processes instead, to be sure that the fork changes nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pkgutil
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 180.0  # seconds for one command, a hundred times what it needs, since the machine may be busy
GRACE = 20.0  # seconds for a command to end once it is asked to
MEMORY = 6 << 30  # bytes of addresses beyond what the imports take
LARGEST_FILE = 256 << 20  # bytes
FRESH = 0.02  # share of the commands that run in a process of their own
_NOT_NEEDED = ("trellis.hf", "trellis.estimator", "trellis.fitting", "trellis.__main__")


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int  # exit code; negative: the signal that ended it
    out: str
    err: str
    seconds: float
    hung: bool = False
    orphans: tuple[str, ...] = ()  # command lines of processes that outlived it


@dataclass(frozen=True)
class Command:
    """A command of `trellis`, or a Python function in its place, and where it runs."""

    arguments: tuple[str, ...]
    folder: Path  # the current one, which holds the cache too
    stdin: bytes = b""
    limit: float = LIMIT
    stop_after: float | None = None  # seconds after which it is asked to stop, by SIGTERM
    kill_after: float | None = None  # seconds after which it is killed
    file_size: int = LARGEST_FILE  # what a file may hold
    fresh: bool = False  # in a new process
    before: Callable[[], None] | None = field(default=None, compare=False)  # called in the child first
    function: Callable[[], int] | None = field(default=None, compare=False)  # instead of `trellis`

    def __str__(self) -> str:
        import shlex

        return shlex.join(["trellis", *self.arguments])


def preload() -> None:
    """Import all that commands import, and the native kernels."""
    import trellis

    for module in pkgutil.walk_packages(trellis.__path__, "trellis."):
        if not module.name.startswith(_NOT_NEEDED):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in ("torch.utils.tensorboard", "faiss", "typer._adapters", "typer._click.decorators", "rich._emoji_codes"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # so that children copy fewer pages


def environment(folder: Path) -> dict[str, str]:
    """What a command of a fault sees: a cache of its own, one thread."""
    ours = {"TRELLIS_CACHE": str(folder / "cache"), "COLUMNS": "200", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1", **ours}


def run(command: Command) -> Ran:
    """Run a command to its end, whatever that is."""
    return finish(start(command))


@dataclass
class Running:
    """A command under way."""

    command: Command
    pid: int
    began: float
    said: tuple[Path, Path]


def start(command: Command) -> Running:
    """Start a command in a session of its own, its output going to files."""
    place = Path(tempfile.mkdtemp(prefix="torture-said-"))
    said = (place / "out", place / "err")
    began = time.monotonic()
    pid = _spawn(command, said) if command.fresh and command.function is None else _fork(command, said)
    return Running(command, pid, began, said)


def finish(running: Running) -> Ran:
    """Wait for a command, asking it to stop or killing it as it was said; whatever outlives it is ended too."""
    command, pid = running.command, running.pid
    hung = not _wait(running)
    if hung:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - running.began
    orphans = _orphans(pid, GRACE if command.kill_after is not None else 2.0)
    out, err = (path.read_text("utf-8", "replace") if path.exists() else "" for path in running.said)
    for path in running.said:
        path.unlink(missing_ok=True)
    running.said[0].parent.rmdir()
    return Ran(os.waitstatus_to_exitcode(status), out, err, seconds, hung, orphans)


def _wait(running: Running) -> bool:
    """Whether it ended in time."""
    command, pid = running.command, running.pid
    descriptor = os.pidfd_open(pid)
    try:
        asked = [(command.stop_after, signal.SIGTERM), (command.kill_after, signal.SIGKILL)]
        for seconds, sent in sorted((after, sent) for after, sent in asked if after is not None):
            left = running.began + seconds - time.monotonic()
            if select.select([descriptor], [], [], max(0.0, left))[0]:
                return True
            os.kill(pid, sent)
        end = running.began + command.limit + (command.stop_after or 0.0)
        return bool(select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0])
    finally:
        os.close(descriptor)


def _fork(command: Command, said: tuple[Path, Path]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, of which libraries leave one idle
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        _redirect(command, said)
        _limit(command)
        faulthandler.enable(sys.stderr)  # which says where in Python a crash was
        os.chdir(command.folder)
        os.environ.update(environment(command.folder))
        if command.before is not None:
            command.before()
        code = command.function() if command.function is not None else _trellis(command.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _trellis(arguments: Sequence[str]) -> int:
    from trellis.cli import main

    sys.argv = ["trellis", *arguments]
    try:
        return main()
    except SystemExit as told:
        return told.code if isinstance(told.code, int) else 0


def _redirect(command: Command, said: tuple[Path, Path]) -> None:
    with tempfile.TemporaryFile() as typed:
        typed.write(command.stdin)
        typed.seek(0)
        os.dup2(typed.fileno(), 0)
    for number, path in enumerate(said, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # for as long as the process lives
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115


def _limit(command: Command) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_size, command.file_size))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # a sanitizer maps terabytes of shadow
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _spawn(command: Command, said: tuple[Path, Path]) -> int:
    """The same in a new process, as people start it."""
    with tempfile.TemporaryFile() as typed, said[0].open("wb") as out, said[1].open("wb") as err:
        typed.write(command.stdin)
        typed.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "trellis", *command.arguments], stdin=typed, stdout=out, stderr=err,
            cwd=command.folder, env={**_found(), **environment(command.folder)}, start_new_session=True,
            preexec_fn=lambda: _limit(command),
        )  # fmt: skip
    process.returncode = 0  # it is waited for by its number
    return process.pid


def _found() -> Mapping[str, str]:
    """The environment, with the Trellis that is imported here."""
    import trellis

    source = str(Path(trellis.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}


def _orphans(session: int, patience: float) -> tuple[str, ...]:
    """Command lines of processes of the session that do not end by themselves; they are ended."""
    end = time.monotonic() + patience
    while (left := _of_session(session)) and time.monotonic() < end:
        time.sleep(0.01)
    found = []
    for pid in left:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            os.kill(pid, signal.SIGKILL)
    return tuple(found)


def _of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, leader = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(leader) == session and state != "Z":
                    found.append(int(entry.name))
    return found
