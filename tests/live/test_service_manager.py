"""The daemons' messages to their service manager (sd_notify)."""

from __future__ import annotations

import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import rpcsys
from tests.live.daemons import ROOT, START_S, Daemon, Daemons, wait_until

KINDS = ["tracker", "proxy", "gateway", "server"]
WATCHDOG_S = 1.5


class Manager:
    """A service manager's socket: at a path, or with an abstract name."""

    def __init__(self, place: str) -> None:
        self.environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(place.replace("@", "\0", 1))
        self._socket.settimeout(START_S)

    def receive(self) -> str:
        """The next message; TimeoutError after a minute without one."""
        return self._socket.recv(4096).decode()

    def until(self, message: str) -> list[str]:
        """The messages up to this one, without it."""
        before: list[str] = []
        while (now := self.receive()) != message:
            before.append(now)
        return before

    def messages_for(self, seconds: float) -> list[str]:
        """The messages of the next ``seconds``."""
        end, found = time.monotonic() + seconds, []
        try:
            while (left := end - time.monotonic()) > 0:
                self._socket.settimeout(left)
                found.append(self.receive())
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(START_S)
        return found

    def rest(self) -> list[str]:
        """The messages that have arrived and were not read."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self.receive())
        except BlockingIOError:
            return found
        finally:
            self._socket.settimeout(START_S)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager(f"@rpcsys-test-{uuid.uuid4().hex}")
    yield made
    made.close()


def start(daemons: Daemons, kind: str, **environment: str) -> Daemon:
    if kind == "server":
        return daemons.server("cpu", "--tvm", "off", env=environment)
    flags = ("--server", "127.0.0.1:1", "--grpc-port", "0") if kind == "gateway" else ()
    return getattr(daemons, kind)(*flags, env=environment)


@pytest.mark.parametrize("kind", KINDS)
def test_ready_then_alive_then_stopping(kind: str, daemons: Daemons, manager: Manager) -> None:
    daemon = start(daemons, kind, **manager.environment)
    assert set(manager.until("READY=1")) <= {"WATCHDOG=1"}
    assert [manager.receive() for _ in range(3)] == ["WATCHDOG=1"] * 3
    assert daemon.terminate() == 0
    assert set(manager.until("STOPPING=1")) <= {"WATCHDOG=1"}


#: Python imports it at its start: SIGUSR2 makes the main thread, each daemon's loop, wait without end.
HANG = """
import signal, threading
signal.signal(signal.SIGUSR2, lambda *_: threading.Event().wait())
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_hangs_sends_no_watchdog_messages(
    kind: str, daemons: Daemons, manager: Manager, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANG)
    daemon = start(daemons, kind, **manager.environment, PYTHONPATH=f"{tmp_path}:{ROOT}")
    manager.until("READY=1")
    assert manager.receive() == "WATCHDOG=1"
    daemon.process.send_signal(signal.SIGUSR2)
    messages = manager.messages_for(2 * WATCHDOG_S)
    assert len(messages) <= 2, "one message may have been in flight"
    assert manager.messages_for(2 * WATCHDOG_S) == []
    assert daemon.running()
    daemon.destroy()


@pytest.mark.parametrize("kind", KINDS)
def test_no_watchdog_messages_for_another_processs_watchdog(kind: str, daemons: Daemons, manager: Manager) -> None:
    # WATCHDOG_PID names another process: the manager watches the daemon's parent.
    daemon = start(daemons, kind, **manager.environment, WATCHDOG_PID="1")
    assert daemon.terminate() == 0
    messages = manager.rest()
    assert (messages[0], set(messages[1:])) == ("READY=1", {"STOPPING=1"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_daemon_serves_without_its_manager(kind: str, daemons: Daemons, tmp_path: Path) -> None:
    gone = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "300000"}
    daemon = start(daemons, kind, **gone)
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.stderr()


def test_ready_is_sent_to_a_path_too(daemons: Daemons, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short: the manager binds a relative one
    manager = Manager("notify")
    try:
        start(daemons, "tracker", NOTIFY_SOCKET="notify")
        assert manager.receive() == "READY=1"
    finally:
        manager.close()


def test_a_stop_with_sigusr1_sends_no_stopping_before_the_last_session_ends(daemons: Daemons, manager: Manager) -> None:
    """After STOPPING=1, systemd limits the sessions to its TimeoutStopSec."""
    daemon = start(daemons, "server", **manager.environment)
    with rpcsys.connect(*daemon.address, key="cpu") as session:
        echo = session.get_function("testing.echo")
        daemon.process.send_signal(signal.SIGUSR1)
        assert set(manager.until("READY=1")) <= {"WATCHDOG=1"}
        assert [manager.receive() for _ in range(4)] == ["WATCHDOG=1"] * 4
        assert echo(41) == 41
        assert "STOPPING=1" not in manager.rest()
    assert set(manager.until("STOPPING=1")) <= {"WATCHDOG=1"}
    wait_until(lambda: not daemon.running(), START_S, "the end of the server")
    assert daemon.process.returncode == 0
