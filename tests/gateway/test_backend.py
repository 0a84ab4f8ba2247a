"""The state and what carries its actions out, with hosts that are played: echoes at the other end of a socket."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rpcsys.daemon.sockets import Sockets
from rpcsys.errors import ServerUnreachable
from rpcsys.gateway import backend as backends
from rpcsys.gateway.actions import ReplicaPlace
from rpcsys.gateway.backend import Backend
from rpcsys.gateway.batching import call_template
from rpcsys.gateway.calls import Batching, InferenceCall, Outcome, form_of
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.gateway.settings import GatewaySettings, LeasedPool
from rpcsys.gateway.state import ServedRow
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.inference import InferenceError
from tests import secured
from tests.gateway.test_discovery import Source
from tests.gateway.test_upstream import until
from tests.gateway.transcripts import ECHO, VERSION, place, said

pytestmark = pytest.mark.usefixtures("speedups")

WAIT_S = 30.0


class Hosts:
    """Hosts that give back what they get, 1.5 ms after that as they say; those at places in ``down`` are not there.

    ``mute``: whether they answer nothing. ``sizes``: the number of rows of each call; ``streams``: of open connections.
    """

    def __init__(self) -> None:
        self.down: set[ReplicaPlace] = set()
        self.mute = False
        self.sizes: list[int] = []
        self.streams: dict[ReplicaPlace | None, Stream] = {}
        self.cancelled = threading.Event()

    def open_host(self, model: str, where: ReplicaPlace) -> tuple[Stream, ReplicaHello | None]:
        if where in self.down:
            raise ServerUnreachable("it is down")
        return self.open(where), said(workers=2)

    def lease(self, tracker: tuple[str, int], pool: LeasedPool) -> tuple[Stream, ReplicaHello | None]:
        assert (tracker, pool.key) == (("lab", 9190), "rpi4")
        return self.open(None), None

    def open(self, where: ReplicaPlace | None) -> Stream:
        ours, theirs = secured.open_both(socket.socketpair())
        self.streams[where] = theirs
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return ours

    def kill(self, where: ReplicaPlace | None) -> None:
        self.streams[where].socket.shutdown(socket.SHUT_RDWR)

    def _serve(self, stream: Stream) -> None:
        try:
            while True:
                frame = stream.receive()
                if frame is not None and frame.kind == frames.CALL and not self.mute:
                    (argument,) = frame.get("a")
                    self.sizes.append(argument.shape[0])
                    stream.send(frames.encode(frames.RESULT, frame.call_id, {"r": argument}, deadline_ms=1500))
                elif frame is not None and frame.kind == frames.CANCEL:
                    self.cancelled.set()
        except Ended:
            stream.close()


class Bench:
    """A backend, its hosts, and calls whose outcomes are awaited."""

    def __init__(self, hosts: Hosts, source: Source, backend: Backend) -> None:
        self.hosts = hosts
        self.source = source
        self.backend = backend

    def call(self, label: int, deadline_s: float | None = None, name: str = "m") -> asyncio.Future[Outcome]:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        inputs = [("uint8", (1, 3))]
        form = form_of(call_template(self.backend.callable(name).target, inputs), inputs)
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        body = memoryview(bytes([label] * 3))
        self.last = InferenceCall(form, (body,), outcome.set_result, label, 0, deadline)
        self.backend.submit(name, self.last)
        return outcome

    async def answers(self, count: int = 1) -> None:
        """So many calls at once, each answered with its own body."""
        found = await asyncio.gather(*map(self.call, range(count)))
        for label, outcome in enumerate(found):
            assert outcome.error is None, outcome.error
            assert bytes(outcome.buffers[0]) == bytes([label] * 3)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    hosts = Hosts()
    source = Source([ServedRow("m", VERSION, place(1)), ServedRow("m", VERSION, place(2))])
    monkeypatch.setattr(backends, "open_host", hosts.open_host)
    monkeypatch.setattr(backends, "lease", hosts.lease)
    monkeypatch.setattr(backends, "ServerSource", lambda where: source)
    monkeypatch.setattr(backends, "TrackerSource", lambda where: source)

    def run_it(test: Callable[[Bench], Awaitable[None]], settings: Any = None, **found: Any) -> None:
        async def main() -> None:
            sockets = Sockets()
            found.setdefault("servers", [place(1)])
            bench = Bench(hosts, source, Backend(sockets, settings or GatewaySettings(), **found))
            await until(lambda: bench.backend.state.ready)
            if not found.get("tracker"):
                await until(lambda: bench.backend.state.replicas == 2)
            await test(bench)
            bench.backend.close()
            sockets.close()

        asyncio.run(asyncio.wait_for(main(), WAIT_S))

    return run_it


def test_calls_are_answered(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        await bench.answers(100)
        statistics = bench.backend.state.statistics("m")
        assert (statistics.inferences, statistics.compute.ns) == (100, 150_000_000)
        assert bench.backend.state.idle

    run(test)


def test_calls_of_one_turn_are_joined(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        await bench.answers(100)
        assert sum(bench.hosts.sizes) == 100
        assert max(bench.hosts.sizes) == 16

    run(test, GatewaySettings(batches={"m": Batching(16)}))


def test_the_calls_of_a_host_that_dies_run_elsewhere(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        bench.hosts.down.add(place(1))
        answers = asyncio.ensure_future(bench.answers(100))
        await asyncio.sleep(0)
        bench.hosts.kill(place(1))
        await answers
        await until(lambda: bench.backend.state.replicas == 1)
        await bench.answers(10)
        bench.hosts.down.clear()
        await until(lambda: bench.backend.state.replicas == 2)
        await bench.answers(10)

    run(test)


def test_a_call_ends_at_its_deadline(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        bench.hosts.mute = True
        outcome = await bench.call(1, deadline_s=0.05)
        assert outcome.error is not None
        assert outcome.error.status == 504
        await until(bench.hosts.cancelled.is_set)

    run(test)


def test_a_call_that_is_given_up_is_cancelled(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        bench.hosts.mute = True
        outcome = bench.call(1)
        bench.backend.give_up(bench.last)
        bench.backend.give_up(bench.last)
        await until(bench.hosts.cancelled.is_set)
        assert not outcome.done()

    run(test)


def test_an_outcome_that_is_not_taken_harms_no_other(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        inputs = [("uint8", (1, 3))]
        form = form_of(call_template(0, inputs), inputs)
        bench.backend.submit("m", InferenceCall(form, (memoryview(bytes(3)),), functools.partial(int, "no number")))
        await bench.answers(10)

    run(test)
    assert "the outcome of a call was not taken" in caplog.text


def test_an_unknown_name_is_looked_for_at_once(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        bench.source.said = [*bench.source.said, ServedRow("new", VERSION, place(3))]
        with pytest.raises(InferenceError, match="'new' is not found"):
            bench.backend.view("new")
        await until(lambda: bench.backend.state.replicas == 3)
        assert bench.backend.view("new").ready

    run(test)


def test_a_model_is_unloaded_and_loaded(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        bench.backend.unload("m")
        assert len(bench.backend.connections) == 0
        bench.backend.load("m")
        await until(lambda: bench.backend.state.replicas == 2)
        await bench.answers(3)

    run(test, GatewaySettings(control=True))


def test_a_pool_leases_its_devices_and_gives_them_back(run: Callable[..., None]) -> None:
    async def test(bench: Bench) -> None:
        await bench.answers(10)
        bench.hosts.kill(None)
        await bench.answers(10)
        assert len(bench.backend.connections) >= 1
        await until(lambda: len(bench.backend.connections) == 0)

    pool = LeasedPool("rpi4", "m.onnx", ECHO, idle_s=0.2)
    run(test, GatewaySettings(pools={"m": pool}), tracker=("lab", 9190), servers=[])


def test_a_loss_is_logged_once_for_each_reason(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def test(bench: Bench) -> None:
        bench.hosts.down.add(place(1))
        bench.hosts.kill(place(1))
        await until(lambda: caplog.text.count("it is down") == 1)
        await asyncio.sleep(0.3)
        bench.hosts.down.clear()
        await until(lambda: "m is connected again" in caplog.text)

    run(test)
    assert caplog.text.count("it is down") == 1
