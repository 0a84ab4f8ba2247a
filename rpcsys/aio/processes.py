"""Programs on the device and forwarded ports, for tasks, with the names of `asyncio.subprocess`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, BinaryIO

from rpcsys.aio.threads import AsyncCloseable, in_thread
from rpcsys.client.forwarding import Forward
from rpcsys.client.processes import RemoteProcess


class AsyncRemoteProcess(AsyncCloseable):
    """A program that runs on the device. Made by `AsyncSession.popen`.

    As a context manager, it closes ``stdin``, waits for the end, and closes the other two.

    Attributes
    ----------
    args, pid, returncode : as for `RemoteProcess`
    stdin : an `asyncio.StreamWriter`
    stdout, stderr : `asyncio.StreamReader`; with a terminal, all that it writes is in ``stdout``
    blocking : the client's `RemoteProcess`; its files belong to the loop
    """

    def __init__(
        self, process: RemoteProcess, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader, transports: list[asyncio.BaseTransport],
    ) -> None:  # fmt: skip
        self.blocking = process
        self.args, self.pid = process.args, process.pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._transports = transports
        self._end = asyncio.ensure_future(in_thread(process.wait))
        self._end.add_done_callback(lambda end: end.cancelled() or end.exception())  # it may be nobody's

    @property
    def returncode(self) -> int | None:
        """None while it runs; then its exit status, or below zero the number of the signal that ended it."""
        return self.blocking.returncode

    def __repr__(self) -> str:
        return f"<async {repr(self.blocking)[1:]}"

    async def __aexit__(self, *_: object) -> None:
        self.stdin.close()
        try:
            await self.wait()
        finally:
            await self.close()

    async def wait(self) -> int:
        """Wait until the program has ended; its ``returncode``. Raises `SessionLost` if the session ends before."""
        return await asyncio.shield(self._end)

    async def communicate(self, input: bytes = b"") -> tuple[bytes, bytes]:
        """Send ``input``; read all that the program writes: standard output, and error.

        A cancelled task kills the program, so ``asyncio.timeout`` limits its time.
        """
        try:
            _, output, error, _ = await asyncio.gather(
                self._send(input), self.stdout.read(), self.stderr.read(), self.wait()
            )
        except BaseException:
            await self.close()
            raise
        return output, error

    async def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # it takes no more
            self.stdin.write(data)
            await self.stdin.drain()
        self.stdin.close()

    def send_signal(self, number: int) -> None:
        """Send a signal to the program and what it has started in its process group. Does nothing after its end."""
        self.blocking.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.blocking.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.blocking.kill()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self.blocking.resize(rows, columns)

    async def close(self) -> None:
        """Kill the program if it runs, and close its streams. Does nothing the second time."""
        self.blocking.close()
        for transport in self._transports:
            transport.close()


async def for_loop(process: RemoteProcess) -> AsyncRemoteProcess:
    """The process with streams of this task's loop."""
    loop = asyncio.get_running_loop()
    transports: list[asyncio.BaseTransport] = []

    async def connected(connect: Any, pipe: BinaryIO) -> tuple[asyncio.StreamReader, Any, Any]:
        reader = asyncio.StreamReader()
        transport, protocol = await connect(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        transports.append(transport)
        return reader, transport, protocol

    try:
        unread, transport, protocol = await connected(loop.connect_write_pipe, process.stdin)
        stdin = asyncio.StreamWriter(transport, protocol, unread, loop)
        stdout, *_ = await connected(loop.connect_read_pipe, process.stdout)
        stderr, *_ = await connected(loop.connect_read_pipe, process.stderr)
    except BaseException:
        process.close()
        for each in transports:
            each.close()
        raise
    return AsyncRemoteProcess(process, stdin, stdout, stderr, transports)


class AsyncForward(AsyncCloseable):
    """A forwarded port, until it is closed. Made by `AsyncSession.forward`. ``port``: as for `Forward`."""

    def __init__(self, forward: Forward) -> None:
        self.blocking = forward
        self.port = forward.port

    async def close(self) -> None:
        """Listen no longer, and close the connections. Does nothing the second time."""
        self.blocking.close()
