"""Pipelines with stages on leased devices and edge servers; some devices and servers are killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rpcsys
from rpcsys import graph
from rpcsys.errors import DeadlineExceeded, FrameError, UnknownKey
from rpcsys.graph import Leased, Pipeline, Stages
from rpcsys.graph._build.leased_module import LeasedModule
from tests.graph.running import chain, make, node, numbers, values
from tests.live import deployed
from tests.live.daemons import Daemon, Daemons, free_port, wait_free

FRAMES = 60
QUICK = ("--preload", "none")
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def frames() -> Iterator[Any]:
    return (numbers(2, 3, seed=n) for n in range(FRAMES))


def check(pipeline: Pipeline, in_the_middle: Callable[[], None] = lambda: None) -> None:
    """Check that all frames return in order; call ``in_the_middle`` after the twentieth."""
    number = 0
    for number, (x, out) in enumerate(zip(frames(), pipeline.run(frames()), strict=True), 1):
        np.testing.assert_array_equal(out, np.maximum(-np.maximum(-x, 0), 0))
        if number == 20:
            in_the_middle()
    assert number == FRAMES


def leased(stages: Stages, tracker: Daemon, **more: Any) -> LeasedModule:
    device = graph.build(stages["stage1"], Leased("board", tracker.where, **more))
    assert isinstance(device, LeasedModule)
    return device


def boards(daemons: Daemons, count: int) -> tuple[Daemon, list[Daemon]]:
    tracker = daemons.tracker()
    return tracker, [daemons.server("board", *QUICK, tracker=tracker, offers=n) for n in range(1, count + 1)]


def test_another_device_replaces_a_killed_one(daemons: Daemons) -> None:
    tracker, servers = boards(daemons, 2)
    stages = graph.split(chain(), [1, 3])
    with leased(stages, tracker) as device:

        def kill() -> None:
            assert device.session is not None
            next(each for each in servers if each.address == device.session.address).kill()

        with Pipeline(stages, {"stage1": device}) as pipeline:
            check(pipeline, kill)
            assert device.session is not None
            left = next(each for each in servers if each.running())
            assert device.session.address == left.address
    wait_free(tracker, "board", 1, 20)


def test_a_restarted_server_is_leased_again(daemons: Daemons) -> None:
    tracker, (server,) = boards(daemons, 1)

    def restart() -> None:
        server.kill()
        daemons.server("board", *QUICK, "--tracker", tracker.where)  # leased as soon as it is offered

    with Pipeline(graph.split(chain(), [2]), {"stage1": Leased("board", tracker.where)}) as pipeline:
        check(pipeline, restart)
    wait_free(tracker, "board", 1, 20)


def test_a_killed_session_is_opened_again(daemons: Daemons) -> None:
    tracker, _ = boards(daemons, 1)
    stages = graph.split(chain(), [2])
    with leased(stages, tracker, calls=2) as device:

        def kill() -> None:
            assert device.session is not None
            os.kill(device.session.info["pid"], signal.SIGKILL)

        with Pipeline(stages, {"stage1": device}) as pipeline:
            check(pipeline, kill)


def test_two_devices_run_one_stage(daemons: Daemons) -> None:
    tracker, servers = boards(daemons, 2)
    stages = graph.split(chain(), [2])
    board = Leased("board", tracker.where)
    with Pipeline(stages, {"stage1": board}, replicas={"stage1": 2}) as pipeline:
        wait_free(tracker, "board", 0, 20)
        check(pipeline, servers[0].kill)


def counting() -> Any:
    """A model that counts to its input in a loop."""
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "sum one", "more")],
        "body",
        [
            *values("i", shape=(), dtype=INT64),
            *values("go", shape=(), dtype=BOOL),
            *values("sum", shape=(), dtype=INT64),
        ],
        [*values("on", shape=(), dtype=BOOL), *values("more", shape=(), dtype=INT64)],
    )
    return make(
        [node("Loop", "x yes zero", "y", body=body)],
        values("x", shape=(), dtype=INT64),
        values("y", shape=(), dtype=INT64),
        weights={"yes": np.array(True), "zero": np.array(0), "one": np.array(1)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("encode", ["", "zlib"])
def test_with_a_deadline_only_the_frame_that_hangs_fails(daemons: Daemons, encode: str) -> None:
    tracker, _ = boards(daemons, 1)
    board = Leased("board", tracker.where, deadline_s=5, encode=encode)
    frames = [np.array(x) for x in (3, 10**15, 4, 5)]
    with Pipeline(graph.split(counting(), []), {"stage0": board}) as pipeline:
        three, hung, four, five = pipeline.run(frames)
    assert (three, four, five) == (3, 4, 5)
    assert isinstance(hung, FrameError)
    assert isinstance(hung.__cause__, DeadlineExceeded)
    wait_free(tracker, "board", 1, 20)


def test_close_ends_a_call_that_hangs_on_a_leased_device(daemons: Daemons) -> None:
    tracker, _ = boards(daemons, 1)
    pipeline = Pipeline(graph.split(counting(), []), {"stage0": Leased("board", tracker.where)})
    assert pipeline.submit(np.array(3)).result(60) == 3
    hung = pipeline.submit(np.array(10**15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no thread is left running
        pipeline.close(0.5)
    assert hung.cancelled()
    wait_free(tracker, "board", 1, 60)


def test_a_board_without_packages_runs_native_code(daemons: Daemons) -> None:
    pytest.importorskip("tvm")
    tracker = daemons.tracker()
    daemons.server("board", flavour="bare", tracker=tracker)
    board = Leased("board", tracker.where, target="tvm")
    with Pipeline(graph.split(chain(), [2]), {"stage1": board}) as pipeline:
        check(pipeline)


def test_an_unknown_key_is_an_error_at_once(daemons: Daemons) -> None:
    tracker = daemons.tracker()
    with pytest.raises(UnknownKey, match="nosuch"):
        Pipeline(graph.split(chain(), [2]), {"stage1": Leased("nosuch", tracker.where)})


def test_a_deployed_stage_returns_with_its_server(daemons: Daemons, tmp_path: Path) -> None:
    stages = graph.split(chain(), [2])
    stages["stage1"].save(tmp_path / "head.onnx")
    deployed.put(tmp_path / "deploy", "head", tmp_path / "head.onnx")
    port = free_port()

    def start() -> Daemon:
        flags = (*deployed.WITH_NUMPY, "--deploy", str(tmp_path / "deploy"))
        return daemons.server("edge", *flags, port=port)

    server = start()

    def restart() -> None:
        server.destroy()
        start()

    head = graph.Remote(serve="head", address=f"127.0.0.1:{port}")
    with Pipeline(stages, {"stage1": head}) as pipeline:
        check(pipeline, restart)


class DelayedLink:
    """A relay to ``address`` at ``where`` with `DELAY_S` of delay each way.

    ``most``: the largest number of sends of the client between two replies of the server.
    """

    DELAY_S = 0.03

    def __init__(self, address: tuple[str, int]) -> None:
        self.most = self._since = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.where = self._listener.getsockname()
        self._address = address
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._address)
                self._ends += [client, server]
                self._join(client, server, self._asked)
                self._join(server, client, self._answered)

    def _asked(self) -> None:
        self._since += 1
        self.most = max(self.most, self._since)

    def _answered(self) -> None:
        self._since = 0

    def _join(self, source: socket.socket, target: socket.socket, note: Callable[[], None]) -> None:
        late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._receive, args=(source, late, note), daemon=True).start()
        threading.Thread(target=self._send, args=(late, target), daemon=True).start()

    def _receive(
        self, source: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]], note: Callable[[], None]
    ) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            note()
            late.put((time.monotonic() + self.DELAY_S, data))

    @staticmethod
    def _send(late: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = late.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)

    def close(self) -> None:
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):  # it has ended
                end.shutdown(socket.SHUT_RDWR)  # otherwise a thread that reads it keeps it open
            end.close()


@pytest.mark.parametrize(("replicas", "least", "most"), [({"stage1": 1}, 1, 1), ({}, 2, 4)])
def test_on_a_delayed_link_several_frames_are_in_flight(
    daemons: Daemons, tmp_path: Path, replicas: dict[str, int], least: int, most: int
) -> None:
    """By default, a frame is sent before the reply to the one before it."""
    server = daemons.server("board", *QUICK)
    stages = graph.split(chain(), [2])
    stages["stage1"].save(tmp_path / "stage1.onnx")
    assert server.address is not None
    with contextlib.closing(DelayedLink(server.address)) as link:
        with rpcsys.connect(*link.where, key="board") as session:
            module = session.load_module(str(tmp_path / "stage1.onnx"))
            link.most = 0
            with Pipeline(stages, {"stage1": module}, replicas=replicas) as pipeline:
                check(pipeline)
            assert least <= link.most <= most
