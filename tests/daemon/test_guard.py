"""What a guard knows of a request, and the guard of what has metrics only."""

from __future__ import annotations

import asyncio
import http.client
import socket

import pytest

from rpcsys.daemon.guard import PageRequest, Refusal, metrics_guard
from rpcsys.daemon.http import serve_pages


def ask(guard, path: str, fields: dict[str, str]) -> tuple[int, str]:
    """The answer to a request for pages behind a guard."""

    def request(port: int) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path, headers=fields)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    async def run() -> tuple[int, str]:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        acceptor = serve_pages(listener, {"/metrics": lambda: ("text/plain", b"page")}, guard)
        try:
            return await asyncio.to_thread(request, acceptor.port)
        finally:
            acceptor.close()

    return asyncio.run(run())


def test_a_guard_knows_who_asks_for_what() -> None:
    seen = []

    async def guard(asked: PageRequest) -> Refusal:
        seen.append(asked)
        return Refusal(401, "not you")

    fields = {"Host": "lab", "Origin": "http://there", "Authorization": "Bearer x"}
    assert ask(guard, "/elsewhere?a=b", fields) == (401, "not you\n")
    here = "127.0.0.1"
    assert seen == [PageRequest("/elsewhere?a=b", "/elsewhere", here, here, False, "lab", "http://there", "Bearer x")]


@pytest.mark.parametrize(
    ("fields", "status"), [({}, 200), ({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403)]
)
def test_metrics_are_for_this_machine_and_not_for_pages_of_other_sites(fields, status) -> None:
    assert ask(metrics_guard("proxy", ()), "/metrics", fields)[0] == status


def test_metrics_are_for_networks_that_were_opened() -> None:
    guard = metrics_guard("proxy", ("10.1.0.0/16",))

    async def refusal(address: str) -> Refusal | None:
        return await guard(PageRequest("/metrics", "/metrics", address, "10.9.0.1", False, "lab", "", ""))

    assert asyncio.run(refusal("10.1.2.3")) is None
    refused = asyncio.run(refusal("10.2.2.3"))
    assert refused is not None
    assert refused.text.endswith("whoever keeps it lets you in with --http-open 10.2.2.3")
