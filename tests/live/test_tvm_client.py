"""TVM's unmodified client against every pairing of trackers and device servers.

The pair of TVM's own daemons proves each scenario; the other pairs must give the same results.
A new way to run our server is one more entry in ``daemons.SERVERS`` and in ``TARGETS``.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.live.artefacts import LENGTH, Artefacts, relax_weights
from tests.live.daemons import SERVERS, Daemon, Daemons, queue, wait_free, wait_until
from tests.live.probe import SessionProbe
from tests.live.ways import ALLOWED, CONNECTED, DEFAULT, OPEN

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")

KEY = "board"
SCENARIO_S = 90.0  # then the daemons are stopped: a client that hangs fails
FREE_AGAIN_S = 15.0


@dataclass(frozen=True)
class Target:
    """The tracker and the server of a scenario, and how the client reaches them."""

    tracker: str
    server: str
    way: str = DEFAULT

    def __str__(self) -> str:
        return f"{self.tracker}-tracker+{self.server}-server" + (f"+{self.way}" if self.way != OPEN else "")


TARGETS = [
    Target("tvm", "tvm"),
    Target("ours", "ours"),
    Target("ours", "tvm"),
    Target("tvm", "ours"),
    Target("ours", "ctypes"),
    Target("ours", "bare"),
    Target("ours", "ours", ALLOWED),
    Target("ours", "tvm", ALLOWED),
    Target("ours", "ours", CONNECTED),
    Target("ours", "bare", CONNECTED),
]
#: Slow; of the other ways, one is not. Before releases: all ways, and TVM's server at TVM's tracker, which shows what
#: the tests expect of ours.
SLOW = {Target("ours", "ours", ALLOWED)}
OF_RELEASES = {Target("tvm", "tvm"), Target("ours", "tvm", ALLOWED), Target("ours", "bare", CONNECTED)}
MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), **dict.fromkeys(OF_RELEASES, pytest.mark.release)}


def rows(targets: list[Target]) -> list[Any]:
    """The targets as parameters."""
    return [pytest.param(each, marks=MARKS.get(each, ())) for each in targets]


def targets_with(feature: str) -> pytest.MarkDecorator:
    """Limit a test to targets with the feature."""
    having = [target for target in TARGETS if feature in SERVERS[target.server].features]
    return pytest.mark.parametrize("shared_lab", rows(having), indirect=True, ids=str)


class TargetLab:
    """A tracker and a server of one slot; restarted if a scenario leaves them unusable."""

    def __init__(self, target: Target, daemons: Daemons, artefacts: Artefacts) -> None:
        self.target = target
        self.daemons = daemons
        self.artefacts = artefacts
        self.features = SERVERS[target.server].features
        self.tracker: Daemon | None = None

    @property
    def started(self):
        return self.daemons.started

    def make_ready(self) -> None:
        """Wait until both run and the server is free; restart them if needed."""
        if not self._idle():
            self.daemons.stop()
            self.tracker = self.daemons.tracker(flavour=self.target.tracker)
            # The library has TVM's rpc.test.* functions, for servers without TVM's Python package.
            flags = ("--load-library", str(self.artefacts.testing))
            self.daemons.server(KEY, *flags, tracker=self.tracker, flavour=self.target.server)

    def _idle(self) -> bool:
        if not self.started or not all(daemon.running() for daemon in self.started):
            return False
        try:
            wait_free(self.tracker, KEY, 1, FREE_AGAIN_S)
        except (AssertionError, OSError, EOFError):
            return False
        return True

    def connect(self):
        """TVM's connection to the tracker."""
        return rpc.connect_tracker(*self.tracker.address)

    def request(self, **options):
        """A TVM session on the server."""
        return self.connect().request(KEY, **options)

    def wait_free(self) -> float:
        """Wait until the dropped session has released the server; the seconds that it took."""
        gc.collect()
        return wait_free(self.tracker, KEY, 1, FREE_AGAIN_S)


@pytest.fixture(scope="module", params=rows(TARGETS), ids=str)
def shared_lab(request: pytest.FixtureRequest, module_daemons, artefacts) -> Iterator[TargetLab]:
    lab = TargetLab(request.param, module_daemons(request.param.way), artefacts)
    yield lab
    lab.daemons.stop()


