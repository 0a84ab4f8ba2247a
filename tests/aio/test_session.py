"""A task's session with a device: files, functions of the user, output, and the ends."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import rpcsys
from rpcsys.client import session as blocking
from rpcsys.errors import (
    PathError,
    RemoteFileError,
    RemoteFunctionError,
    ServerUnreachable,
    SessionClosed,
    SessionError,
    UsageError,
)
from tests.aio.looped import become, looped
from tests.device import Device


@looped
async def test_a_session_is_described_like_the_blocking_one(device):
    async with await rpcsys.aio.connect("{}:{}".format(*device.address), key="key") as session:
        assert session.address == device.address
        assert session.lease == {}
        assert session.info["version"] == 1
        assert repr(session).startswith("<async session")
        assert isinstance(session.blocking, blocking.Session)
        assert session.closed is None
        with pytest.raises(RemoteFunctionError, match="nonsense"):
            await session.get_function("nonsense")
    assert isinstance(session.closed, SessionClosed)


@looped
async def test_connecting_fails_as_for_threads(device):
    with pytest.raises(UsageError):
        await rpcsys.aio.connect("host:port:more")
    with pytest.raises(UsageError, match="session_timeout"):
        await rpcsys.aio.connect(*device.address, serve="x", session_timeout=1)  # type: ignore[call-overload]
    device.process.kill()
    with pytest.raises(ServerUnreachable):
        await rpcsys.aio.connect("127.0.0.1:1")


@looped
async def test_files_go_both_ways_with_progress_in_the_loop(device, tmp_path):
    blob = np.random.default_rng(0).bytes(3 << 20)
    reports: list[tuple[int, int, threading.Thread]] = []
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        report = lambda done, total: reports.append((done, total, threading.current_thread()))  # noqa: E731
        assert await session.upload(blob, "a/blob", progress=report) == "a/blob"
        assert reports[-1] == (3 << 20, 3 << 20, threading.main_thread())
        assert await session.listdir("a") == ["blob"]
        assert await session.download("a/blob", progress=report) == blob
        await session.download("a/blob", tmp_path / "here", resume=True)
        assert (tmp_path / "here").read_bytes() == blob
        await session.remove("a/blob")
        with pytest.raises(RemoteFileError):
            await session.download("a/blob")
        with pytest.raises(PathError):
            await session.upload(b"", "../blob")
        await session.ping()


@looped
async def test_many_uploads_and_calls_at_once(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        echo = await session.get_function("testing.echo")
        blobs = [bytes([number]) * 100_000 for number in range(20)]
        uploads = [session.upload(blob, f"{number}") for number, blob in enumerate(blobs)]
        calls = [echo(number) for number in range(100)]
        done = await asyncio.gather(*uploads, *calls)
        assert done == [*map(str, range(20)), *range(100)]
        assert await asyncio.gather(*(session.download(f"{number}") for number in range(20))) == blobs


@looped
async def test_a_cancelled_upload_leaves_no_file_and_the_session_goes_on(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        task: asyncio.Task[str]
        task = asyncio.create_task(session.upload(bytes(64 << 20), "big", progress=lambda *_: task.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await task
        await become(lambda: "rpcsys-aio" not in [one.name for one in threading.enumerate()], "the thread")
        assert await session.listdir() == []
        assert await session.upload(b"1", "small") == "small"


@looped
async def test_a_cancelled_download_leaves_no_file(device, tmp_path):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        await session.upload(bytes(16 << 20), "big")
        task: asyncio.Task[bytearray]
        task = asyncio.create_task(session.download("big", tmp_path / "big", progress=lambda *_: task.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await task
        await become(lambda: not [*tmp_path.iterdir()], "the file's part")
        assert await session.listdir() == ["big"]


@looped
async def test_functions_of_the_user_run_and_are_cancelled():
    with Device(allow_pickle=True) as device:
        async with await rpcsys.aio.connect(*device.address, "key") as session:
            assert await session.run(lambda a, b: a + b, 1, 2) == 3


@looped
async def test_a_device_that_refuses_functions(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        with pytest.raises(RemoteFunctionError, match="allow-pickle"):
            await session.run(lambda: 1)


@looped
async def test_the_output_ends_with_the_session(device):
    session = await rpcsys.aio.connect(*device.address, "key")
    lines = session.log()
    first = asyncio.create_task(anext(lines))
    await asyncio.sleep(0.1)
    session.blocking._log.add(_line("one\ntwo"))
    assert await first == "one"
    await session.close()
    assert [line async for line in lines] == ["two"]


def _line(text: str):
    from rpcsys.wire import frames
    from rpcsys.wire.head import ParsedHead

    return frames.Frame(frames.LOG, 0, 0, 0, ParsedHead({"message": text}, ()), ())


@looped
async def test_the_time_limit_ends_every_task():
    with Device(limit_s=0.5) as device:
        async with await rpcsys.aio.connect(*device.address, "key") as session:
            sleep = await session.get_function("test.sleep")
            outcomes = await asyncio.gather(*(sleep(600) for _ in range(10)), return_exceptions=True)
            assert all(isinstance(outcome, SessionError) for outcome in outcomes)
