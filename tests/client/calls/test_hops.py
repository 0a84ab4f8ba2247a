"""How many Python functions a call goes through on either side, printed (``pytest -s``).

Each costs some 50 ns, on a board ten times that. The C library calls what makes the result, and the function.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from rpcsys import stream
from rpcsys.client import connect
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session.calls import ThreadMemory
from rpcsys.server.session.session import SessionServer
from rpcsys.wire import handshake
from tests import secured
from tests.device import OURS, WAIT_S

RECEIVE = "recv_into"
#: A collector may run within a call: the shortest of so many counts.
TRIES = 30


class Hops:
    """A profile function: the Python functions called, as ``file.function``, and each receive of a socket."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            self.found.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
            if frame.f_code.co_name == "_receive_into":  # C code calls the client's ``recv_into``
                self.found.append(RECEIVE)
        elif event == "c_call" and what.__name__ == RECEIVE:
            self.found.append(RECEIVE)


class Served:
    """A server's session in a thread of this process, and its client."""

    def __init__(self) -> None:
        self.hops = Hops()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.client = connect(*self._listener.getsockname(), key="key")

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        sock.recv(4096)  # the client's greeting
        reply = handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "key", OURS))
        job = Job("rpcsys/1", reply, os.curdir, "key", "peer")
        session = SessionServer(stream.open(sock), ThreadMemory(), job, lambda message: None)
        session.open()
        sys.setprofile(self.hops)
        session.serve()
        sys.setprofile(None)
        sock.close()

    def close(self) -> None:
        self.client.close()
        self._thread.join(WAIT_S)
        self._listener.close()


@pytest.fixture(scope="module")
def served(speedups: str) -> Iterator[Served]:
    if secured.secure:
        pytest.skip("counted without TLS")
    served = Served()
    yield served
    served.close()


def all_of(do: Callable[[], object]) -> list[str]:
    """The functions called in this thread while ``do`` runs."""
    hops, before = Hops(), sys.getprofile()
    sys.setprofile(hops)
    try:
        do()
    finally:
        sys.setprofile(before)
    return hops.found


def shortest(counts: list[list[str]], what: str) -> list[str]:
    found = min(counts, key=len)
    print(f"{what}: {len(found)} hops: {' '.join(found)}")
    return found


def hops(do: Callable[[], object], what: str) -> int:
    """How many Python functions ``do``, not one itself, calls after a first run."""
    counts = [all_of(do) for _ in range(TRIES)]
    return len(shortest([[name for name in count if name != RECEIVE] for count in counts], what))


def test_a_null_call(served: Served, speedups: str) -> None:
    nop = served.client.get_function("testing.nop")
    assert hops(nop, "a null call, client") <= (1 if speedups == "native" else 21)


def test_a_null_call_on_the_server(served: Served, speedups: str) -> None:
    nop = served.client.get_function("testing.nop")
    served.hops.found.clear()
    for _ in range(TRIES):
        nop()
    names = [name for name in served.hops.found if name != RECEIVE]
    if speedups == "native":
        assert set(names) == {"calls.<lambda>", "registry._nop"}
        return
    begins = [at for at, name in enumerate(names) if name == "incoming.next"]
    assert len(begins) >= TRIES - 1
    calls = [names[begin:end] for begin, end in itertools.pairwise(begins)]
    assert len(shortest(calls, "a null call, server")) <= 18


def test_a_call_with_a_deadline(served: Served) -> None:
    nop = served.client.get_function("testing.nop")
    assert hops(functools.partial(nop, deadline_s=60.0), "a call with a deadline, client") <= 22


def test_a_submitted_call(served: Served) -> None:
    nop = served.client.get_function("testing.nop")
    # The function that puts both into one count is none of the call's.
    assert hops(lambda: nop.submit().result(), "a submitted call and its result, client") - 1 <= 25


def test_a_large_array(served: Served, speedups: str) -> None:
    if speedups == "native":
        pytest.skip("the library receives it in one function")
    kept = served.client.array(np.zeros(64 << 20, "u1"))
    kept.get()
    worst = min(most_for_a_receive(all_of(kept.get)) for _ in range(3))
    print(f"an array of 64 MB, client: {worst} hops for each receive")
    assert worst <= 5


def most_for_a_receive(found: list[str]) -> int:
    """The most functions between two receives, without the first (the head) and the end of the array."""
    reads = [at for at, name in enumerate(found) if name == RECEIVE]
    between = [after - before - 1 for before, after in itertools.pairwise(reads)]
    return max(between[1:-2])
