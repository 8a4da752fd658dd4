"""Processes gather whoever was there before, and notice when one of them dies."""

import queue
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
import torch.distributed as dist

from trellis.errors import TrellisError
from trellis.training import wires
from trellis.training.wires import APART, FAILED, TOGETHER, Wires, gather


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.fixture
def sockets(monkeypatch):
    """Closed in the end; those that a thread listens at when it has heard of the end of their others."""
    monkeypatch.setattr(wires.os, "_exit", lambda code: None)
    with ExitStack() as listened:
        with ExitStack() as others:
            yield listened, others
        for thread in threading.enumerate():
            if thread.name == "wires":
                thread.join(20)


@pytest.fixture
def gathering(sockets):
    return Gathering(sockets)


class Gathering:
    """Threads in the places of processes."""

    def __init__(self, sockets):
        self.store, self.size, self.found, self.sockets = dist.HashStore(), 3, queue.Queue(), sockets

    def come(self, *ranks):
        for rank in ranks:
            threading.Thread(target=self._come, args=(rank,), daemon=True).start()

    def _come(self, rank):
        self.found.put((rank, *gather(self.store, rank, self.size)))

    def all(self):
        found = sorted((self.found.get(timeout=20) for _ in range(self.size)), key=lambda entry: entry[0])
        for _, _, wired in found:
            for wire in wired.values():
                self.sockets[1].enter_context(wire)
        assert len({name for _, name, _ in found}) == 1
        return [wired for _, _, wired in found]

    def door(self):
        while not self.store.check([wires._DOOR]):
            time.sleep(0.01)
        return self.store.get(wires._DOOR).decode()


def assert_wired(chief, others):
    for rank, wire in chief.items():
        wire.sendall(bytes([rank]))
        assert others[rank - 1][0].recv(10) == bytes([rank])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_first_process_is_wired_to_each_of_the_others(order, gathering):
    gathering.come(*order)
    chief, *others = gathering.all()
    assert sorted(chief) == [1, 2]
    assert_wired(chief, others)


def test_doors_of_the_dead_are_not_waited_at(gathering):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Of one nobody answers any more; at another somebody else is at home, who says nothing.
        gathering.store.set(wires._DOOR, f"{'0' * 32} {silent.getsockname()[1]} 127.0.0.1")
        gathering.come(1)
        gathering.sockets[1].enter_context(silent.accept()[0])
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        gathering.store.set(wires._DOOR, f"{'1' * 32} {port} 127.0.0.1")
        gathering.come(2)
        time.sleep(0.3)
        gathering.come(0)
        chief, *others = gathering.all()
    assert_wired(chief, others)


def test_who_dies_while_the_others_are_waited_for_is_waited_for_again(gathering):
    gathering.come(0)
    wires._knock(gathering.door(), 1).close()
    wires._knock(gathering.door(), 2).close()
    gathering.come(1, 2)
    chief, *others = gathering.all()
    assert_wired(chief, others)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, b"\0" * 36, wires._HELLO.pack(b"x" * 32, 1)],
    ids=["nothing", "a browser", "zeros", "of another gathering"],
)
def test_strangers_at_the_door_are_sent_away(said, gathering):
    gathering.come(0)
    _, port, address = gathering.door().split()
    with socket.create_connection((address, int(port))) as stranger:
        stranger.sendall(said)
        with suppress(OSError):  # who is sent away before
            stranger.shutdown(socket.SHUT_WR)
        gathering.come(1, 2)
        chief, *others = gathering.all()
    assert_wired(chief, others)


def test_nobody_is_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(wires, "PATIENCE", 0.2)
    for rank, who in ((0, "1 of 3 processes came"), (1, "the process of rank 0 did not come")):
        with pytest.raises(TrellisError, match=f"{who} within .* see that torchrun runs on every machine"):
            gather(dist.HashStore(), rank, 3)