@pytest.fixture
def lab(shared_lab: TargetLab) -> Iterator[TargetLab]:
    """A ready target; its daemons are stopped if the scenario does not end."""
    shared_lab.make_ready()
    watchdog = threading.Timer(SCENARIO_S, shared_lab.daemons.stop)
    watchdog.start()
    yield shared_lab
    watchdog.cancel()
    gc.collect()


def load(remote, path):
    """Upload a library and load it on the device."""
    remote.upload(str(path))
    return remote.load_module(path.name)


def ones(device, value: float = 1.0):
    return tvm.runtime.tensor(np.full(LENGTH, value, "float32"), device)


# --- opening sessions -------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", sorted(SERVERS))
def test_connect_without_a_tracker(daemons: Daemons, flavour: str):
    server = daemons.server(KEY, flavour=flavour)
    for round_number in range(2):
        remote = rpc.connect(*server.address, key=KEY)
        assert ones(remote.cpu(0), round_number).numpy()[0] == round_number
        del remote
        gc.collect()


@pytest.mark.parametrize("flavour", sorted(SERVERS))
def test_a_wrong_key_is_refused(daemons: Daemons, flavour: str):
    server = daemons.server(KEY, flavour=flavour)
    with pytest.raises(Exception, match=r"(?i)match"):
        rpc.connect(*server.address, key="another")
    assert rpc.connect(*server.address, key=KEY) is not None


@pytest.mark.parametrize("flavour", ["bare", "ctypes", "ours"])
def test_a_connection_that_is_reset_is_lost(daemons: Daemons, flavour: str):
    """The session has not crashed: nothing counts against the board, and its log has no traceback."""
    server = daemons.server(KEY, flavour=flavour)
    probe = SessionProbe(server.address, KEY)
    probe.socket.sendall(struct.pack("<Q", 1 << 12))  # the length of a packet, of which nothing follows
    probe.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    probe.socket.close()
    wait_until(lambda: " s: lost" in server.stderr(), FREE_AGAIN_S, "the session ends")
    assert "Traceback" not in server.stderr()
    assert rpc.connect(*server.address, key=KEY) is not None


def test_a_second_session_does_not_see_the_files_of_the_first(lab: TargetLab):
    for _ in range(2):
        remote = lab.request()
        remote.upload(bytearray(b"mine"), "left-behind")
        del remote
        lab.wait_free()
    remote = lab.request()
    with pytest.raises(Exception, match="left-behind"):
        remote.download("left-behind")


def test_while_leased_the_server_is_not_free(lab: TargetLab):
    remote = lab.request()
    assert queue(lab.tracker, KEY) == {"free": 0, "pending": 0}
    del remote
    lab.wait_free()


@pytest.mark.parametrize("target", rows(TARGETS[:3]), ids=str)
def test_a_key_stays_in_the_summary_after_its_server_has_gone(daemons: Daemons, target: Target):
    tracker = daemons.tracker(flavour=target.tracker)
    server = daemons.server(KEY, tracker=tracker, flavour=target.server)
    wait_free(tracker, KEY, 1, FREE_AGAIN_S)
    client = rpc.connect_tracker(*tracker.address)
    server.destroy()
    wait_until(lambda: client.summary()["queue_info"][KEY]["free"] == 0, FREE_AGAIN_S, "the server is gone")
    assert client.summary()["server_info"] == []


def test_request_and_run_returns_the_result(lab: TargetLab):
    def work(remote):
        device = remote.cpu(0)
        return ones(device, 3.0).numpy()[0]

    assert lab.connect().request_and_run(KEY, work) == 3.0


def test_the_text_summary_has_the_key(lab: TargetLab):
    text = lab.connect().text_summary()
    assert f"server:{KEY}" in text
    (row,) = [line for line in text.splitlines() if line.startswith(KEY)]
    assert row.split() == [KEY, "1", "1", "0"]


def test_tvms_query_tool_shows_the_key(lab: TargetLab):
    host, port = lab.tracker.address
    command = [sys.executable, "-m", "tvm.exec.query_rpc_tracker", "--host", host]
    done = subprocess.run([*command, "--port", str(port)], capture_output=True, text=True, timeout=SCENARIO_S)
    assert done.returncode == 0, done.stderr
    assert f"server:{KEY}" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(KEY)]
    assert row.split() == [KEY, "1", "1", "0"]


