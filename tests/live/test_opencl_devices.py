"""OpenCL devices of servers: TVM's unmodified client on ours as on TVM's own, and our sessions.

The device is PoCL's, on this machine's processor.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import ModelError
from tests.live import tuned
from tests.live.daemons import Daemon, Daemons, wait_until
from tests.opencl import LENGTH, Programs, weights

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")

KEY = "board"
WAIT_S = 30.0
NUMBERS = np.arange(LENGTH, dtype="float32")


@pytest.fixture(scope="module", params=["ours", "ctypes", "tvm"])
def server(request: pytest.FixtureRequest, module_daemons: Any, opencl_library: Path) -> Daemon:
    return module_daemons().server(KEY, "--load-library", str(opencl_library), flavour=request.param)


@pytest.fixture
def remote(server: Daemon, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session of TVM's client; it ends with the last reference to it."""
    yield rpc.connect(*server.address, key=KEY)
    request.node.funcargs.clear()
    gc.collect()


def load(remote: Any, path: Path) -> Any:
    remote.upload(str(path))
    return remote.load_module(path.name)


def runs(remote: Any, programs: Programs) -> None:
    """Check a function on the device."""
    device = remote.cl(0)
    y = tvm.runtime.empty((LENGTH,), "float32", device)
    load(remote, programs.addone)["addone"](tvm.runtime.tensor(NUMBERS, device), y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS + 1)


def test_tvms_client_uses_the_device(remote: Any, opencl_programs: Programs) -> None:
    device = remote.cl(0)
    assert device.exist
    assert not remote.cl(7).exist
    assert device.compute_version.startswith("OpenCL ")
    assert device.total_global_memory == 1 << 30
    x, y = tvm.runtime.tensor(NUMBERS, device), tvm.runtime.tensor(np.zeros(LENGTH, "float32"), device)
    np.testing.assert_array_equal(x.numpy(), NUMBERS)
    module = load(remote, opencl_programs.addone)
    module["addone"](x, y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS + 1)
    assert module.time_evaluator("addone", device, number=3, repeat=2)(x, y).min > 0
    machine = tvm.relax.VirtualMachine(load(remote, opencl_programs.relax), device)
    values = NUMBERS[:32].reshape(4, 8)
    machine.set_input("main", tvm.runtime.tensor(values, device))
    machine.invoke_stateful("main")
    np.testing.assert_allclose(machine.get_outputs("main").numpy(), np.maximum(values @ weights(), 0), rtol=1e-5)


def test_a_session_goes_on_after_errors_of_its_device(remote: Any, opencl_programs: Programs) -> None:
    device = remote.cl(0)
    x, y = (tvm.runtime.tensor(NUMBERS, device) for _ in range(2))
    with pytest.raises(Exception, match=r"kernel addone_kernel on opencl:0 does not build: .*no_number_now"):
        load(remote, opencl_programs.wrong)["addone"](x, y)
    kept = [tvm.runtime.empty((50 << 20,), "float32", device) for _ in range(5)]
    with pytest.raises(Exception, match=rf"opencl:0 is out of memory: {200 << 20} bytes are asked for, \d+ of "):
        tvm.runtime.empty((50 << 20,), "float32", device)
    kept.clear()
    runs(remote, opencl_programs)


@pytest.mark.parametrize("flavour", ["ours", "ctypes"])
def test_a_killed_session_leaves_the_device_to_the_next(
    daemons: Daemons, opencl_library: Path, opencl_programs: Programs, flavour: str
) -> None:
    server = daemons.server(KEY, "--load-library", str(opencl_library), flavour=flavour)
    remote = rpc.connect(*server.address, key=KEY)
    runs(remote, opencl_programs)
    (session,) = [pid for pid in server.tree() if "libtvm_opencl" in maps(pid)]
    os.kill(session, signal.SIGKILL)
    wait_until(lambda: session not in server.tree(), WAIT_S, "the session's process is gone")
    del remote
    gc.collect()
    runs(rpc.connect(*server.address, key=KEY), opencl_programs)


def maps(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text()
    return ""


def test_our_sessions_load_modules_for_the_device(
    daemons: Daemons, opencl_library: Path, opencl_programs: Programs
) -> None:
    for flags in ((), ("--load-library", str(opencl_library))):
        server = daemons.server(KEY, *flags)
        with rpcsys.connect(*server.address, key=KEY) as session:
            if flags:
                assert "addone" in session.load_module(opencl_programs.addone).functions
            else:
                with pytest.raises(ModelError, match="kind 'opencl', and TVM's runtime here has no OpenCL"):
                    session.load_module(opencl_programs.addone)


@pytest.mark.parametrize("flavour", ["ours", "ctypes"])
def test_a_tuners_candidates_are_measured_on_the_device(
    daemons: Daemons, opencl_library: Path, opencl_programs: Programs, tmp_path: Path, flavour: str
) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, "--load-library", str(opencl_library), tracker=tracker, flavour=flavour)
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(opencl_programs.candidate.read_bytes().replace(b"1.000000e+00f", b"no_number_now"))
    with tuned.running(tracker, KEY, alloc_repeat=2, timeout_s=WAIT_S) as runner:
        paths = [opencl_programs.candidate, wrong, opencl_programs.candidate]
        good, bad, again = tuned.results(runner, paths, "opencl", [LENGTH, LENGTH])
        for result in (good, again):
            assert result.error_msg is None
            assert len(result.run_secs) == 6  # two sets of arguments, three times each
            assert all(0 < float(seconds) < WAIT_S for seconds in result.run_secs)
        assert "does not build: " in bad.error_msg
        assert runner.counts == {"measured": 2, "known": 0}


def test_a_library_that_does_not_load_is_one_line_in_the_servers_log(daemons: Daemons, tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    server = daemons.server(KEY, "--load-library", str(tmp_path / "broken.so"))
    with pytest.raises(Exception):  # noqa: B017, PT011 - TVM's client says that the connection was closed
        rpc.connect(*server.address, key=KEY).cl(0).exist  # noqa: B018
    wait_until(lambda: "broken.so does not load" in server.stderr(), WAIT_S, "the server's log names the library")
    assert "Traceback" not in server.stderr()
