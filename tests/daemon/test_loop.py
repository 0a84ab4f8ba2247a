"""Running a daemon's event loop."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from rpcsys.daemon import loop

EVERY_S = 0.1


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket for watchdog notifications of this process."""
    name = f"rpcsys-test-{uuid.uuid4().hex}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    monkeypatch.setenv("WATCHDOG_USEC", str(int(EVERY_S * 3e6)))
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.setblocking(False)
        yield listener


@pytest.fixture(autouse=True)
def _settings_put_back() -> Iterator[None]:
    switch, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(switch)
    gc.set_threshold(*thresholds)


def signs(listener: socket.socket) -> int:
    """How many notifications arrived since the last call."""
    count = 0
    try:
        while True:
            assert listener.recv(100) == b"WATCHDOG=1"
            count += 1
    except BlockingIOError:
        return count


def test_a_hanging_loop_does_not_notify_the_watchdog(manager: socket.socket) -> None:
    async def main() -> int:
        seen = 0
        while seen < 3:
            await asyncio.sleep(EVERY_S)
            seen += signs(manager)
        time.sleep(5 * EVERY_S)  # noqa: ASYNC251 - hangs
        return signs(manager)

    assert loop.run(main()) == 0


def test_without_a_service_manager_nothing_is_sent(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")

    async def main() -> int:
        await asyncio.sleep(3 * EVERY_S)
        return 7

    assert loop.run(main()) == 7
    assert signs(manager) == 0


ENDINGS = {
    "the daemon's own": "raise MemoryError",
    "a callback": "loop.call_soon(fail)",
    "a reader": "loop.add_reader(ready.fileno(), fail)",
    "a task that is not awaited": "loop.create_task(fails())",
    "a thread": "threading.Thread(target=fail).start()",
    "another thread of the loop's": "await loop.run_in_executor(None, fail)",
    "a destructor": "Failing()",
    "a library that logs it": """
try:
    fail()
except Exception:
    BatchLogHandler()
    logging.getLogger("tornado.application").error("Uncaught exception", exc_info=True)
""",
}
WITHOUT_MEMORY = """
import asyncio, logging, sys, threading
from rpcsys import logs, serve
from rpcsys.daemon import loop as daemon
from rpcsys.daemon.log_handler import BatchLogHandler
import os
reading, writing = os.pipe()
os.write(writing, b"x")
ready = open(reading)
def fail():
    raise MemoryError
async def fails():
    fail()
class Failing:
    def __del__(self):
        fail()
async def main():
    loop = asyncio.get_running_loop()
{}
    await asyncio.sleep(30)
    return 0
logs.setup("test")
sys.exit(serve.run(lambda: daemon.run(main()), "test"))
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_daemon_without_memory_ends_with_one_line(ending):
    body = "\n".join("    " + line for line in ENDINGS[ending].strip().splitlines())
    began = time.monotonic()
    code = WITHOUT_MEMORY.format(body)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert "no memory is left" in line
    assert time.monotonic() - began < 30
