"""Connections to replicas in the loop: nothing waits, nothing is lost, in the clear and encrypted."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from rpcsys.daemon.sockets import Sockets
from rpcsys.errors import ProtocolError, ServerRefused
from rpcsys.gateway.actions import CancelCall, SendCall
from rpcsys.gateway.batching import call_template
from rpcsys.gateway.calls import Outcome
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.gateway.upstream import CONNECTING, LEASING, MOST_AT_ONCE, ReplicaConnection, ReplicaConnections, hello_of
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.tensor import Tensor
from tests import secured
from tests.gateway.transcripts import ECHO

pytestmark = pytest.mark.usefixtures("speedups")

WAIT_S = 30.0
HELLO = {
    "version": 1,
    "window": {"calls": 64, "bytes": 1 << 20},
    "serve": {"name": "m", "version": "0001-a", "kind": "rpcsys.onnx", "functions": ["main"], "workers": 3, **ECHO},
}
#: More than any two sockets hold.
LARGE = 32 << 20


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)


class Events:
    """What a connection has told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.on_result: Callable[[], None] = lambda: None

    def opened(self, number: int, hello: ReplicaHello | None) -> None:
        self.told.append(("opened", number, hello))

    def announced(self, number: int, hello: ReplicaHello) -> None:
        self.told.append(("announced", number, hello))

    def lost(self, number: int, why: str) -> None:
        self.told.append(("lost", number, why))

    def result(self, number: int, call_id: int, outcome: Outcome) -> None:
        self.told.append(("result", number, call_id, outcome))
        self.on_result()

    async def until(self, count: int) -> list[tuple[Any, ...]]:
        """Wait until so many events have been told."""
        await until(lambda: len(self.told) >= count)
        return self.told


class Both:
    """A connection in the loop, and the host's end of it."""

    def __init__(self, leased: bool = False, small: bool = False) -> None:
        self.events = Events()
        self.sockets = Sockets(self._flush)
        self.connections = ReplicaConnections(self.sockets, self.events)
        pair = socket.socketpair()
        if small:
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.stream, self.host = secured.open_both(pair)
        self.leased = leased

    def _flush(self) -> None:
        self.connections.flush()

    async def open(self) -> ReplicaConnection:
        hello = ReplicaHello(version="0001-a")
        self.connections.open(7, lambda: (self.stream, hello), LEASING if self.leased else CONNECTING)
        await self.events.until(1)
        assert self.events.told.pop() == ("opened", 7, hello)
        connection = self.connections.get(7)
        assert connection is not None
        return connection

    async def received(self) -> Frame:
        """The next frame that the host gets."""
        return await asyncio.to_thread(received, self.host)

    async def say(self, kind: int, call_id: int, fields: dict[str, Any]) -> None:
        await asyncio.to_thread(self.host.send, frames.encode(kind, call_id, fields))


def received(stream: Stream) -> Frame:
    frame = (stream.next() if stream.unread else None) or stream.receive_within(WAIT_S)
    assert frame is not None
    return frame


def run(test: Callable[[Both], Awaitable[None]], **about: bool) -> None:
    async def main() -> None:
        both = Both(**about)
        await test(both)
        both.connections.close_all()
        both.host.close()
        both.sockets.close()

    asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))


def send(call_id: int, body: bytes = b"\1", deadline_ms: int = 0) -> SendCall:
    return SendCall(7, call_id, call_template(0, [("uint8", (len(body),))]), (memoryview(body),), deadline_ms)


