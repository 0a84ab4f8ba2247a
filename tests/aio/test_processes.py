"""Programs and forwarded ports for tasks."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest

import rpcsys
from rpcsys.errors import DeadlineExceeded, ProgramNotFound, SessionLost, UsageError
from tests.aio.looped import become, looped
from tests.device import Device


@pytest.fixture
def device():
    with Device(allow_exec=True) as device:
        yield device


@looped
async def test_a_program_has_the_interface_of_asyncio(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        script = "read x; echo $x; echo $NAME >&2; pwd; exit 3"
        async with await session.popen(["sh", "-c", script], env={"NAME": "a b"}, cwd="/tmp") as process:
            assert (process.returncode, "runs" in repr(process)) == (None, True)
            process.stdin.write(b"line\n")
            await process.stdin.drain()
            assert await process.stdout.readline() == b"line\n"
            assert await process.stdout.read() == b"/tmp\n"
            assert await process.stderr.read() == b"a b\n"
        assert (process.returncode, await process.wait()) == (3, 3)
        for end, number in (("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
            sleeping = await session.popen(["sleep", "600"])
            getattr(sleeping, end)()
            assert await sleeping.wait() == -number
            await sleeping.close()
        script = "stty size; until stty size | grep 41; do sleep 0.05; done; read x; echo $x"
        async with await session.popen(["sh", "-c", script], terminal=(30, 90)) as shell:
            assert await shell.stdout.readline() == b"30 90\r\n"
            shell.resize(41, 99)
            assert await shell.stdout.readline() == b"41 99\r\n"
            shell.stdin.write(b"line\n")
            assert await shell.stdout.read() == b"line\r\nline\r\n"


@looped
async def test_many_programs_run_at_once_beside_calls(device):
    data = bytes(3 << 20)
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        echo = await session.get_function("testing.echo")
        cats = [await session.popen(["cat"]) for _ in range(8)]
        ended = [session.exec(["sh", "-c", f"cat; exit {number}"], stdin=b"input") for number in range(8)]
        *outputs, calls = await asyncio.gather(
            *ended, *(cat.communicate(data) for cat in cats), asyncio.gather(*(echo(number) for number in range(100)))
        )
        assert [(each.returncode, each.stdout) for each in outputs[:8]] == [(n, b"input") for n in range(8)]
        assert all(output == (data, b"") for output in outputs[8:])
        assert calls == [*range(100)]
        with pytest.raises(DeadlineExceeded):
            await session.exec(["sleep", "600"], timeout=0.1)
        with pytest.raises(ProgramNotFound):
            await session.popen(["no-such-program"])


@pytest.mark.parametrize("way", ["exec", "communicate"])
@looped
async def test_a_cancelled_task_kills_its_program(device, way):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        script = ["sh", "-c", "echo $$ >pid; exec sleep 600"]
        process = await session.popen(script) if way == "communicate" else None
        task = asyncio.create_task(process.communicate() if process is not None else session.exec(script))
        await asyncio.sleep(0)  # a task that has not begun does nothing when it is cancelled
        await become(lambda: (device.workdir / "pid").exists() and (device.workdir / "pid").read_text(), "its start")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gone = "for n in $(seq 200); do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 0.05; done; exit 1"
        assert (await session.exec(["sh", "-c", gone])).returncode == 0


@looped
async def test_the_end_of_the_session_ends_all_waits(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        process = await session.popen(["cat"])
        device.process.kill()
        assert await process.stdout.read() == b""
        with pytest.raises(SessionLost):
            await process.wait()
        await process.close()


@looped
async def test_a_port_is_forwarded_until_it_is_closed(device):
    def closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", forward.port)) != 0

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, await rpcsys.aio.connect(*device.address, "key") as session:
        for reverse in (False, True):
            async with await session.forward(
                0 if reverse else port, port if reverse else 0, reverse=reverse
            ) as forward:
                reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
                writer.write(b"hello")
                writer.write_eof()
                assert await reader.read() == b"hello"
                writer.close()
            await become(closed, "the port to be closed")
        with pytest.raises(UsageError, match="choose another one"):
            await session.forward(port, port)


@looped
async def test_files_are_pushed_and_pulled(device, tmp_path):
    folder, back = tmp_path / "folder", tmp_path / "back"
    (folder / "sub").mkdir(parents=True)
    (folder / "large").write_bytes(bytes(3 << 20))
    (folder / "sub" / "small").write_bytes(b"x")
    reports: list[tuple[int, int]] = []
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        moved = await session.push(folder, "there", progress=lambda done, total: reports.append((done, total)))
        assert (moved.files, moved.bytes) == (2, (3 << 20) + 1)
        await become(lambda: reports[-1:] == [((3 << 20) + 1,) * 2], "the last report")
        assert (await session.push(folder, "there")).files == 0
        assert (await session.pull("there", back)).files == 2
    assert (back / "sub" / "small").read_bytes() == b"x"
