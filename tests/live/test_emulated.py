"""The device tier on boards with other processors: native functions, and the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys.module import toolchain
from tests.ffi.test_module import ALONE
from tests.live.daemons import Daemon, Daemons
from tests.live.emulated import MACHINES, Machine
from tests.native import FUNCTIONS, bare, compiled, lay_out
from tests.test_device_tier import SERVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "board"


@pytest.fixture(scope="module", params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def functions(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """functions.c, compiled for the machine."""
    target = tmp_path_factory.mktemp("native") / "functions.so"
    return compiled(FUNCTIONS, target, compiler=toolchain.find(machine.triple).command())


@pytest.fixture(scope="module")
def server(machine: Machine, tree: Path, module_daemons: Callable[[], Daemons]) -> Daemon:
    command = [str(machine.python), "-I", "-S", "-c", SERVE, str(tree), "--host", "127.0.0.1", "--port", "0"]
    daemon = module_daemons().launch("board", [*command, "--key", KEY])
    daemon.await_ready_line()
    return daemon


def test_the_emulated_machine_has_its_processor_python_and_libc(machine: Machine) -> None:
    code = "import platform, sys; print(platform.machine(), *sys.version_info[:2], platform.libc_ver()[1])"
    seen = machine.run("-I", "-S", "-c", code).split()
    expected = {
        "aarch64-bookworm": ["aarch64", "3", "11", "2.36"],
        "arm-bookworm": ["armv7l", "3", "11", "2.36"],
        "aarch64-bullseye": ["aarch64", "3", "9", "2.31"],
        "riscv64-trixie": ["riscv64", "3", "13", "2.41"],
    }[f"{machine.qemu}-{machine.suite}"]
    assert seen == expected or (machine.later and seen[0] == expected[0] and seen[1:] > expected[1:])


def test_native_functions_run_without_a_tvm_library(machine: Machine, tree: Path, functions: Path) -> None:
    assert bare(tree, ALONE, functions, python=str(machine.python)).splitlines() == [
        "add describe double_it offset silent type",
        "4.0 4.0 7 42 11",
        "2 2 64 1 0 1 2 3 3 1",
        "ValueError add takes two numbers of one type",
        "ValueError double_it takes two arrays",
        "RuntimeError the native function silent failed with status -1 and did not say why",
        "[]",
    ]


def test_the_server_serves_sessions(server: Daemon, machine: Machine, functions: Path) -> None:
    with rpcsys.connect(*server.address, key=KEY) as session:
        assert session.info["machine"]["arch"] == ("armv7l" if machine.qemu == "arm" else machine.qemu)
        large = np.random.default_rng(0).standard_normal(300_000)
        assert (session.get_function("testing.echo")(large) == large).all()
        session.upload(b"of the board", "file.txt")
        assert session.download("file.txt") == b"of the board"
        x = np.arange(64, dtype="float32")
        double = session.load_module(functions)["double_it"]
        assert double(x, rpcsys.empty(64)).tolist() == (2 * x).tolist()


def test_the_server_stops_with_status_0(server: Daemon) -> None:
    assert server.terminate(60) == 0
