"""The link to one peer site's tracker, or to the one of its replicas that leads: made again without end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from rpcsys.errors import ProtocolError, RpcsysError, TrackerError, one_line
from rpcsys.link.backoff import Backoff, jitter
from rpcsys.link.link import Link, error_of
from rpcsys.link.targets import link_to, shared
from rpcsys.wire import tracker
from rpcsys.wire.sites import INTRODUCTION, Introduce

log = logging.getLogger(__name__)
PAUSES_S = (0.1, 5.0)  # first and longest pause before a site is tried again
#: A peer site is asked for a sign of life so often, and is cut off when nothing has come for so long.
PING_S, SILENT_S = 2.0, 6.0


class SiteLink:
    """A link to ``site`` at ``address`` from the site ``own``. `tick` is to be called each second or so.

    ``on_up`` and ``on_cut`` are called as it can be reached or not, ``on_message`` with what it says.
    """

    def __init__(
        self, own: str, site: str, address: tuple[str, int], on_up: Callable[[str], None],
        on_cut: Callable[[str], None], on_message: Callable[[str, Any], None],
    ) -> None:  # fmt: skip
        self.site = site
        self.up = False
        self._own = own
        self._target = shared(address)
        self._on_up, self._on_cut, self._on_message = on_up, on_cut, on_message
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(*PAUSES_S)
        self._link: Link | None = None
        self._introduced = False
        self._received = 0  # bytes, when `heard` was set
        self._heard = self._pinged = 0.0
        self._again: asyncio.Handle | None = self._loop.call_soon(self._connect)

    def send(self, message: Any) -> None:
        """Send a message, if the site can be reached."""
        if not self.up or self._link is None:
            return
        try:
            self._link.send(message)
        except RpcsysError as error:
            self._loop.call_soon(self._failed, self._link, error)  # not now: the caller's work is unfinished

    def tick(self) -> None:
        """Notice a site that has fallen silent."""
        link, now = self._link, self._loop.time()
        if link is None:
            return
        self._advance()
        if link is not self._link or not self._introduced:
            return
        if link.received != self._received:
            self._received, self._heard = link.received, now
        if now - self._heard > SILENT_S:
            self._failed(link, TrackerError(f"it has said nothing for {SILENT_S:g} s"))
        elif now - self._pinged >= PING_S:
            self._pinged = now
            self.send([tracker.PING])

    def close(self) -> None:
        """End the link for good; nobody is told."""
        self.up = False
        self._disconnect()
        if self._again is not None:
            self._again.cancel()
        if not isinstance(self._target, tuple):
            self._target.close()

    def _connect(self) -> None:
        self._again = None
        try:
            self._link = link_to(self._target, capabilities=("site/1",))
        except (RpcsysError, OSError) as error:
            self._failed(None, error)
            return
        self._loop.add_reader(self._link.fileno(), self._advance)
        self._advance()

    def _advance(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            messages = link.advance()
            if link.ready and not self._introduced:
                self._introduce(link)
            for message in messages:
                self._take(message)
        except (RpcsysError, OSError) as error:
            self._failed(link, error)

    def _introduce(self, link: Link) -> None:
        if not link.ours:
            raise TrackerError(f"the tracker there is TVM's: start rpcsys tracker with --site {self.site}")
        self._introduced = True
        self._received, self._heard = link.received, self._loop.time()
        link.send(Introduce(INTRODUCTION, self._own))

    def _take(self, message: Any) -> None:
        """Handle what the site says. Raises `TrackerError`: it is another one; `ProtocolError`."""
        if type(message) is not dict:
            return  # the answer to a ping
        if message.get("id") != INTRODUCTION:
            if self.up:
                self._on_message(self.site, message)
            return
        if message.get("ok") is not True:
            raise error_of(message)
        if message.get("site") != self.site:
            raise TrackerError(f"the site there is {str(message.get('site'))[:64]!r}: see --site there and --peer here")
        self.up = True
        self._backoff.worked()
        log.info("site %s is reached", self.site)
        self._on_up(self.site)

    def _failed(self, link: Link | None, error: Exception) -> None:
        if link is not self._link:
            return
        pause = 0.0 if link is not None and link.at_once else self._backoff.pause(jitter())
        if self.up or self._backoff.failures == 1:
            why = "it broke the protocol: " if isinstance(error, ProtocolError) else ""
            log.warning("site %s cannot be reached: %s%s; trying again", self.site, why, one_line(error))
        was_up, self.up = self.up, False
        self._disconnect()
        self._again = self._loop.call_later(pause, self._connect)
        if was_up:
            self._on_cut(self.site)

    def _disconnect(self) -> None:
        self._introduced = False
        if self._link is not None:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()
            self._link = None