def test_calls_go_out_and_results_come_back() -> None:
    async def test(both: Both) -> None:
        connection = await both.open()
        connection.call(send(1, b"ab", 250))
        connection.cancel(CancelCall(7, 1))
        both.connections.flush()
        frame = await both.received()
        assert (frame.kind, frame.call_id, frame.deadline_ms) == (frames.CALL, 1, 250)
        (argument,) = frame.get("a")
        assert bytes(argument.data) == b"ab"
        frame = await both.received()
        assert (frame.kind, frame.call_id, frame.fields()) == (frames.CANCEL, 1, {})
        await both.say(frames.RESULT, 1, {"r": Tensor("uint8", (2,), b"xy")})
        ((_, number, call_id, outcome),) = await both.events.until(1)
        assert (number, call_id) == (7, 1)
        assert [bytes(buffer) for buffer in outcome.buffers] == [b"xy"]

    run(test)


def test_a_cancelled_call_does_not_end_a_leased_session() -> None:
    async def test(both: Both) -> None:
        connection = await both.open()
        connection.cancel(CancelCall(7, 1))
        assert (await both.received()).fields() == {"grace_s": None}

    run(test, leased=True)


def test_what_is_sent_in_a_turn_keeps_its_order() -> None:
    """The first goes out at once, all others together."""

    async def test(both: Both) -> None:
        connection = await both.open()
        for call_id in range(1, 200):
            connection.call(send(call_id, bytes([call_id])))
        assert len(connection._unsent) > 100
        both.connections.flush()
        assert not connection._unsent
        for call_id in range(1, 200):
            frame = await both.received()
            assert (frame.call_id, bytes(frame.get("a")[0].data)) == (call_id, bytes([call_id]))

    run(test)


def test_a_host_that_reads_nothing_holds_nobody_up() -> None:
    """What it does not take is sent later, whole and in order, however it reads."""

    async def test(both: Both) -> None:
        connection = await both.open()
        bodies = [bytes([number]) * LARGE for number in (1, 2)]
        for call_id, body in enumerate(bodies, 1):
            connection.call(send(call_id, body))
        connection.call(send(3, b"c"))
        await asyncio.sleep(0)
        both.connections.flush()
        assert connection._full
        for call_id, body in enumerate([*bodies, b"c"], 1):
            frame = await both.received()
            assert frame.call_id == call_id
            assert bytes(frame.get("a")[0].data) == body
        await until(lambda: not connection._full)
        assert not connection._unsent

    run(test, small=True)


def test_large_results_are_received_whole() -> None:
    async def test(both: Both) -> None:
        await both.open()
        body = bytes(range(256)) * (LARGE >> 8)
        await both.say(frames.RESULT, 5, {"r": Tensor("uint8", (LARGE,), body)})
        ((_, _, call_id, outcome),) = await both.events.until(1)
        assert call_id == 5
        assert bytes(outcome.buffers[0]) == body

    run(test, small=True)


def test_many_results_at_once_are_all_taken() -> None:
    async def test(both: Both) -> None:
        await both.open()
        count = 3 * MOST_AT_ONCE + 1
        pieces = [
            piece for number in range(1, count + 1) for piece in frames.encode(frames.RESULT, number, {"r": [number]})
        ]
        await asyncio.to_thread(both.host.send, [b"".join(map(bytes, pieces))])
        told = await both.events.until(count)
        assert [event[2] for event in told] == list(range(1, count + 1))

    run(test)


def test_a_connection_may_be_closed_by_a_result() -> None:
    async def test(both: Both) -> None:
        connection = await both.open()
        both.events.on_result = connection.close
        pieces = [piece for number in (1, 2, 3) for piece in frames.encode(frames.RESULT, number, {"r": []})]
        await asyncio.to_thread(both.host.send, [b"".join(map(bytes, pieces))])
        await both.events.until(1)
        assert (await both.received()).kind == frames.GOODBYE
        assert len(both.events.told) == 1
        assert len(both.connections) == 0

    run(test)


