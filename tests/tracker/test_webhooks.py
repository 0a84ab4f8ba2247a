"""Sending webhooks to receivers that do as they should, and to others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from rpcsys.errors import ConfigError
from rpcsys.link import identity
from rpcsys.tracker import webhook_queue, webhooks
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.webhook_events import WebhookEvent
from rpcsys.tracker.webhook_signature import signed
from rpcsys.tracker.webhooks import Webhooks, page_address
from tests.tracker.hook_receivers import CLOSE, ENDLESS, HANG, LONG_HEAD, REDIRECT, HookReceiver
from tests.tracker.test_webhook_signature import OTHER

DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(webhooks, "ATTEMPT_S", 1.5)
    monkeypatch.setattr(webhook_queue, "PAUSES_S", (0.1, 0.2))


def event(number: int) -> WebhookEvent:
    return WebhookEvent(f"msg_{number}", b'{"type": "board.gone"}')


class Sender:
    """Webhooks in the running loop, and their counts by the receivers that these are for."""

    def __init__(self, *receivers: HookReceiver, path: str = "/hook", **config: str) -> None:
        self.names = {receiver: receiver.where for receiver in receivers}
        urls = tuple(receiver.url + path for receiver in receivers)
        self.webhooks = Webhooks(TrackerConfig(webhooks=urls, **config))

    def send(self, *events: WebhookEvent) -> None:
        for each in events:
            for receiver in self.webhooks._receivers:
                receiver.add(each)

    def of(self, receiver: HookReceiver) -> tuple[int, int, int, int]:
        counts = self.webhooks.counts[self.names[receiver]]
        return counts.sent, counts.failed, counts.dropped, counts.waiting

    async def until(self, receiver: HookReceiver, *expected: int) -> None:
        until = time.monotonic() + DEADLINE_S
        while self.of(receiver) != expected:
            assert time.monotonic() < until, (self.of(receiver), expected)
            await asyncio.sleep(0.01)


def test_an_event_is_signed_and_sent_again_until_it_is_accepted(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(OTHER)

    async def main() -> None:
        sender = Sender(receiver, path="/hook?room=4", webhook_secret=str(secret))
        sender.send(event(1))
        await sender.until(receiver, 1, 0, 0, 0)
        await sender.webhooks.close()

    with HookReceiver(500, CLOSE, 429, LONG_HEAD, 204) as receiver:
        asyncio.run(main())
    assert receiver.ids == ["msg_1"] * 5
    for told in receiver.told:
        assert (told.path, told.body) == ("/hook?room=4", b'{"type": "board.gone"}')
        assert told.headers["content-type"] == "application/json"
        at = int(told.headers["webhook-timestamp"])
        assert abs(at - time.time()) < 60
        expected = signed("msg_1", at, told.body, (bytes(range(32)),))["webhook-signature"]
        assert told.headers["webhook-signature"] == expected


def test_no_receiver_waits_for_another_and_no_event_for_one_that_fails():
    async def main() -> None:
        sender = Sender(hangs, refuses, redirects, endless, accepts)
        sender.send(event(1), event(2))
        await sender.until(accepts, 2, 0, 0, 0)
        await sender.until(refuses, 1, 1, 0, 0)  # the first is refused, the second is not
        await sender.until(redirects, 0, 2, 0, 0)
        await sender.until(endless, 2, 0, 0, 0)  # its status counts; the rest is not read
        assert sender.of(hangs) == (0, 0, 0, 2)
        hangs.acts[:] = [204]
        await sender.until(hangs, 2, 0, 0, 0)
        await sender.webhooks.close()

    with (
        HookReceiver(HANG) as hangs,
        HookReceiver(400, 204) as refuses,
        HookReceiver(REDIRECT) as redirects,
        HookReceiver(ENDLESS) as endless,
        HookReceiver() as accepts,
    ):
        asyncio.run(main())
    assert {told.path for told in redirects.told} == {"/hook"}  # nobody went elsewhere
    assert len(endless.told) == 2


def test_a_stop_sends_what_waits_and_ends_though_a_receiver_hangs(monkeypatch):
    monkeypatch.setattr(webhooks, "ATTEMPT_S", 30.0)

    async def main() -> None:
        sender = Sender(hangs, accepts)
        sender.send(*map(event, range(20)))
        began = time.monotonic()
        await sender.webhooks.close()
        assert time.monotonic() - began < webhooks.FLUSH_S + 5
        assert sender.of(accepts) == (20, 0, 0, 0)
        assert sender.of(hangs) == (0, 0, 20, 0)

    with HookReceiver(HANG) as hangs, HookReceiver() as accepts:
        asyncio.run(main())
    assert sorted(accepts.ids) == sorted(f"msg_{number}" for number in range(20))


def test_nobody_waits_for_a_silent_name_server(monkeypatch):
    monkeypatch.setattr(webhooks, "FLUSH_S", 1.0)
    answers, find = threading.Event(), socket.getaddrinfo

    def find_late(host, *args):
        if host.endswith("silent.example") and args[-1] != socket.AI_NUMERICHOST:
            assert answers.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return find(host, *args)

    async def main() -> None:
        urls = [f"http://{number}.silent.example/" for number in range(40)]  # more than a loop has threads
        made = Webhooks(TrackerConfig(webhooks=(*urls, accepts.url)))
        for receiver in made._receivers:
            receiver.add(event(1))
        until = time.monotonic() + DEADLINE_S
        while made.counts[accepts.where].sent != 1:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await made.close()

    monkeypatch.setattr(socket, "getaddrinfo", find_late)
    began = time.monotonic()
    with HookReceiver() as accepts:
        asyncio.run(main())
    assert time.monotonic() - began < DEADLINE_S + 5
    answers.set()


def test_a_certificate_that_nobody_vouches_for_is_not_taken(tmp_path):
    pem = tmp_path / "own.pem"
    pem.write_text(identity.new().pem())

    async def main() -> None:
        sender = Sender(receiver)
        sender.send(event(1))
        (one,) = sender.webhooks._receivers
        status, problem = await one._post(event(2))
        assert (status, "CERTIFICATE_VERIFY_FAILED" in problem) == (0, True)
        await sender.webhooks.close()
        assert sender.of(receiver) == (0, 0, 1, 0)

    with HookReceiver(pem=pem) as receiver:
        asyncio.run(main())
    assert receiver.told == []


def test_a_secret_that_is_not_there_ends_the_start(tmp_path):
    async def main() -> None:
        Webhooks(TrackerConfig(webhooks=("http://127.0.0.1:9/",), webhook_secret=str(tmp_path / "none")))

    with pytest.raises(ConfigError, match="cannot be read"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("config", "address"),
    [
        ({}, ""),
        ({"http_port": 8080, "host": "10.0.0.1"}, "http://10.0.0.1:8080"),
        ({"http_port": 8080, "host": "fd00::1", "http_cert": "page.pem"}, "https://[fd00::1]:8080"),
        ({"http_port": 8080, "advertise": "lab-1:9300"}, "http://lab-1:8080"),
    ],
)
def test_the_address_of_the_page(config, address):
    assert page_address(TrackerConfig(**config)) == address
