"""Hundreds of sessions: the server does not grow, and no session hangs."""

from __future__ import annotations

import concurrent.futures
import os
import statistics
import threading
import time
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.client.session import Session
from tests.live.daemons import Daemon, Daemons, pss_mb, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "many"
SLOTS = 8
MANY = 500
FORKED = 1000
GROWTH_MB = 1.0
HANGS_S = 60.0  # for a session of some milliseconds, on a busy machine
CENSUS = {"descriptors", "threads", "processes", "files"}


def census(server: Daemon, folder: Path) -> dict[str, int]:
    """The resources of the idle server's processes."""
    wait_until(lambda: len(server.tree(inits=False)) == SLOTS + 2, HANGS_S, "a child waits for every slot")
    wait_until(lambda: not list(folder.glob("rpcsys-server-*/session-*")), HANGS_S, "every directory is gone")
    (zygote,) = server.children()
    lasting = [psutil.Process(server.pid), zygote]

    def count() -> dict[str, int]:
        return {
            "descriptors": sum(process.num_fds() for process in lasting),
            "threads": sum(process.num_threads() for process in lasting),
            "processes": len(server.tree(inits=False)),
            "files": sum("/ready-" not in str(path) for path in folder.glob("rpcsys-server-*/**/*")),
        }

    def rests() -> bool:
        before = count()
        time.sleep(0.3)  # a process that starts has pipes for a moment
        return count() == before

    wait_until(rests, HANGS_S, "the server is idle")
    return count()


def memory_mb(server: Daemon) -> float:
    """The private memory in MB of the supervisor and the zygote; the children are new each time."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in (server.pid, server.children()[0].pid)) / 1e6


def use(server: Daemon) -> None:
    with rpcsys.connect(*server.address, key=KEY, timeout=HANGS_S) as session:
        assert session.get_function("testing.echo")(7) == 7


def test_a_thousand_sessions_do_not_grow_the_server(daemons: Daemons, record_property):
    server = daemons.server(KEY, "--tvm", "off", "--preload", "none", "--slots", str(SLOTS), "--silent")
    for _ in range(50):
        use(server)
    before, memory = census(server, daemons.folder), memory_mb(server)
    began = time.monotonic()
    for _ in range(MANY):
        use(server)
    in_turn = time.monotonic() - began
    with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(lambda _: use(server), range(MANY)))
    after = census(server, daemons.folder)
    growth = memory_mb(server) - memory
    record_property(f"{MANY} in turn and {MANY} eight at a time", f"{before} -> {after}, {growth:+.2f} MB")
    record_property("a session in turn", f"{in_turn / MANY * 1e3:.1f} ms")
    assert after == before
    assert growth < GROWTH_MB


def opened(server: Daemon) -> tuple[float, Session]:
    began = time.perf_counter()
    session = rpcsys.connect(*server.address, key=KEY, timeout=HANGS_S)
    return time.perf_counter() - began, session


def test_sessions_open_within_a_second(daemons: Daemons, record_property):
    """The recorded figures need an idle machine; the bounds are loose."""
    server = daemons.server(KEY, "--tvm", "off", "--preload", "none", "--slots", str(SLOTS), "--silent")
    in_turn, at_once = [], []
    for _ in range(200):
        took, session = opened(server)
        session.close()
        in_turn.append(took)
    for _ in range(20):
        wait_until(lambda: len(server.tree(inits=False)) == SLOTS + 2, HANGS_S, "a child waits for every slot")
        together = threading.Barrier(SLOTS)
        with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
            results = list(pool.map(lambda _, wait=together.wait: (wait(), opened(server))[1], range(SLOTS)))
        at_once += [took for took, _ in results]
        for _, session in results:
            session.close()
    record_property("opening in turn, median", f"{statistics.median(in_turn) * 1e3:.1f} ms")
    record_property(f"opening {SLOTS} at once, median", f"{statistics.median(at_once) * 1e3:.1f} ms")
    assert statistics.median(in_turn) < 1
    assert statistics.median(at_once) < 1


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> bytes:
    """y = x @ w: a small model that uses onnxruntime's threads and kernels."""
    numpy = pytest.importorskip("numpy")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(numpy.eye(64, dtype="float32") * 2, "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "tiny", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def test_no_session_hangs_that_is_forked_after_imports(
    daemons: Daemons, tiny_model: bytes, tmp_path: Path, record_property
):
    import numpy as np

    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_model)
    server = daemons.server(KEY, "--tvm", "python", "--preload", "numpy,onnxruntime,tvm", "--slots", "4", "--silent")
    x = np.arange(64 * 64, dtype="float32").reshape(64, 64)

    def run(_: int) -> float:
        began = time.monotonic()
        with rpcsys.connect(*server.address, key=KEY, timeout=HANGS_S, session_timeout=HANGS_S) as session:
            model = session.load_module(os.fspath(path))
            assert (model(x) == 2 * x).all()
        return time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        took = sorted(pool.map(run, range(FORKED)))
    record_property(
        f"{FORKED} sessions with a model", f"median {took[FORKED // 2] * 1e3:.0f} ms, longest {took[-1]:.2f} s"
    )
    record_property("processes of the server", f"{pss_mb(server.tree()):.0f} MB (PSS)")
    assert took[-1] < HANGS_S
