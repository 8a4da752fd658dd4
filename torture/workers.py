"""Workers of torchrun that are killed, on one machine or two: the run must end with the bits of an undisturbed one."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

LIMIT = 180.0  # seconds; a run that takes longer hangs
RESTARTS = 3
MARK = "TRELLIS_TORTURE"  # in the environment of all that a run starts, by which orphans are known
TRAINING = (
    "model.states=6", "training.batching=streams", "training.batch_size=4", "training.length=8", "training.epochs=3",
    "training.lr=0.1", "training.checkpoint_every=7", "training.validations=3",
)  # fmt: skip
LOST, GOING_ON = "was lost", "going on from"


class Losses(NamedTuple):
    """What came of runs that lost a worker, or a machine."""

    tried: int = 0
    kills: int = 0  # in all; a run may lose two workers, one after the other
    same: int = 0  # ended with the bits of a run that lost none
    different: int = 0  # ended with others
    stopped: int = 0  # could not go on without a machine, and ended in time
    failed: int = 0  # ended otherwise
    hung: int = 0  # had not ended after LIMIT seconds
    orphans: int = 0  # processes that were left of them
    tracebacks: int = 0  # runs that showed one, where torchrun had no cause to
    told: int = 0  # runs that said who was lost and where they went on; before workers met, nobody misses them

    def plus(self, **counts: int) -> Losses:
        """These counts and those."""
        return self._replace(**{name: getattr(self, name) + count for name, count in counts.items()})


class Run:
    """Processes of torchrun that train one model, their workers, and what they say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark, self.nodes = folder, uuid.uuid4().hex, list[subprocess.Popen[bytes]]()
        self.late: subprocess.Popen[bytes] | None = None  # of a machine that came back
        folder.mkdir(parents=True)

    def start(self, *options: str, within: Sequence[str] = (), **environment: str) -> subprocess.Popen[bytes]:
        """Start torchrun, perhaps by another command that gives it a machine of its own."""
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--max-restarts", str(RESTARTS))
        text, out = self.folder.parent / "text.txt", self.folder / "run"
        train = ("-m", "trellis", "train", str(text), *TRAINING, f"out={out}")
        settings = {MARK: self.mark, "OMP_NUM_THREADS": "1", "TRELLIS_CACHE": str(self.folder / "cache")}
        with (self.folder / "said.txt").open("ab") as said:
            node = subprocess.Popen(
                [*within, *torchrun, *options, *train], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                env=os.environ | settings | environment,
            )  # fmt: skip
        self.nodes.append(node)
        return node

    def workers(self, node: subprocess.Popen[bytes]) -> list[int]:
        """The processes that a torchrun has started."""
        return [pid for pid in _marked(self.mark) if _parent(pid) == node.pid]

    def wait_for_workers(self, node: subprocess.Popen[bytes], count: int, but: Sequence[int] = ()) -> list[int]:
        """Processes of a torchrun that are not those named, once they are there; none if it ends before."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and node.poll() is None:
            found = [pid for pid in self.workers(node) if pid not in but]
            if len(found) == count:
                return found
            time.sleep(0.02)
        return []

    def ended(self, seconds: float = LIMIT) -> bool:
        """Whether all of torchrun's processes come to an end in time."""
        deadline = time.monotonic() + seconds
        for node in self.nodes:
            with suppress(subprocess.TimeoutExpired):
                node.wait(max(0.0, deadline - time.monotonic()))
        return all(node.poll() is not None for node in self.nodes)

    def orphans(self) -> int:
        """How many processes are left some seconds after the end."""
        deadline = time.monotonic() + 10.0
        while (left := _marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return len(left)

    def said(self) -> str:
        """All that the run's processes wrote."""
        return (self.folder / "said.txt").read_text(encoding="utf-8", errors="replace")

    def digest(self) -> dict[str, str]:
        """Hashes of the tensors that the run left behind."""
        top = self.folder / "run"
        files = sorted(top.rglob("*.safetensors"))
        return {str(path.relative_to(top)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def close(self) -> None:
        """End everything that was started."""
        _kill(*_marked(self.mark))
        for node in self.nodes:
            node.wait()


def workers_killed(runs: int, seed: int, folder: Path, say: Callable[[str], None] = lambda _: None) -> Losses:
    """Runs of two workers on one machine; one, and half the time another one later, is killed at a random moment."""
    random = Random(f"workers {seed}")
    _write_text(folder, random)

    def start(run: Run) -> list[subprocess.Popen[bytes]]:
        return [run.start("--nproc-per-node", "2")]

    whole, life = _undisturbed(folder, start, workers=2)
    found = Losses()
    while found.tried < runs:
        with _run(folder / f"run-{found.tried}") as run:
            (node,) = start(run)
            before = list[int]()
            for _ in range(random.randint(1, 2)):
                moment, which = random.uniform(0.0, life), random.randrange(2)
                before += (there := run.wait_for_workers(node, 2, before))
                time.sleep(moment)
                _kill(*there[which : which + 1])
            found = _judge(run, found, whole)
            say(f"{found}")
    return found


def nodes_killed(runs: int, seed: int, folder: Path, say: Callable[[str], None] = lambda _: None) -> Losses | str:
    """Runs on two machines, of network namespaces; a worker is killed, or a torchrun, which comes back or does not.

    Where there can be no namespaces, a sentence that says so.
    """
    random = Random(f"nodes {seed}")
    _write_text(folder, random)
    name = uuid.uuid4().hex[:6]
    try:
        with _two_machines(name) as machines:
            return _nodes_killed(runs, random, folder, machines, say)
    except (OSError, subprocess.CalledProcessError):
        return "network namespaces cannot be made here: be root, and have the program ip."


class Machine(NamedTuple):
    """A network namespace with one address."""

    namespace: str
    device: str
    address: str
    host: bool  # whether torchrun's store is there


def _start_node(run: Run, machine: Machine, host: str) -> subprocess.Popen[bytes]:
    return run.start(
        "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:29400",
        "--rdzv-id", run.mark, "--local-addr", machine.address, "--rdzv-conf",
        f"is_host={str(machine.host).lower()},join_timeout=60",
        within=("ip", "netns", "exec", machine.namespace), GLOO_SOCKET_IFNAME=machine.device,
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # or torchrun does not take in a machine that comes back
    )  # fmt: skip


def _nodes_killed(
    runs: int, random: Random, folder: Path, machines: tuple[Machine, Machine], say: Callable[[str], None]
) -> Losses:
    host = machines[0].address

    def start(run: Run) -> list[subprocess.Popen[bytes]]:
        return [_start_node(run, machine, host) for machine in machines]

    whole, life = _undisturbed(folder, start, workers=1)
    found = Losses()
    while found.tried < runs:
        with _run(folder / f"run-{found.tried}") as run:
            nodes = start(run)
            fault = random.choice(("worker", "worker", "returns", "never returns", "store"))
            which = 0 if fault == "store" else 1 if fault.endswith("returns") else random.randrange(2)
            there = run.wait_for_workers(nodes[which], 1)
            while fault == "never returns" and not (run.folder / "run").exists() and nodes[which].poll() is None:
                time.sleep(0.05)  # before they have met, the others would wait for ten minutes
            time.sleep(random.uniform(0.0, life if fault != "never returns" else 0.2 * life))
            lost = fault != "worker" and nodes[which].poll() is None
            _kill(*[nodes[which].pid] if lost else there if fault == "worker" else [])
            if lost and fault == "returns":
                nodes[which].wait()
                run.nodes.remove(nodes[which])
                run.late = _start_node(run, machines[which], host)
            found = _judge(run, found, whole, machine_lost=lost, may_stop=fault in ("never returns", "store"))
            say(f"{fault} {which}: {found}")
    return found


def _judge(
    run: Run, found: Losses, whole: dict[str, str], machine_lost: bool = False, may_stop: bool = False
) -> Losses:
    """Add what came of a run to the counts, unless it had ended before it could lose anything."""
    ended = run.ended()
    orphans, said = run.orphans() if ended else 0, run.said()
    kills = said.count(f"(exitcode: {-signal.SIGKILL})") + machine_lost
    if ended and not kills:
        return found
    failed = [node for node in run.nodes if node.returncode]
    too_late = ended and failed == [run.late]  # came back when the run had ended: nobody was there to meet
    well = ended and (not failed or too_late)
    stopped = may_stop and ended and not well
    same = well and run.digest() == whole
    return found.plus(
        tried=1, kills=kills, same=same, different=well and not same, stopped=stopped, hung=not ended,
        failed=ended and not well and not stopped, orphans=orphans,
        tracebacks=not may_stop and not too_late and "Traceback" in said,
        told=LOST in said and (GOING_ON in said or stopped),
    )  # fmt: skip


def _undisturbed(
    folder: Path, start: Callable[[Run], list[subprocess.Popen[bytes]]], workers: int
) -> tuple[dict[str, str], float]:
    """What a run that loses nothing leaves, and for how many seconds its workers live."""
    with _run(folder / "undisturbed") as run:
        first, *_ = start(run)
        run.wait_for_workers(first, workers)
        began = time.monotonic()
        if not run.ended() or any(node.returncode for node in run.nodes):
            raise RuntimeError(f"a run failed that lost no worker: {run.said()[-3000:]}")
        return run.digest(), time.monotonic() - began


@contextmanager
def _run(folder: Path) -> Iterator[Run]:
    shutil.rmtree(folder, ignore_errors=True)
    run = Run(folder)
    try:
        yield run
    finally:
        run.close()


@contextmanager
def _two_machines(name: str) -> Iterator[tuple[Machine, Machine]]:
    """Two network namespaces and a cable between them."""
    machines = tuple(Machine(f"{name}{n}", f"t{name}{n}", f"10.77.0.{n + 1}", host=n == 0) for n in range(2))
    first, second = machines
    try:
        for machine in machines:
            _ip("netns", "add", machine.namespace)
        _ip("link", "add", first.device, "netns", first.namespace, "type", "veth",
            "peer", "name", second.device, "netns", second.namespace)  # fmt: skip
        for machine in machines:
            _ip("-n", machine.namespace, "address", "add", f"{machine.address}/24", "dev", machine.device)
            for device in ("lo", machine.device):
                _ip("-n", machine.namespace, "link", "set", device, "up")
        yield first, second
    finally:
        for machine in machines:
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "delete", machine.namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _write_text(folder: Path, random: Random) -> None:
    """Sentences with something to learn in them."""
    folder.mkdir(parents=True, exist_ok=True)
    words = (("the cat", "a dog", "one bird"), ("saw", "likes", "left"), ("the milk", "a bone", "seeds"))
    lines = [" ".join(map(random.choice, words)) for _ in range(150)]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _marked(mark: str) -> list[int]:
    """Processes that a run started, or that such processes started."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return sorted(found)


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return 0


def _kill(*pids: int) -> None:
    """Kill processes at once that have not ended by themselves."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    kind, runs, seed, folder = sys.argv[1:]
    torture = {"workers": workers_killed, "nodes": nodes_killed}[kind]
    print(torture(int(runs), int(seed), Path(folder), print))
