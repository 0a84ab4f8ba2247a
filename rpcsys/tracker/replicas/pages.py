"""The pages of a replica: those of the tracker while it leads, and who leads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rpcsys.daemon.http import NoPage, Page, health_page
from rpcsys.link.address import address_text
from rpcsys.tracker.replicas.engine import Leader

LEADER, REPLICAS = "/leader", "/api/replicas"


class ReplicaPages(Mapping[str, Page]):
    """Pages by path. ``led``: the pages of the tracker while it leads, None while it does not."""

    def __init__(
        self, led: Callable[[], Mapping[str, Page] | None], leader: Callable[[], Leader | None],
        replicas: Callable[[], Any], metrics: Page,
    ) -> None:  # fmt: skip
        self._led = led
        self._leader = leader
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
        return led[path]

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