def test_a_session_over_its_limit_ends(lab: TargetLab):
    started = time.monotonic()
    remote = lab.request(session_timeout=2)
    nap = load(remote, lab.artefacts.session_faults)["nap"]
    with pytest.raises(Exception, match="session_timeout") as caught:
        nap()
    assert type(caught.value).__name__ == "RPCSessionTimeoutError"
    assert 1.5 <= time.monotonic() - started < 12
    del remote, nap, caught
    lab.wait_free()


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_upload_and_download(lab: TargetLab, size: int):
    data = bytearray(os.urandom(size))
    remote = lab.request()
    remote.upload(data, "data.bin")
    assert remote.download("data.bin") == data


def test_upload_replaces_and_remove_removes(lab: TargetLab):
    remote = lab.request()
    remote.upload(bytearray(b"first"), "a.txt")
    remote.upload(bytearray(b"2nd"), "a.txt")
    assert remote.download("a.txt") == b"2nd"
    remote.remove("a.txt")
    with pytest.raises(Exception, match=r"a\.txt"):
        remote.download("a.txt")


@targets_with("listdir")
def test_listdir_lists_uploaded_files(lab: TargetLab):
    remote = lab.request()
    remote.upload(bytearray(b"x"), "one")
    remote.upload(bytearray(b"x"), "two")
    assert sorted(remote.listdir("").split(",")) == ["one", "two"]


@targets_with("jail")
class TestPathsOutside:
    """Paths outside the session's directory cannot be read, written, removed or loaded."""

    @pytest.fixture
    def remote(self, lab: TargetLab):
        return lab.request()

    @pytest.fixture
    def secret(self, tmp_path, artefacts: Artefacts):
        """A library outside the session's directory."""
        return shutil.copy(artefacts.addone, tmp_path / "secret.so")

    @pytest.fixture(
        params=[
            "absolute",
            "symlink",
            *(pytest.param(dots, marks=pytest.mark.slow) for dots in ("dots", "dots inside")),
        ]
    )
    def path(self, request: pytest.FixtureRequest, remote, secret) -> str:
        """A path of ``secret`` that a client may try."""
        home = os.path.dirname(remote.get_function("tvm.rpc.server.workpath")("x"))
        dots = os.path.relpath(secret, home)
        if request.param == "symlink":
            os.symlink(secret.parent, os.path.join(home, "link"))
            return "link/secret.so"
        os.mkdir(os.path.join(home, "inside"))
        names = {"absolute": str(secret), "dots": dots, "dots inside": f"inside/../{dots}"}
        return names[request.param]

    def test_read(self, remote, path: str):
        with pytest.raises(Exception, match="secret"):
            remote.download(path)
        remote.upload(bytearray(b"fine"), "fine")
        assert remote.download("fine") == b"fine"

    def test_write(self, remote, path: str, secret):
        before = secret.read_bytes()
        with pytest.raises(Exception, match="secret"):
            remote.upload(bytearray(b"overwritten"), path)
        assert secret.read_bytes() == before

    def test_write_anew(self, remote, path: str, secret):
        secret.unlink()
        with pytest.raises(Exception, match="secret"):
            remote.upload(bytearray(b"planted"), path)
        assert not secret.exists()

    def test_remove(self, remote, path: str, secret):
        with pytest.raises(Exception, match="secret"):
            remote.remove(path)
        assert secret.exists()

    def test_load(self, remote, path: str):
        with pytest.raises(Exception, match="secret"):
            remote.load_module(path)


# --- functions, modules and arrays -------------------------------------------------------------


def test_arrays_cross_both_ways(lab: TargetLab):
    remote = lab.request()
    for dtype in ("float32", "int8", "int64", "uint8", "float16", "bool"):
        values = np.arange(24).reshape(2, 3, 4).astype(dtype)
        np.testing.assert_array_equal(tvm.runtime.tensor(values, remote.cpu(0)).numpy(), values)