def test_a_successor_says_hello_again() -> None:
    async def test(both: Both) -> None:
        await both.open()
        await both.say(frames.HELLO, 0, {**HELLO, "serve": {**HELLO["serve"], "version": "0002-b"}})  # type: ignore[dict-item]
        ((event, number, hello),) = await both.events.until(1)
        assert (event, number) == ("announced", 7)
        assert (hello.version, hello.workers, hello.calls, hello.size) == ("0002-b", 3, 64, 1 << 20)
        assert hello.inputs == ECHO["inputs"]

    run(test)


def test_other_frames_are_ignored() -> None:
    async def test(both: Both) -> None:
        await both.open()
        await both.say(frames.LOG, 0, {"message": "printed", "level": 20})
        await both.say(frames.PONG, 0, {})
        await both.say(frames.RESULT, 1, {"r": []})
        ((event, *_),) = await both.events.until(1)
        assert event == "result"

    run(test)


async def _closes(both: Both) -> str:
    await asyncio.to_thread(both.host.close)
    return ""


async def _says_why(both: Both) -> str:
    await both.say(frames.ERROR, 0, {"type": "MemoryLimit", "message": "it took too much"})
    await asyncio.to_thread(both.host.close)
    return "it took too much"


async def _says_another_hello(both: Both) -> str:
    await both.say(frames.HELLO, 0, {"window": {"calls": "many"}})
    return "makes no sense"


async def _says_garbage(both: Both) -> str:
    await asyncio.to_thread(both.host.send, [b"\xff" * 64])
    return ""


@pytest.mark.parametrize("ends", [_closes, _says_why, _says_another_hello, _says_garbage])
def test_a_lost_connection_is_told_once(ends: Callable[[Both], Awaitable[str]]) -> None:
    async def test(both: Both) -> None:
        connection = await both.open()
        why = await ends(both)
        ((event, number, text),) = await both.events.until(1)
        assert (event, number) == ("lost", 7)
        assert why in text
        assert text
        connection.call(send(1))
        connection.close()
        both.connections.flush()
        await asyncio.sleep(0)
        assert len(both.events.told) == 1
        assert both.connections.get(7) is None

    run(test)


def test_a_connection_that_cannot_be_opened_is_lost() -> None:
    async def test(both: Both) -> None:
        def refuse() -> tuple[Stream, ReplicaHello]:
            raise ServerRefused("no module 'm'")

        both.connections.open(9, refuse, CONNECTING)
        assert await both.events.until(1) == [("lost", 9, "no module 'm'")]

    run(test)


def test_a_connection_that_is_not_wanted_any_more_is_closed() -> None:
    async def test(both: Both) -> None:
        wait = threading.Event()

        def late() -> tuple[Stream, ReplicaHello]:
            wait.wait(WAIT_S)
            return both.stream, ReplicaHello()

        both.connections.open(7, late, CONNECTING)
        both.connections.close(7)
        wait.set()
        assert (await both.received()).kind == frames.GOODBYE
        with pytest.raises(Ended):
            await asyncio.to_thread(both.host.receive)
        assert both.events.told == []

    run(test)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_sent_body_is_free_at_once() -> None:
    """By its last reference: the collector comes late, and memory that waits for it is not reused."""
    freed = []

    class Owner(bytearray):
        def __del__(self) -> None:
            freed.append(1)

    async def test(both: Both) -> None:
        connection = await both.open()
        for call_id in (1, 2, 3):
            body = Owner(100)
            template = call_template(0, [("uint8", (100,))])
            connection.call(SendCall(7, call_id, template, (memoryview(body),)))
            del body
        both.connections.flush()
        assert len(freed) == 3

    run(test)


@pytest.mark.parametrize(
    "fields", [{}, {"serve": 3}, {"serve": {"workers": 0}}, {"serve": {"workers": "two"}}, {"serve": {}, "window": 3}]
)
def test_a_hello_that_makes_no_sense_is_none(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match=r"HELLO does not say|what the device says of itself makes no sense"):
        hello_of(fields)


def test_a_short_hello_has_defaults() -> None:
    assert hello_of({"serve": {}}) == ReplicaHello()
