"""A wire from the first process to every other: by it they gather, and notice at once when one of them dies.

PyTorch's own ways fall short of both. The store that torchrun's processes meet in keeps the addresses of processes that
died before a restart, so that new ones wait for them for ever; and who computes or waits for a file finds out only in
the next sum.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from torch.distributed import Store  # type: ignore[attr-defined]  # documented all the same

from trellis.errors import TrellisError
from trellis.torchrun import restarts

PATIENCE = 600.0  # seconds that a process waits for all the others to come
_DOOR = "trellis/door"  # in the store: what the gathering is called, and where the first process listens
_HELLO = struct.Struct("!32sI")  # what the gathering is called, and who comes
_GO, TOGETHER, APART, FAILED, _KNOWN, _DONE = b"g", b"+", b".", b"!", b"k", b"d"
_GONE = b""
# A machine that falls silent, without its processes' deaths being told, is lost after half a minute.
_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


def gather(store: Store, rank: int, size: int) -> tuple[str, dict[int, socket.socket]]:
    """Wait until all processes are there; a name that no other gathering has, and this process's wires by rank."""
    return _call(store, size) if rank == 0 else _come(store, rank)


class Wires:
    """Listens, in a thread, for the others' ends."""

    def __init__(self, rank: int, wires: Mapping[int, socket.socket]) -> None:
        self._rank, self._wires = rank, dict(wires)
        self._missed = set(wires)  # who must not go without a word
        self._done, self._gone, self._news = set[int](), set[int](), threading.Condition()
        threading.Thread(target=self._listen, name="wires", daemon=True).start()

    def tell(self, message: bytes) -> None:
        """Tell the others that this process needs them (TOGETHER) or not (APART), or that it FAILED and said why."""
        for wire in self._wires.values():
            with suppress(OSError):
                wire.sendall(message)

    def finish(self) -> bool:
        """Wait until all processes have nothing left to do; False if one goes before. Then all end at once.

        A process that is lost when others have ended well is one too few for a restart on several machines.
        """
        if self._rank != 0:
            self.tell(_DONE)
        with self._news:
            self._news.wait_for(lambda: self._wires.keys() <= self._done | self._gone)
        well = self._wires.keys() <= self._done
        if well and self._rank == 0:
            self.tell(_DONE)
        return well

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, wire in self._wires.items():
                selector.register(wire, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    heard = _hear(self._wires[key.data])
                    if heard == _GONE:
                        selector.unregister(key.fileobj)
                        self._miss(key.data)
                    for byte in heard:
                        self._understand(key.data, bytes([byte]))

    def _understand(self, rank: int, message: bytes) -> None:
        if message == TOGETHER:
            self._missed.add(rank)
        elif message == APART:
            self._missed.discard(rank)
        elif message == _DONE:
            with self._news:
                self._done.add(rank)
                self._news.notify()
        else:  # it failed, or knows who was lost; the reason has been said
            self._end()

    def _miss(self, rank: int) -> None:
        if rank not in self._missed:
            with self._news:
                self._gone.add(rank)
                self._news.notify()
            return
        if self._speaks():
            _say(lost(rank))
        self._end()

    def _speaks(self) -> bool:
        """Whether it is for this process to say who was lost: the first; if that was lost, one process a machine."""
        first_there = "1" if os.environ.get("GROUP_RANK", "0") == "0" else "0"
        return self._rank == 0 or os.environ.get("LOCAL_RANK", first_there) == first_there

    def _end(self) -> NoReturn:
        """End at once, whatever the main thread waits for: all that a run writes is whole or not at all."""
        self.tell(_KNOWN)
        os._exit(2)


def lost(rank: int) -> str:
    """A sentence about the loss of a process, and what comes of it."""
    made, allowed = restarts()
    if made < allowed:
        return (
            f"the process of rank {rank} was lost: torchrun starts all processes again, restart {made + 1} of "
            f"{allowed}; if it cannot, run the same command with --resume."
        )
    return f"error: the process of rank {rank} was lost: run the same command with --resume to go on."


def _say(sentence: str) -> None:
    shown = "\n\x1b[?25h" if sys.stderr.isatty() else ""  # below a progress bar, which had hidden the cursor
    print(f"{shown}{sentence}", file=sys.stderr, flush=True)


def _call(store: Store, size: int) -> tuple[str, dict[int, socket.socket]]:
    """The first process: open a door, tell where it is, and wait until all others stand in it."""
    name, wires = uuid.uuid4().hex, dict[int, socket.socket]()
    deadline = time.monotonic() + PATIENCE
    with _door() as door:
        door.settimeout(1.0)
        store.set(_DOOR, f"{name} {door.getsockname()[1]} {_own_address()}")
        while len(wires) < size - 1:
            if time.monotonic() > deadline:
                raise _nobody_comes(f"{len(wires) + 1} of {size} processes came")
            with suppress(TimeoutError):
                wire, _ = door.accept()
                if rank := _admit(wire, name):
                    before, wires[rank] = wires.get(rank), wire
                    if before is not None:
                        before.close()
            for rank in [rank for rank, wire in wires.items() if _ready(wire, 0.0)]:
                wires.pop(rank).close()  # nothing is said before all are there: what can be read is its end
    for wire in wires.values():
        with suppress(OSError):  # of one that dies at this moment `Wires` will hear
            wire.sendall(_GO)
    return name, wires


def _admit(wire: socket.socket, name: str) -> int:
    """Who comes to this gathering; 0, and the wire is cut, if it is somebody else."""
    wire.settimeout(5.0)
    with suppress(OSError):
        called, rank = _HELLO.unpack(wire.recv(_HELLO.size, socket.MSG_WAITALL).ljust(_HELLO.size, b"\0"))
        if called == name.encode():
            _keep_alive(wire)
            return int(rank)
    wire.close()
    return 0


def _come(store: Store, rank: int) -> tuple[str, dict[int, socket.socket]]:
    """Any other process: go to the first one's door, and wait there; if it closes or moves, try again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (door := _told(store)) and (wire := _knock(door, rank)):
            while not _ready(wire, 1.0) and _told(store) == door and time.monotonic() < deadline:
                pass
            if _ready(wire, 0.0) and _hear(wire) == _GO:
                return door.split()[0], {0: wire}
            wire.close()
        time.sleep(0.1)
    raise _nobody_comes("the process of rank 0 did not come")


def _told(store: Store) -> str:
    """Where the door is; it may be that of processes that are no more."""
    return store.get(_DOOR).decode() if store.check([_DOOR]) else ""


def _knock(door: str, rank: int) -> socket.socket | None:
    name, port, address = door.split()
    try:
        wire = socket.create_connection((address, int(port)), timeout=5.0)
        wire.sendall(_HELLO.pack(name.encode(), rank))
    except OSError:
        return None
    _keep_alive(wire)
    return wire


def _door() -> socket.socket:
    """A socket to listen at: for processes of this machine alone, if there are no others."""
    if _on_one_machine():
        return socket.create_server(("127.0.0.1", 0))
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)


def _own_address() -> str:
    """Where others reach this process: as torchrun calls its machine, or by the address that it calls torchrun from."""
    if _on_one_machine():
        return "127.0.0.1"
    store = os.environ["MASTER_ADDR"]
    family, kind, _, _, there = socket.getaddrinfo(store, int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as unsent:
        unsent.connect(there)
        here = str(unsent.getsockname()[0])
    return store if here == there[0] or here.startswith("127.") or here == "::1" else here


def _on_one_machine() -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def _keep_alive(wire: socket.socket) -> None:
    wire.settimeout(None)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):  # not on every system
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _ready(wire: socket.socket, seconds: float) -> bool:
    return bool(select.select([wire], [], [], seconds)[0])


def _hear(wire: socket.socket) -> bytes:
    """What was said; nothing if the other end is no more."""
    try:
        return wire.recv(64)
    except OSError:
        return _GONE


def _nobody_comes(what: str) -> TrellisError:
    return TrellisError(f"{what} within {PATIENCE / 60:.0f} minutes: see that torchrun runs on every machine.")
