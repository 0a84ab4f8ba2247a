"""Trackers of several sites, each of which knows all others."""

from __future__ import annotations

from typing import Any

import rpcsys
from tests.live import invariant
from tests.live.daemons import Daemon, Daemons, free_port, wait_until

SOON_S = 60.0
KEY = "rpi4"


class Site:
    """A site's tracker, which can be started again at its port."""

    def __init__(self, daemons: Daemons, name: str) -> None:
        self.daemons, self.name = daemons, name
        self.port = free_port()
        self.flags: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.daemon: Daemon = self.daemons.tracker("--site", self.name, *self.flags, port=self.port)

    def board(self, *flags: str, slots: int = 1) -> Daemon:
        """A device server of this site."""
        return self.daemons.server(KEY, "--slots", str(slots), *flags, tracker=self.daemon, offers=slots)

    def summary(self) -> dict[str, Any]:
        with rpcsys.connect_tracker(self.where) as tracker:
            return dict(tracker.summary())

    def pending(self) -> int:
        """Requests for `KEY` that wait here."""
        return int(self.summary()["queue_info"].get(KEY, {}).get("pending", 0))

    def wait_free(self, count: int) -> None:
        wait_until(lambda: self.summary()["queue_info"][KEY]["free"] == count, SOON_S, f"{count} free at {self.name}")

    def wait_peers(self, line: str) -> None:
        """Wait until it says so of the other sites."""
        wait_until(lambda: self.summary()["sites"] == f"site {self.name}; peers: {line}", SOON_S, line)


def sites(daemons: Daemons, *names: str, more: tuple[str, ...] = ()) -> list[Site]:
    """Sites that reach each other. ``more``: flags of each tracker."""
    made = [Site(daemons, name) for name in names]
    for site in made:
        others = [other for other in made if other is not site]
        site.flags = (*more, *(word for other in others for word in ("--peer", f"{other.name}={other.where}")))
        site.start()
    for site in made:
        site.wait_peers(", ".join(other.name for other in made if other is not site))
        invariant.running.idle(site.daemon.pid)  # it holds its links
    return made
