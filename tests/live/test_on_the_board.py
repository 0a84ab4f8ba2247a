"""Commands on a board: the self-test, and install.sh under BusyBox's shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import rpcsys
from rpcsys.errors import UsageError
from rpcsys.pack import build
from tests.live import artefacts, sdist
from tests.live.boards import KEY, Board, packed, unpacked
from tests.live.daemons import Daemons, wait_free
from tests.live.emulated import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

START_S = 120.0


def board(name: str, shared: Path, folder: Path) -> Board:
    machine = MACHINES[name]
    return unpacked(packed(shared, machine.triple), machine, folder)


def run(board: Board, *command: str | Path) -> tuple[int, str]:
    """Exit status and output of a command there."""
    done = subprocess.run(
        [str(word) for word in command],
        env=board.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", ["aarch64", "armhf", "old", "riscv64"])
def test_the_self_test_passes(name: str, shared: Path, tmp_path: Path) -> None:
    there = board(name, shared, tmp_path)
    status, said = run(there, there.top / "bin" / "rpcsys-server", "--self-test")
    assert status == 0, said
    lines = {line.split()[1]: line.split()[0] for line in said.splitlines()[:-1]}
    assert lines["session"] == lines["libtvm_ffi.so"] == lines["cloudpickle"] == "ok"
    assert lines["libtvm_runtime.so"] == ("missing" if name == "riscv64" else "ok")
    assert lines["numpy"] == "missing", "the stub does not count as numpy"
    assert said.endswith("this board can serve\n")


def test_libraries_with_a_newer_glibc_are_reported(tmp_path: Path) -> None:
    """Libraries of Debian 12's compilers on Debian 11: the packager and the self-test report them."""
    machine = MACHINES["old"]
    folder = sdist.built(machine.triple)
    with pytest.raises(UsageError, match=r"libtvm_ffi\.so needs glibc 2\.3\d, newer than --glibc 2\.31"):
        build.pack(machine.triple, tmp_path / "a.tar.gz", folder=folder, glibc="2.31")
    archive = build.pack(machine.triple, tmp_path / "a.tar.gz", folder=folder).path
    there = unpacked(archive, machine, tmp_path / "board")
    status, said = run(there, there.top / "bin" / "rpcsys-server", "--self-test")
    assert status == 1
    (line,) = [line for line in said.splitlines() if line.startswith("broken")]
    assert "libtvm_ffi.so" in line
    assert "GLIBC" in line


def test_install_sh_runs_under_busybox(shared: Path, daemons: Daemons, tmp_path: Path) -> None:
    there = board("aarch64", shared, tmp_path / "unpacked")
    tracker, root = daemons.tracker(), tmp_path / "root"
    root.mkdir()
    busybox = [shutil.which("busybox"), "sh"]
    flags = ["--key", KEY, "--host", "127.0.0.1", "--port", "0", "--tracker", tracker.where]
    try:
        status, said = run(there, *busybox, there.top / "install.sh", "--root", root, *flags)
        assert status == 0, said
        wait_free(tracker, KEY, 1, START_S)
        with rpcsys.connect_tracker(tracker.address).request(KEY, wait_timeout=START_S) as session:
            assert session.info["machine"]["arch"] == "aarch64"
    finally:
        uninstall = root / "opt/rpcsys/current/install.sh"
        status, said = run(there, *busybox, uninstall, "--root", root, "--uninstall")
    assert status == 0, said
    assert list(root.rglob("*")) == []


def test_a_packed_driver_is_loaded_for_tvms_clients(shared: Path, daemons: Daemons, tmp_path: Path) -> None:
    """The driver is a library that registers a function when it is loaded."""
    rpc = pytest.importorskip("tvm.rpc")
    machine = MACHINES["aarch64"]
    driver = artefacts.compiled(shared, machine.triple).folder / "testing.so"
    archive = build.pack(machine.triple, tmp_path / "a.tar.gz", from_wheels=True, drivers=[driver]).path
    server = unpacked(archive, machine, tmp_path / "board").start(daemons, "--host", "127.0.0.1", "--port", "0")
    server.await_ready_line()
    remote = rpc.connect(*server.address, key=KEY)
    assert remote.get_function("rpc.test.addone")(41) == 42
