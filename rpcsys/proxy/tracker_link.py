"""The proxy's own connection to the tracker, made again without end, with growing pauses.

It sends TVM's messages, which both TVM's tracker and ours understand. Replies come in the order of the requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from rpcsys.errors import ConfigError, RpcsysError, TrackerError
from rpcsys.link import credential
from rpcsys.link.backoff import Backoff, jitter
from rpcsys.link.link import Link
from rpcsys.link.targets import link_to, shared
from rpcsys.link.tvm_commands import TvmCommands
from rpcsys.wire import tracker
from rpcsys.wire.tokens import HolderKind

log = logging.getLogger(__name__)
POLL_S = 2.0  # between two requests for the pending match keys, as with TVM's proxy
REPLY_TIMEOUT_S = 10.0  # longest wait for a reply, before the connection is closed
FIRST_S, LONGEST_S = 0.25, 15.0  # pauses between attempts. Each is randomly up to half longer, to spread proxies out


class ProxyTrackerLink:
    """Calls ``on_up()`` and ``on_down()`` as the link changes, and ``on_pending(match keys)`` for each reply to a poll.

    ``lab``: the path of the proxy's credential, in a lab. ``ours``: whether the tracker is rpcsys's; None until the
    first answer, and kept while the connection is down. ``address``: the tracker's; of replicas, the last leader's.
    """

    def __init__(
        self, address: tuple[str, int], lab: str | None, on_up: Callable[[], None], on_down: Callable[[], None],
        on_pending: Callable[[tuple[str, ...]], None],
    ) -> None:  # fmt: skip
        self.ours: bool | None = None
        self.up = False
        self.address = address[0], address[1]
        self._target = shared(address)
        self._lab = lab
        self._on_up, self._on_down, self._on_pending = on_up, on_down, on_pending
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._backoff = Backoff(FIRST_S, LONGEST_S)
        self._link: Link | None = None
        self._commands = TvmCommands()
        self._timer: asyncio.TimerHandle | None = None
        self._connect()

    @property
    def trusted(self) -> bool:
        """Whether the tracker believes this proxy at which addresses its peers are; a lab's does while it is up."""
        return self._lab is None or self.up

    def give(self, command: tracker.TvmMessage) -> None:
        """Send a command to the tracker, if the link is up."""
        if not self.up or self._link is None:
            return
        try:
            self._commands.give(self._link, command)
        except RpcsysError as error:
            # Not called here: the caller's work is unfinished.
            self._loop.call_soon(self._failed, str(error))

    def reconnect(self) -> None:
        if not self._closed:
            self._disconnect()
            self._connect()

    def close(self) -> None:
        """Close the link for good, which ends its offers at the tracker."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._disconnect()
        if not isinstance(self._target, tuple):
            self._target.close()

    def _connect(self) -> None:
        try:  # the file is read each time: the link itself rewrites it after a rotation
            own = None if self._lab is None else credential.read(self._lab)
            self._link = link_to(self._target, capabilities=("proxy/1",), credential=own)
        except ConfigError as error:
            log.warning("%s; trying again", error)
            self._after(LONGEST_S, self._connect)
            return
        self._loop.add_reader(self._link.fileno(), self._advance)
        self._after(POLL_S, self._poll)
        self._advance()

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, callback)

    def _poll(self) -> None:
        """Request the pending match keys, and have the link check its own timeouts."""
        self._after(POLL_S, self._poll)
        if self.up:
            unanswered = self._commands.unanswered
            if unanswered and time.monotonic() - unanswered[0][1] > REPLY_TIMEOUT_S:
                self._failed(f"the tracker has not answered for {REPLY_TIMEOUT_S:g} s")
                return
            self.give(tracker.GetPending())
        self._advance()

    def _advance(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            messages = link.advance()
            if link.ready and not self.up:
                if link.tracker.get("kind", HolderKind.PROXY) != HolderKind.PROXY:
                    raise ConfigError(f"{self._lab} is no proxy's credential: rpcsys lab enrol --proxy NAME makes one")
                self.up, self.ours, self.address = True, link.ours, link.address
                self._backoff.worked()
                log.info("registered with the tracker at %s:%d", *self.address)
                self._on_up()
            for message in messages:
                self._receive(message)
        except RpcsysError as error:
            self._failed(str(error))

    def _receive(self, message: Any) -> None:
        if isinstance(message, dict) or self._link is None:
            return  # no reply to a TVM command
        try:
            command, match_keys = self._commands.answered(message)
        except TrackerError as error:
            log.warning("%s", error)
            return
        if command is tracker.GetPending:
            self._on_pending(match_keys)

    def _failed(self, reason: str) -> None:
        if self._link is None:
            return
        pause = 0.0 if self._link.at_once else self._backoff.pause() * (1 + jitter() / 2)
        if self.up or self._backoff.failures == 1:
            log.warning("%s; trying again", reason)
        self._disconnect()
        self._after(pause, self._connect)

    def _disconnect(self) -> None:
        if self._link is None:
            return
        self._loop.remove_reader(self._link.fileno())
        self._link.close()
        self._link = None
        self._commands = TvmCommands()
        if self.up:
            self.up = False
            self._on_down()
