"""Forwarded ports: both ways round, many connections, half-closed ones, slow readers, and a debugger through one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.wire.byte_streams import WINDOW
from tests.live.board_commands import WAIT_S, shell, started
from tests.live.daemons import Daemon, free_port, wait_until

MB = 1 << 20
CONNECTIONS = 100
#: What sockets of the kernel hold, on both legs, beside a window.
IN_SOCKETS = 24 * MB

PROGRAM = """
#include <stdio.h>
static int answer = 40;
int main(void) { answer += 2; printf("%d\\n", answer); return 0; }
"""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what comes, once its client has sent all."""
    with serving(_echo) as port:
        yield port


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        yield listener.getsockname()[1]


def _echo(connection: socket.socket) -> None:
    with connection:
        data = b"".join(iter(lambda: connection.recv(MB), b""))
        connection.sendall(data)


def sent_and_back(port: int, data: bytes) -> bytes:
    """Send all of ``data`` and close that half; what comes until the other one is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(MB), b""))


@pytest.mark.parametrize("reverse", [False, True])
def test_many_connections_at_once_half_closed(session: rpcsys.client.Session, echo: int, reverse: bool) -> None:
    # The board is this machine, so that only the numbers of the ports tell the two apart.
    opened = session.forward(free_port() if reverse else echo, echo if reverse else 0, reverse=reverse)
    wrong: list[int] = []

    def one(number: int) -> None:
        data = os.urandom(20000) * (1 + number % 20)
        if hashlib.sha256(sent_and_back(opened.port, data)).digest() != hashlib.sha256(data).digest():
            wrong.append(number)

    with opened:
        threads = [threading.Thread(target=one, args=(number,)) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", opened.port)), WAIT_S, "nothing listens any more")
    assert session.get_function("testing.echo")(1) == 1


def test_a_slow_reader_stops_the_other_end_and_nothing_else(session: rpcsys.client.Session, echo: int) -> None:
    taken = 0

    def endless(connection: socket.socket) -> None:
        nonlocal taken
        with connection, contextlib.suppress(OSError):
            while True:
                taken += connection.send(bytes(MB))

    process = psutil.Process(session.info["pid"])
    before = process.memory_info().rss
    with serving(endless) as port, session.forward(port) as slow, session.forward(echo) as quick:
        with socket.create_connection(("127.0.0.1", slow.port)) as unread:
            wait_until(lambda: taken > WINDOW, WAIT_S, "it sends")
            assert sent_and_back(quick.port, b"x" * MB) == b"x" * MB
            assert taken < IN_SOCKETS
            assert process.memory_info().rss - before < IN_SOCKETS
            assert len(unread.recv(100)) == 100


def test_a_port_without_a_server_closes_the_connection(session: rpcsys.client.Session, caplog) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens at it
        port = taken.getsockname()[1]
        with session.forward(port) as forward, socket.create_connection(("127.0.0.1", forward.port)) as connection:
            connection.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        wait_until(lambda: "Connection refused" in caplog.text, WAIT_S, "the reason is logged")


def test_the_command_forwards_until_it_is_interrupted(server: Daemon, echo: int) -> None:
    desk = free_port()
    with started(server, "forward", f"{echo}:{desk}") as command:
        assert command.stdout.readline() == f"127.0.0.1:{desk} is {echo} of the board\n".encode()
        assert sent_and_back(desk, b"hello") == b"hello"
        command.send_signal(signal.SIGINT)
        assert command.wait(WAIT_S) == 130


@pytest.mark.skipif(
    not all(map(shutil.which, ("gdb", "gdbserver", "gcc"))),
    reason="needs a debugger: apt-get install gdb gdbserver gcc",
)
def test_gdb_debugs_a_program_on_the_board(session: rpcsys.client.Session, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    subprocess.run(["gcc", "-g", "-O0", "-o", program, tmp_path / "program.c"], check=True, timeout=WAIT_S)
    session.upload(program, "program")
    port = free_port()
    debugged = session.popen(shell(f"chmod +x program && exec gdbserver --once 127.0.0.1:{port} ./program"))
    while b"Listening" not in (line := debugged.stderr.readline()):
        assert line, "gdbserver has ended"
    with session.forward(port) as forward:
        steps = [f"target remote 127.0.0.1:{forward.port}", "break 4", "continue", "next", "print answer", "continue"]
        flags = [flag for step in steps for flag in ("-ex", step)]
        said = subprocess.run(
            ["gdb", "-batch", "-nx", *flags, program], capture_output=True, text=True, timeout=WAIT_S
        ).stdout
    assert "$1 = 42" in said, said
    assert debugged.communicate(timeout=WAIT_S)[0] == b"42\n"