def test_a_compiled_library_runs_on_remote_arrays(lab: TargetLab):
    remote = lab.request()
    addone = load(remote, lab.artefacts.addone)["addone"]
    x, y = ones(remote.cpu(0), 41.0), ones(remote.cpu(0), 0.0)
    addone(x, y)
    np.testing.assert_array_equal(y.numpy(), np.full(LENGTH, 42.0, "float32"))


@targets_with("listdir")
def test_a_loaded_library_is_replaced_under_its_name(lab: TargetLab):
    """TVM's own server writes into the mapped file, which ends the session."""
    remote = lab.request()
    addone, relax = lab.artefacts.addone, lab.artefacts.relax
    before = load(remote, addone)
    remote.upload(str(relax), addone.name)
    after = remote.load_module(addone.name)
    x, y = ones(remote.cpu(0), 41.0), ones(remote.cpu(0), 0.0)
    before["addone"](x, y)
    np.testing.assert_array_equal(y.numpy(), np.full(LENGTH, 42.0, "float32"))
    assert after["vm_load_executable"]() is not None
    assert remote.listdir("") == addone.name


def test_the_time_evaluator_measures(lab: TargetLab):
    remote = lab.request()
    device = remote.cpu(0)
    module = load(remote, lab.artefacts.addone)
    evaluator = module.time_evaluator("addone", device, number=5, repeat=3)
    result = evaluator(ones(device), ones(device))
    assert len(result.results) == 3
    assert all(0 < seconds < 1 for seconds in result.results)


def test_a_relax_executable_runs(lab: TargetLab):
    from tvm import relax

    remote = lab.request()
    machine = relax.VirtualMachine(load(remote, lab.artefacts.relax), remote.cpu(0))
    x = np.random.default_rng(1).standard_normal((4, 8)).astype("float32")
    wanted = np.maximum(x @ relax_weights(), 0)
    machine.set_input("main", tvm.runtime.tensor(x, remote.cpu(0)))
    machine.invoke_stateful("main")
    np.testing.assert_allclose(machine.get_outputs("main").numpy(), wanted, rtol=1e-5)
    timing = machine.time_evaluator("invoke_stateful", remote.cpu(0), number=2)("main")
    assert timing.mean > 0


def test_wrong_arguments_are_an_error_with_a_message(lab: TargetLab):
    remote = lab.request()
    addone = load(remote, lab.artefacts.addone)["addone"]
    x = ones(remote.cpu(0))
    with pytest.raises(Exception, match=r"addone|num_args|argument"):
        addone(x)
    addone(x, x)
    assert x.numpy()[0] == 2.0


def test_a_missing_module_is_an_error_with_its_name(lab: TargetLab):
    remote = lab.request()
    with pytest.raises(Exception, match=r"nowhere\.so"):
        remote.load_module("nowhere.so")
    remote.upload(bytearray(b"still here"), "x")


def test_a_missing_function_is_an_error_with_its_name(lab: TargetLab):
    remote = lab.request()
    with pytest.raises(Exception, match=r"no\.such\.function"):
        remote.get_function("no.such.function")(1)


def test_an_exception_brings_its_message(lab: TargetLab):
    remote = lab.request()
    with pytest.raises(Exception, match="what went wrong"):
        remote.get_function("rpc.test.except")("what went wrong")
    assert remote.get_function("rpc.test.addone")(1) == 2


def test_a_library_that_the_server_loads_has_registered_its_functions(lab: TargetLab):
    assert lab.request().get_function("live.loaded")(1) == 2


def test_functions_of_the_server_are_called(lab: TargetLab):
    remote = lab.request()
    assert remote.get_function("rpc.test.addone")(10) == 11
    assert remote.get_function("rpc.test.strcat")("abc", 11) == "abc:11"
    remote.get_function("rpc.test.remote_tensor_func")(tvm.runtime.tensor(np.ones((3, 4)), remote.cpu(0)))


def test_closures_live_on_the_device(lab: TargetLab):
    remote = lab.request()
    add_to_lhs = remote.get_function("rpc.test.add_to_lhs")
    assert add_to_lhs(10)(5) == 15
    get_array = remote.get_function("rpc.test.remote_return_nd")("get_arr")
    np.testing.assert_array_equal(get_array().numpy(), np.zeros(10, "float32"))
    get_element = remote.get_function("rpc.test.remote_return_nd")("get_elem")
    assert get_element(0) == 0.0
