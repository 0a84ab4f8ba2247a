"""A server with ``--pin-governor``, on a folder with Linux's files: pinned in sessions, put back whatever ends it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import rpcsys
from tests.live.daemons import Daemon, Daemons, descendants, kill_all, wait_until
from tests.server.frequency import FrequencyFiles

#: The server, whose files of Linux are below the first argument.
SERVER = (
    "import sys; from rpcsys.server.sandbox import governors; governors.ROOT = sys.argv.pop(1);"
    "from rpcsys.server.__main__ import main; sys.exit(main())"
)
SOON_S = 30.0


@pytest.fixture
def files(tmp_path: Path) -> FrequencyFiles:
    """A policy for each CPU."""
    return FrequencyFiles(tmp_path / "linux", *([cpu] for cpu in sorted(os.sched_getaffinity(0))))


def start(daemons: Daemons, files: FrequencyFiles, *flags: str) -> Daemon:
    words = ("--host", "127.0.0.1", "--port", "0", "--key", "rpi4", "--tvm", "off", "--preload", "none", *flags)
    daemon = daemons.launch("server", (sys.executable, "-c", SERVER, str(files.root), *words))
    daemon.await_ready_line()
    return daemon


def wait_for(files: FrequencyFiles, governor: str) -> None:
    wait_until(lambda: set(files.governors()) == {governor}, SOON_S, f"all CPUs have {governor}")


def test_pinned_in_a_session_and_put_back_behind_it(daemons: Daemons, files: FrequencyFiles) -> None:
    server = start(daemons, files, "--pin-governor")
    with rpcsys.connect("127.0.0.1", server.address[1], key="rpi4"):
        wait_for(files, "performance")
    wait_for(files, "ondemand")
    assert "--pin-governor" not in server.stderr()


def test_put_back_when_the_server_ends(daemons: Daemons, files: FrequencyFiles) -> None:
    server = start(daemons, files, "--pin-governor", "--grace", "0")
    with rpcsys.connect("127.0.0.1", server.address[1], key="rpi4"):
        wait_for(files, "performance")
        assert server.terminate() == 0
    wait_for(files, "ondemand")


def test_put_back_by_the_zygote_when_the_server_is_killed(daemons: Daemons, files: FrequencyFiles) -> None:
    server = start(daemons, files, "--pin-governor")
    with rpcsys.connect("127.0.0.1", server.address[1], key="rpi4"):
        wait_for(files, "performance")
        server.kill()
    wait_for(files, "ondemand")


def test_put_back_by_the_next_server_when_all_is_killed(daemons: Daemons, files: FrequencyFiles) -> None:
    server = start(daemons, files, "--pin-governor")
    with rpcsys.connect("127.0.0.1", server.address[1], key="rpi4"):
        wait_for(files, "performance")
        below = descendants(server.pid)
        os.killpg(server.pid, 9)
        kill_all(below)
        server.process.wait(SOON_S)
    assert set(files.governors()) == {"performance"}
    start(daemons, files)  # without the flag, too
    wait_for(files, "ondemand")


def test_a_machine_without_governors_serves_and_says_so_once(daemons: Daemons, tmp_path: Path) -> None:
    server = start(daemons, FrequencyFiles(tmp_path / "linux"), "--pin-governor")
    for _ in range(2):
        with rpcsys.connect("127.0.0.1", server.address[1], key="rpi4") as session:
            assert session.get_function("testing.echo")(1) == 1
    assert server.stderr().count("--pin-governor: this machine shows no frequency governors") == 1
