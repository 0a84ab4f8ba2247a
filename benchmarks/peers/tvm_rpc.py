"""TVM's RPC client with TVM's server and with ours."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from tvm import rpc
from tvm.rpc.tracker import Tracker
from tvm.runtime import empty

from benchmarks.models import ADD_FUNCTION, compiled_add
from benchmarks.peers import ours
from benchmarks.peers.subject import Subject, Trial, announce, serve_until_told, take_children_along

KEY = "bench"


class TvmSessions(Subject):
    server_arguments = ("-m", "benchmarks.peers.tvm_rpc")

    @contextmanager
    def null_call(self) -> Iterator[Trial]:
        yield Trial(self._connect().get_function("testing.nop"))

    @contextmanager
    def to_device(self, size: int) -> Iterator[Trial]:
        remote, data = self._remote_array(size)
        yield Trial(lambda: remote.copyfrom(data))

    @contextmanager
    def from_device(self, size: int) -> Iterator[Trial]:
        remote, data = self._remote_array(size)
        remote.copyfrom(data)
        yield Trial(remote.numpy)

    @contextmanager
    def compiled_function(self, path: str, size: int) -> Iterator[Trial]:
        """One call of a function compiled by TVM: send its input, run it, receive its output."""
        session = self._connect()
        library = compiled_add(path, size)
        session.upload(str(library))
        add = session.load_module(library.name)[ADD_FUNCTION]
        shape, device = (size // 4,), session.cpu()
        data = np.ones(shape, "float32")
        x, y = empty(shape, "float32", device), empty(shape, "float32", device)

        def run() -> np.ndarray:
            x.copyfrom(data)
            add(x, y)
            return y.numpy()

        assert run()[0] == data[0] + 1
        yield Trial(run)

    @contextmanager
    def allocation(self) -> Iterator[Trial]:
        """An array on the device, made and released."""
        device = self._connect().cpu()
        yield Trial(lambda: empty((16,), "float32", device))

    @contextmanager
    def opening(self, pause_s: float, held_s: float = 0.0) -> Iterator[Trial]:
        """Open sessions in turn, each held for ``held_s``; ``pause_s`` between the end of one and the next."""
        opened = []

        def after() -> None:
            time.sleep(held_s)
            opened.clear()
            time.sleep(pause_s)

        yield Trial(lambda: opened.append(self._connect()), after)

    @contextmanager
    def session(self) -> Iterator[Trial]:
        """A session and its first call, in turn: of a function that each server has, without its compiler."""
        opened = []

        def run() -> None:
            session = self._connect()
            session.get_function("tvm.rpc.server.workpath")("x")
            opened.append(session)

        yield Trial(run, after=opened.clear)

    def _remote_array(self, size: int):
        shape = (size // 4,)
        return empty(shape, "float32", self._connect().cpu()), np.ones(shape, "float32")

    def _connect(self) -> rpc.RPCSession:
        return rpc.connect("127.0.0.1", self.port, KEY)


class TvmClientOfOurs(TvmSessions):
    server_arguments = ours.PLAIN_SERVER


class TvmBehindConnect(TvmSessions):
    """TVM's client in a closed lab of ours, behind `rpcsys connect`."""

    def start(self) -> None:
        lab = ours.start_closed_lab(self)
        where = ("--listen", "127.0.0.1:0", "--tracker", f"127.0.0.1:{lab.port}", "--silent")
        self.port = self.start_server(("-m", "rpcsys.forward", *where))

    def _connect(self) -> rpc.RPCSession:
        return rpc.connect_tracker("127.0.0.1", self.port).request(KEY)


class TvmLease(Subject):
    """A tracker with one registered server."""

    server_arguments = ("-m", "benchmarks.peers.tvm_rpc", "--with-tracker")

    @contextmanager
    def lease(self) -> Iterator[Trial]:
        """Request a device from the tracker, open the session, and make the first call, in turn."""
        tracker = rpc.connect_tracker("127.0.0.1", self.port)
        opened = []

        def run() -> None:
            session = tracker.request(KEY)
            session.get_function("tvm.rpc.server.workpath")("x")
            opened.append(session)

        yield Trial(run, after=opened.clear)

    @contextmanager
    def candidate(self, path: str, size: int) -> Iterator[Trial]:
        """Measure one candidate with the steps of MetaSchedule's RPCRunner, from the lease to the session's end."""
        from tvm.s_tir.meta_schedule import arg_info, runner
        from tvm.s_tir.meta_schedule.runner import rpc_runner as steps

        library = str(compiled_add(path, size))
        place = {"tracker_host": "127.0.0.1", "tracker_port": self.port, "tracker_key": KEY}
        config = runner.RPCConfig(**place, session_timeout_sec=60)
        evaluator = runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=0)
        information = tuple(arg_info.TensorInfo("float32", (size // 4,)).as_json() for _ in range(2))

        def run() -> None:
            session = steps.default_create_session(config)
            device = session.device("cpu", 0)
            name = library.rpartition("/")[2]
            module = steps.default_upload_module(session, library, name)
            arguments = steps.default_alloc_argument(session, device, information, 1)
            assert len(steps.default_run_evaluator(session, module, device, evaluator, arguments)) == 3
            steps.default_cleanup(session, name)

        yield Trial(run)


class TvmLeaseOfOurs(TvmLease):
    def start(self) -> None:
        self.port = ours.start_lab(self, ours.PLAIN_SERVER)


def main() -> None:
    take_children_along()
    if "--with-tracker" in sys.argv:
        tracker = Tracker("127.0.0.1", port=9300, port_end=9900, silent=True)
        address = ("127.0.0.1", tracker.port)
        server = rpc.Server("127.0.0.1", port=9300, port_end=9900, key=KEY, tracker_addr=address, silent=True)
        announce(tracker.port)
    else:
        server = rpc.Server("127.0.0.1", port=9300, port_end=9900, key=KEY, silent=True)
        announce(server.port)
    serve_until_told()


if __name__ == "__main__":
    main()