class Ends:
    """The other ends of a process's wires, and whether the process ended."""

    def __init__(self, rank, others, sockets, monkeypatch):
        self.codes = queue.Queue()
        monkeypatch.setattr(wires.os, "_exit", self.codes.put)
        pairs = {other: socket.socketpair() for other in others}
        for near, far in pairs.values():
            sockets[0].enter_context(near)
            sockets[1].enter_context(far)
        self.far = {other: pair[1] for other, pair in pairs.items()}
        self.wires = Wires(rank, {other: pair[0] for other, pair in pairs.items()})

    def ended(self):
        try:
            return self.codes.get(timeout=10) == 2
        except queue.Empty:
            return False

    def lives(self):
        """Whether the process still listens: it has understood all that was said before."""
        time.sleep(0.2)
        return self.codes.empty()


def test_the_first_process_says_who_was_lost_and_has_the_others_end_in_silence(sockets, monkeypatch, capsys):
    chief = Ends(0, (1, 2), sockets, monkeypatch)
    chief.far[1].close()
    assert chief.ended()
    assert capsys.readouterr().err == (
        "error: the process of rank 1 was lost: run the same command with --resume to go on.\n"
    )
    other = Ends(2, (0,), sockets, monkeypatch)
    other.far[0].sendall(chief.far[2].recv(10))
    assert other.ended()
    assert capsys.readouterr().err == ""


def test_who_has_said_that_it_can_do_without_may_go(sockets, monkeypatch, capsys):
    chief = Ends(0, (1, 2), sockets, monkeypatch)
    chief.far[1].sendall(APART)
    chief.far[1].close()
    chief.far[2].sendall(APART + TOGETHER)
    assert chief.lives()
    chief.far[2].close()
    assert chief.ended()
    assert "the process of rank 2 was lost" in capsys.readouterr().err


def test_all_end_at_once_when_all_are_done(sockets, monkeypatch):
    chief, ended = Ends(0, (1, 2), sockets, monkeypatch), queue.Queue()
    threading.Thread(target=lambda: ended.put(chief.wires.finish())).start()
    chief.far[1].sendall(APART + wires._DONE)
    time.sleep(0.2)
    assert ended.empty()
    other = Ends(2, (0,), sockets, monkeypatch)
    threading.Thread(target=lambda: ended.put(other.wires.finish())).start()
    chief.far[2].sendall(APART + other.far[0].recv(10))
    assert ended.get(timeout=10) is True
    assert chief.far[1].recv(10) == wires._DONE
    other.far[0].sendall(chief.far[2].recv(10))
    assert ended.get(timeout=10) is True


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_ends_well_if_another_went_before(rank, sockets, monkeypatch):
    ends, ended = Ends(rank, (1, 2) if rank == 0 else (0,), sockets, monkeypatch), queue.Queue()
    threading.Thread(target=lambda: ended.put(ends.wires.finish())).start()
    if rank == 0:
        ends.far[1].sendall(APART + wires._DONE)
    last = ends.far[2 if rank == 0 else 0]
    last.sendall(APART)
    last.close()
    assert ended.get(timeout=10) is False


def test_who_has_failed_has_said_why(sockets, monkeypatch, capsys):
    chief = Ends(0, (1, 2), sockets, monkeypatch)
    chief.far[1].sendall(FAILED)
    assert chief.ended()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("node", "local", "speaks"), [("0", "1", True), ("0", "2", False), ("1", "0", True), ("1", "1", False)]
)
def test_of_the_loss_of_the_first_one_process_a_machine_speaks(node, local, speaks, sockets, monkeypatch, capsys):
    monkeypatch.setenv("GROUP_RANK", node)
    monkeypatch.setenv("LOCAL_RANK", local)
    other = Ends(2, (0,), sockets, monkeypatch)
    other.far[0].close()
    assert other.ended()
    assert ("the process of rank 0 was lost" in capsys.readouterr().err) == speaks


@pytest.mark.parametrize(
    ("store", "found"), [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("127.0.0.2", "127.0.0.2")]
)
def test_on_the_stores_machine_the_door_is_where_the_others_find_the_store(store, found, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("MASTER_ADDR", store)
    monkeypatch.setenv("MASTER_PORT", "29400")
    assert wires._own_address() == found
    with wires._door() as door:
        assert door.getsockname()[0] in ("::", "0.0.0.0")  # for other machines
