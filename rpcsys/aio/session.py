"""Sessions with one leased device, and connections to a deployed module, for tasks."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, BinaryIO, Literal, TypeVar, overload

from rpcsys.aio import processes
from rpcsys.aio.calls import AsyncCalls
from rpcsys.aio.handles import AsyncRemoteArray, AsyncRemoteFunction, AsyncRemoteModule, for_tasks
from rpcsys.aio.processes import AsyncForward, AsyncRemoteProcess
from rpcsys.aio.threads import AsyncCloseable, in_loop, in_thread, threaded
from rpcsys.client import answers, capabilities, connection, files
from rpcsys.client.files import Asked, Source
from rpcsys.client.forwarding import Forward
from rpcsys.client.processes import Argument, CompletedProgram, RemoteProcess
from rpcsys.client.rows import DeviceReport
from rpcsys.client.session import ServedModule, Session
from rpcsys.client.transfers import TransferReport

Result = TypeVar("Result")
#: Seconds between two looks for new lines of a session's output.
LOOK_S = 0.05


@overload
async def connect(  # type: ignore[overload-overlap]  # "" is a str, too; the first match counts
    host: str,
    port: int | None = ...,
    key: str = ...,
    *,
    session_timeout: float | None = ...,
    timeout: float = ...,
    serve: Literal[""] = ...,
) -> AsyncSession: ...


@overload
async def connect(
    host: str, port: int | None = ..., key: str = ..., *, timeout: float = ..., serve: str
) -> AsyncServedModule: ...


async def connect(
    host: str,
    port: int | None = None,
    key: str = "",
    *,
    session_timeout: float | None = None,
    timeout: float = 60.0,
    serve: str = "",
) -> AsyncSession | AsyncServedModule:
    """Open a session with a device server, without a tracker. Arguments and errors as for `rpcsys.connect`."""
    open_one: Callable[..., Session | ServedModule] = connection.connect
    options = {"session_timeout": session_timeout, "timeout": timeout, "serve": serve}
    opened = await in_thread(functools.partial(open_one, host, port, key, **options), drop=_close)
    return AsyncServedModule(opened) if isinstance(opened, ServedModule) else AsyncSession(opened)


def _close(opened: Session | ServedModule) -> None:
    opened.close()


class AsyncSession(AsyncCloseable):
    """A session with one device, for any number of tasks. Made by `connect` and `AsyncTracker.request`.

    Attributes
    ----------
    info, lease, address : as for `rpcsys.client.Session`
    blocking : that session; its methods block, so they are for threads
    """

    def __init__(self, session: Session) -> None:
        self._calls = AsyncCalls(session, for_tasks)
        self.blocking = session
        self.info = session.info
        self.lease = session.lease
        self.address = session.address

    def __repr__(self) -> str:
        return f"<async {repr(self.blocking)[1:]}"

    def _repr_html_(self) -> str:
        return self.blocking._repr_html_()

    memory = threaded(Session.memory)
    board_state = threaded(Session.board_state)
    listdir = threaded(Session.listdir)
    remove = threaded(Session.remove)
    ping = threaded(Session.ping)

    async def get_function(self, name: str) -> AsyncRemoteFunction:
        """The function registered as ``name`` on the device. Raises `RemoteFunctionError` if there is none."""
        return AsyncRemoteFunction(self._calls, await in_thread(lambda: self.blocking.get_function(name)))

    async def load_module(
        self, path: Source, *, name: str | None = None, progress: Asked = None, device: str = "", threads: int = 0
    ) -> AsyncRemoteModule:
        """Load a model on the device, as `Session.load_module`. The loop calls ``progress``."""
        how = {"name": name, "device": device, "threads": threads}
        module = await self._transfer(Session.load_module, path, progress=progress, **how)
        return AsyncRemoteModule(self._calls, module)

    async def array(self, value: Any, *, device: str = "") -> AsyncRemoteArray:
        """Copy an array to the board, as `Session.array`."""
        where = capabilities.device(device, self.info.get("capabilities", {}))
        array: AsyncRemoteArray = await self._calls.builtin("session.put", value, *where)
        return array

    async def device_report(self) -> DeviceReport:
        """What the devices of the board have done in this session, as `Session.device_report`."""
        found: DeviceReport = answers.from_device(
            answers.DEVICES, await self._calls.builtin("session.devices"), "its devices"
        )
        return found

    async def run(self, function: Callable[..., Result], *args: Any, deadline_s: float | None = None) -> Result:
        """Run a Python function of yours on the device, as `Session.run`."""

        def start() -> Any:
            blob = capabilities.pickled(function, self.info.get("capabilities", {}))
            arguments = (capabilities.VERSION, blob, *args)
            return self.blocking._submit_builtin("session.run", *arguments, deadline_s=deadline_s)

        result: Result = await self._calls.run(start)
        return result

    async def upload(self, source: Source, target: str | None = None, *, progress: Asked = None) -> str:
        """Copy a local file, or bytes, into the session's directory, as `Session.upload`. Returns its name there.

        The loop calls ``progress``. A cancelled upload ends with its current megabyte.
        """
        return await self._transfer(Session.upload, source, target, progress=progress)

    async def download(
        self, name: str, target: str | os.PathLike[str] | None = None, *, progress: Asked = None, resume: bool = False
    ) -> bytearray:
        """Copy a file from the session's directory, as `Session.download`. The loop calls ``progress``.

        The rest of a cancelled download still arrives, and is dropped.
        """
        return await self._transfer(Session.download, name, target, progress=progress, resume=resume)

    async def push(self, local: str | os.PathLike[str], remote: str = "", *, progress: Asked = None) -> TransferReport:
        """Copy a local file or folder into the session's directory, as `Session.push`. The loop calls ``progress``.

        A cancelled push ends with its current megabyte, or message of small files; the next one goes on there.
        """
        return await self._transfer(Session.push, local, remote, progress=progress)

    async def pull(
        self, remote: str, local: str | os.PathLike[str] | None = None, *, progress: Asked = None
    ) -> TransferReport:
        """Copy a file or folder of the session's directory here, as `Session.pull`. The loop calls ``progress``."""
        return await self._transfer(Session.pull, remote, local, progress=progress)

    async def popen(
        self,
        args: Sequence[Argument],
        *,
        terminal: bool | tuple[int, int] = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncRemoteProcess:
        """Start a program on the device, as `Session.popen`; its streams are those of `asyncio`."""
        start = functools.partial(self.blocking.popen, args, terminal=terminal, cwd=cwd, env=env)
        return await processes.for_loop(await in_thread(start, drop=RemoteProcess.close))

    async def exec(
        self,
        args: Sequence[Argument],
        *,
        stdin: bytes | BinaryIO = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CompletedProgram:
        """Run a program on the device and wait for its end, as `Session.exec`. A cancelled task kills it."""
        start = functools.partial(self.blocking.popen, args, cwd=cwd, env=env)
        process = await in_thread(start, drop=RemoteProcess.close)
        outputs = await in_thread(functools.partial(process.communicate, stdin, timeout), stop=process.close)
        return CompletedProgram(process.args, process.wait(), *outputs)

    async def forward(self, board_port: int, desk_port: int = 0, *, reverse: bool = False) -> AsyncForward:
        """Have programs here reach ``board_port`` of the device, or the reverse, as `Session.forward`."""
        start = functools.partial(self.blocking.forward, board_port, desk_port, reverse=reverse)
        return AsyncForward(await in_thread(start, drop=Forward.close))

    async def log(self) -> AsyncIterator[str]:
        """The session's output on the device, line by line, from its beginning until the session ends."""
        self.blocking._channel.listen()
        number = 0
        while True:
            ended = self.closed is not None
            number, line = self.blocking._log.next(number)
            if line is not None:
                yield line
            elif ended:
                return
            else:
                await asyncio.sleep(LOOK_S)

    @property
    def closed(self) -> Exception | None:
        """The error that ended the session, or None while it is open."""
        return self.blocking.closed

    async def close(self) -> None:
        """End the session and release the device. Does nothing the second time."""
        await self._calls.close()

    async def _transfer(self, method: Callable[..., Result], *args: Any, progress: Asked, **more: Any) -> Result:
        """Run ``method`` in a thread. A cancelled task ends it when it reports progress."""
        stopped = threading.Event()
        asked: Asked = in_loop(progress) if callable(progress) else progress

        def transfer() -> Result:
            with files.reporting(asked, method.__name__) as report:

                def go_on(done: int, total: int) -> None:
                    if stopped.is_set():
                        raise CancelledError
                    if report is not None:
                        report(done, total)

                return method(self.blocking, *args, progress=go_on, **more)

        return await in_thread(transfer, stop=stopped.set)


class AsyncServedModule(AsyncRemoteModule, AsyncCloseable):
    """A deployed module over one connection of its own, for any number of tasks. Attributes as for `ServedModule`."""

    def __init__(self, served: ServedModule) -> None:
        super().__init__(AsyncCalls(served._session, for_tasks), served)
        self.name = served.name
        self.version = served.version
        self.info = served.info

    @property
    def closed(self) -> Exception | None:
        """The error that ended the connection, or None while it is open."""
        return self._calls.session.closed

    async def close(self) -> None:
        """Close the connection. Does nothing the second time."""
        await self._calls.close()
