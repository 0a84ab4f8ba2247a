"""The pages of a replica: those of the tracker while it leads, and who leads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from rpcsys.daemon.http import Content, NoPage, Page, health_page
from rpcsys.link.address import address_text
from rpcsys.tracker.replicas.engine import Leader
from rpcsys.tracker.views.pages import FILES

LEADER, REPLICAS = "/leader", "/api/replicas"
HELD_S = 3.0  # how long a page waits for what it shows to be written; a browser with ours waits 5 s
#: Holds back what is to be sent to a `AnswerReceiver`; False: it may be sent.
Hold = Callable[["AnswerReceiver", bytes], bool]


class AnswerReceiver(Protocol):
    """Who gets what was held back."""

    def send_held(self, data: bytes) -> object:
        """Send it."""


class HeldPage:
    """A page that is held back. Made inside an event loop."""

    def __init__(self) -> None:
        self.due = asyncio.get_running_loop().create_future()

    def send_held(self, data: bytes) -> None:
        """Let it go."""
        if not self.due.done():
            self.due.set_result(None)


def written(page: Page, hold: Hold, why: Callable[[], str]) -> Page:
    """A page that leaves as an answer does: once the journal has what it may show. ``why``: what keeps it."""

    async def made() -> Content:
        content = page()
        kind, body = content if isinstance(content, tuple) else await content
        held = HeldPage()
        if hold(held, b""):
            try:
                await asyncio.wait_for(held.due, HELD_S)
            except asyncio.TimeoutError:
                raise NoPage(503, f"what the tracker decides cannot be written now ({why()})") from None
        return kind, body

    return made


class ReplicaPages(Mapping[str, Page]):
    """Pages by path. ``led``: the pages of the tracker while it leads, None while it does not.

    ``hold``: of the tracker while it leads, for pages with its state; ``engine``: what is wrong with the engine.
    """

    def __init__(
        self, led: Callable[[], Mapping[str, Page] | None], leader: Callable[[], Leader | None],
        replicas: Callable[[], Any], metrics: Page, hold: Callable[[], Hold | None], engine: Callable[[], str],
    ) -> None:  # fmt: skip
        self._led = led
        self._leader = leader
        self._hold = hold
        self._engine = engine
        self._own: dict[str, Page] = {
            LEADER: self._whether_it_leads,
            REPLICAS: lambda: ("application/json", json.dumps(replicas()).encode()),
            "/metrics": metrics,
            "/healthz": health_page,
        }

    def __getitem__(self, path: str) -> Page:
        led = self._led()
        if path in self._own:
            return self._own[path]
        if led is None:
            raise NoPage(503, self._elsewhere())
        hold = self._hold()
        return led[path] if hold is None or path in FILES else written(led[path], hold, self._engine)

    def __contains__(self, path: object) -> bool:
        led = self._led()
        return path in self._own or led is None or path in led

    def __iter__(self) -> Iterator[str]:
        return iter([*(self._led() or ()), LEADER, REPLICAS])

    def __len__(self) -> int:
        return len([*self])

    def _whether_it_leads(self) -> tuple[str, bytes]:
        if self._led() is None:
            raise NoPage(503, self._elsewhere())
        return "text/plain; charset=utf-8", b"this tracker leads\n"

    def _elsewhere(self) -> str:
        leader = self._leader()
        if leader is None:
            return "this tracker does not lead, and no other does at the moment"
        pages = (
            f", its pages at http://{address_text(leader.address[0], leader.http_port)}/" if leader.http_port else ""
        )
        return f"this tracker does not lead: {address_text(*leader.address)} does{pages}"
