from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rpcsys.tracker.replicas.http_client import HttpReply, HttpServer
from rpcsys.wire.http1 import HttpError, HttpLimits
from rpcsys.wire.http1_requests import RequestHead, make_response, parse_request

LIMITS = HttpLimits(head=1 << 10, body=1 << 10)


class Script:
    """A server that answers each request with the next bytes; None: it hangs up."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.heads: list[RequestHead] = []
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                self.heads.append(parse_request(await reader.readuntil(b"\r\n\r\n")))
                self.bodies.append(await reader.readexactly(self.heads[-1].length))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
        except (EOFError, OSError):
            pass
        writer.close()


def told(script: Script, ask: Callable[[HttpServer], Awaitable[object]]) -> None:
    async def run() -> None:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        client = HttpServer(*server.sockets[0].getsockname(), LIMITS)
        try:
            await ask(client)
        finally:
            client.close()
            server.close()

    asyncio.run(run())


def answer(body: bytes, **fields: object) -> bytes:
    return make_response(200, len(body), [*fields.items()]) + body


CHUNKED = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"


def test_a_connection_is_kept() -> None:
    script = Script(answer(b"one"), CHUNKED, answer(b""), answer(b"last"))

    async def ask(client: HttpServer) -> None:
        assert await client.ask("/a", b"body", [("Authorization", "token")]) == HttpReply(200, b"one")
        assert await client.ask("/b") == HttpReply(404, b"abcde")
        assert await client.ask("/c", method="GET") == HttpReply(200, b"")
        assert await client.ask("/d") == HttpReply(200, b"last")

    told(script, ask)
    assert script.connections == 1
    assert [head.path for head in script.heads] == ["/a", "/b", "/c", "/d"]
    assert [head.method for head in script.heads] == ["POST", "POST", "GET", "POST"]
    assert script.bodies == [b"body", b"", b"", b""]
    assert script.heads[0].fields["authorization"] == "token"


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    script = Script(*[answer(b"x")] * 8)

    async def ask(client: HttpServer) -> None:
        for _ in range(2):
            assert await asyncio.gather(*(client.ask("/") for _ in range(4))) == [HttpReply(200, b"x")] * 4

    told(script, ask)
    assert script.connections == 4


def test_a_connection_that_was_closed_is_not_used_again() -> None:
    script = Script(answer(b"one"), answer(b"two"))
    script.answers.insert(1, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    async def ask(client: HttpServer) -> None:
        assert [(await client.ask("/")).body for _ in range(3)] == [b"one", b"", b"two"]

    told(script, ask)
    assert script.connections == 2


def test_a_connection_that_its_server_closes_while_it_waits_is_not_used_again() -> None:
    script = Script(answer(b"one"))

    async def ask(client: HttpServer) -> None:
        assert (await client.ask("/")).body == b"one"
        await asyncio.wait_for(client._kept[0].reader.read(), 10)  # to its end
        assert not client._kept[0].usable
        script.answers.append(answer(b"two"))
        assert (await client.ask("/")).body == b"two"

    told(script, ask)
    assert script.connections == 2


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (None, EOFError),
        (answer(b"cut")[:-1], EOFError),
        (CHUNKED[:-1], EOFError),
        (b"HTTP/1.1 200", EOFError),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1025\r\n\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n401\r\n", HttpError),
        (CHUNKED + b"more", HttpError),
        (b"x" * (1 << 17), HttpError),
    ],
)
def test_an_answer_that_is_none(said: bytes | None, kind: type[Exception]) -> None:
    async def ask(client: HttpServer) -> None:
        with pytest.raises(kind):
            await client.ask("/")
        assert client._kept == []

    told(Script(said, None) if said is None else Script(said), ask)


def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    async def run() -> None:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            except OSError:
                pass
            gone.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpServer(*server.sockets[0].getsockname(), LIMITS)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.ask("/"), 0.1)
        await asyncio.wait_for(gone.wait(), 10)
        assert client._kept == []
        server.close()

    asyncio.run(run())


def test_the_end_of_the_connection_ends_an_answer_without_a_length() -> None:
    async def ask(client: HttpServer) -> None:
        assert await client.ask("/") == HttpReply(400, b"old")
        assert client._kept == []

    told(Script(b"HTTP/1.0 400 Bad Request\r\n\r\nold"), ask)
