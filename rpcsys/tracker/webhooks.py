"""Sends events to the receivers of webhooks over HTTP. Each receiver has a task of its own: none waits for another.

Nothing of an answer counts but its status. Certificates are verified, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rpcsys import __version__
from rpcsys.errors import one_line
from rpcsys.link.address import address_text, split_address
from rpcsys.link.backoff import jitter
from rpcsys.link.dialling import Lookup
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.records import Records
from rpcsys.tracker.views.metrics import WebhookCounts
from rpcsys.tracker.webhook_events import WebhookEvent, WebhookEvents
from rpcsys.tracker.webhook_queue import AttemptResult, Delivery, DeliveryQueue, result_of
from rpcsys.tracker.webhook_signature import read_secrets, signed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger(__name__)
ATTEMPT_S = 10.0  # for one attempt, from the connection to the answer
FLUSH_S = 3.0  # how long a tracker that ends goes on sending
MAX_ANSWER = 16 << 10  # bytes of an answer's head, and of its body, that are read
_ANY = ("0.0.0.0", "::", "")


class HostLookup:
    """Tornado's resolver for one receiver, with one lookup at a time, in a thread that nobody waits for.

    The loop's own lookups share a few threads, and its end waits for them: a silent name server takes them all.
    """

    def __init__(self) -> None:
        self._lookup: Lookup | None = None
        self._wanted: list[tuple[float, asyncio.Future[list[tuple[int, Any]]]]] = []  # with the ends of their attempts

    def resolve(self, host: str, port: int, family: int = socket.AF_UNSPEC) -> asyncio.Future[list[tuple[int, Any]]]:
        """The families and addresses of a host."""
        loop = asyncio.get_running_loop()
        found = loop.create_future()
        self._wanted.append((loop.time() + ATTEMPT_S, found))
        if self._lookup is None:
            self._lookup = Lookup(host, port)
            loop.add_reader(self._lookup.done, self._take, self._lookup)
        return found

    def close(self) -> None:
        """Await no lookup any more."""
        if self._lookup is not None:
            asyncio.get_running_loop().remove_reader(self._lookup.done)
            self._lookup.done.close()
            self._lookup = None

    def _take(self, lookup: Lookup) -> None:
        self.close()
        wanted, self._wanted = self._wanted, []
        now = asyncio.get_running_loop().time()
        for found in [found for until, found in wanted if now < until]:  # else Tornado would log a failure
            if isinstance(lookup.found, OSError):
                found.set_exception(lookup.found)
            else:
                found.set_result([(family, address) for family, *_, address in lookup.found or ()])


class WebhookReceiver:
    """One receiver, and the events that wait for it. Made inside an event loop."""

    def __init__(self, url: str, name: str, secrets: Sequence[bytes], counts: WebhookCounts) -> None:
        """``name``: of the receiver, for logs: the rest of its URL may be a secret."""
        from tornado.httpclient import AsyncHTTPClient  # few trackers have webhooks

        self._url, self._name, self._secrets = url, name, secrets
        self._queue = DeliveryQueue(counts)
        self._lookup = HostLookup()
        self._client = AsyncHTTPClient(
            force_instance=True, max_clients=1, max_header_size=MAX_ANSWER, max_body_size=MAX_ANSWER,
            resolver=self._lookup,
        )  # fmt: skip
        logging.getLogger("tornado.general").setLevel(logging.ERROR)  # what is wrong with an answer: `_send` says it
        self._added, self._emptied = asyncio.Event(), asyncio.Event()
        self._failing = False
        self._task = asyncio.get_running_loop().create_task(self._send_all())

    def add(self, event: WebhookEvent) -> None:
        """Have an event sent."""
        self._queue.add(event, time.monotonic())
        self._emptied.clear()
        self._added.set()

    async def close(self) -> None:
        """Send what waits, for `FLUSH_S` at most, and drop the rest."""
        self._queue.hurry(time.monotonic())
        self._added.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), FLUSH_S)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._client.close()
        self._lookup.close()
        dropped = self._queue.drop_all()
        if dropped:
            log.warning("webhooks_dropped receiver=%s events=%d: the tracker ends", self._name, dropped)

    async def _send_all(self) -> None:
        while True:
            self._added.clear()
            delivery = self._queue.next()
            if delivery is None:
                self._emptied.set()
                await self._added.wait()
            elif delivery.due <= time.monotonic():
                await self._send(delivery)
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._added.wait(), delivery.due - time.monotonic())

    async def _send(self, delivery: Delivery) -> None:
        status, problem = await self._post(delivery.event)
        outcome = result_of(status)
        lost = self._queue.attempted(delivery, outcome, time.monotonic(), jitter())
        failing = outcome is not AttemptResult.ACCEPTED
        if lost or failing is not self._failing:
            what = "webhook_failed" if lost else "webhooks_wait" if failing else "webhooks_accepted"
            level = logging.WARNING if failing else logging.INFO
            log.log(level, "%s receiver=%s event=%s %s", what, self._name, delivery.event.id, problem)
        self._failing = failing

    async def _post(self, event: WebhookEvent) -> tuple[int, str]:
        """Send an event once; the status of the answer, 0 for none, and what is wrong with it for people."""
        from tornado.httpclient import HTTPRequest

        statuses: list[int] = []  # an answer whose body is too long has one, too

        def note_head(line: str) -> None:
            if line.startswith("HTTP/"):
                statuses.append(int(line.split()[1]))

        headers = {
            "content-type": "application/json",
            "user-agent": f"rpcsys/{__version__}",
            **signed(event.id, time.time(), event.body, self._secrets),
        }
        request = HTTPRequest(
            self._url, "POST", headers, event.body, follow_redirects=False, decompress_response=False,
            connect_timeout=ATTEMPT_S, request_timeout=ATTEMPT_S, header_callback=note_head,
        )  # fmt: skip
        problem = ""
        try:
            await self._client.fetch(request, raise_error=False)
        except Exception as error:  # noqa: BLE001 - an answer may be anything
            problem = one_line(error, 200)
        status = statuses[-1] if statuses else 0
        return status, f"status={status}" if status else problem or "no answer"


class Webhooks:
    """All receivers, with the ``counts`` of each by its host. Made inside an event loop.

    Raises `ConfigError`: the secret cannot be read.
    """

    def __init__(self, config: TrackerConfig) -> None:
        secrets = read_secrets(config.webhook_secret) if config.webhook_secret is not None else ()
        self._events = WebhookEvents(config.webhook_events, page_address(config))
        names = [urlsplit(url).netloc for url in config.webhooks]
        self.counts = {name: WebhookCounts() for name in names}
        self._receivers = [
            WebhookReceiver(url, name, secrets, self.counts[name])
            for url, name in zip(config.webhooks, names, strict=True)
        ]

    def note(self, entries: Iterable[HistoryEntry], records: Records) -> None:
        """Send the events of entries that ``records`` have taken in."""
        for event in [self._events.of(entry, records) for entry in entries]:
            if event is not None:
                for receiver in self._receivers:
                    receiver.add(event)

    async def close(self) -> None:
        """Send what waits, to all receivers at the same time."""
        await asyncio.gather(*(receiver.close() for receiver in self._receivers))


@contextlib.asynccontextmanager
async def webhooks(config: TrackerConfig) -> AsyncIterator[Webhooks | None]:
    """The webhooks of a tracker, which sends what waits at its end; None without receivers."""
    if not config.webhooks:
        yield None
        return
    made = Webhooks(config)
    try:
        yield made
    finally:
        await made.close()


def page_address(config: TrackerConfig) -> str:
    """Where people reach the lab's page; ``""`` where it is not served."""
    if not config.http_port:
        return ""
    host = split_address(config.advertise)[0] if config.advertise else config.host
    scheme = "https" if config.http_cert else "http"
    return f"{scheme}://{address_text(socket.gethostname() if host in _ANY else host, config.http_port)}"
