"""The server's messages to and from a tracker, over a :class:`rpcsys.link.link.Link`.

Our tracker gets one registration, then TVM's PUT for every match key. TVM's tracker gets its own codes; the replies
have no id, and come in the order of the requests.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from rpcsys.errors import ConfigError, ConnectError, ProtocolError, TrackerError
from rpcsys.link import credential
from rpcsys.link.backoff import jitter
from rpcsys.link.link import CAPABILITIES, Link
from rpcsys.link.targets import link_to, shared
from rpcsys.link.tvm_commands import TvmCommands
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor import session_keys
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.records import Use
from rpcsys.wire import checks, control, tracker
from rpcsys.wire.tokens import HolderKind

log = logging.getLogger(__name__)

NOTE_EVERY_S = 10.0  # between two warnings about invalid messages of the tracker
MAX_UNANSWERED = 100  # commands without a reply: match keys for every slot, and polls for a minute
OLD_LABELS = 32  # that trackers accept which do not compare versions
FAREWELL_S = 1.0  # longest wait for the tracker's answers to the last reports of a server that ends


class TrackerLink:
    """One connection at a time, to one of ``addresses``, or through one of the ``proxies`` there.

    ``card``: the fields of a registration that never change. ``new_key``: as those of `session_keys`. ``lab``: the file
    of the credential for a closed lab, if there is one. ``canary_limit_s``: above it the board is ill at once.
    """

    def __init__(
        self,
        loop: Loop,
        addresses: Sequence[tuple[str, int]],
        card: dict[str, Any],
        new_key: Callable[[str], tuple[str, str]] = session_keys.plain,
        *,
        proxies: bool = False,
        lab: str = "",
        canary_limit_s: float | None = None,
    ) -> None:
        self._loop = loop
        self._addresses = [shared(address) for address in addresses]
        self._proxies = proxies
        self._lab = lab
        self._card = card
        self._new_key = new_key
        self._link: Link | None = None
        self._reported_up = False
        self._registration = 0
        self._commands = TvmCommands()
        self._reported: dict[int, tuple[str, int] | None] = {}  # by message number: the lease whose end it reports
        self._note_at = 0.0
        self._canary_limit_s = canary_limit_s

    def actions(self) -> dict[type, Callable[..., object]]:
        """The function that carries out each kind of action, with the action's fields as arguments."""
        return {
            do.Connect: self.connect,
            do.Disconnect: self.close,
            do.RegisterServer: self.register,
            do.Offer: self.offer,
            do.MakeKey: self.make_key,
            do.Poll: self.poll,
            do.ReportStart: self.report_start,
            do.ReportEnd: self.report_end,
            do.ReportHealth: self.report_health,
            do.ReportCanary: self.report_canary,
        }

    def connect(self, which: int = 0) -> None:
        """Start connecting to one of the addresses: LinkUp or LinkDown follows."""
        self.close()
        self._reported_up = False
        self._commands = TvmCommands()
        self._reported.clear()
        try:
            capabilities = (*CAPABILITIES, control.KEEPALIVE)
            held = credential.read(self._lab) if self._lab else None  # each time: it may have been renewed
            address = self._addresses[which]
            self._link = link_to(address, capabilities=capabilities, proxy=self._proxies, credential=held)
        except OSError as error:  # no descriptors left
            self._down(f"no tracker can be reached ({error.strerror or error})")
            return
        except ConfigError as error:
            self._down(str(error))
            return
        self._loop.add(self._link.fileno(), self._advance)
        self._advance()

    def close(self) -> None:
        """Close the connection, posting no event."""
        if self._link is not None:
            with contextlib.suppress(ConnectError):
                self._link.flush()
            self._loop.remove(self._link.fileno())
            self._loop.call_at(None, self._advance)
            self._link.close()
            self._link = None

    def introduce(self, **fields: Any) -> None:
        """Note fields of registrations that are known only now."""
        self._card = {**self._card, **fields}

    def register(self, running: tuple[tuple[str, int, float], ...], admitted: tuple[Use, ...] = ()) -> None:
        """Register this server: Registered follows."""
        if self._link is None:
            return
        if not self._link.ours:
            host, port = self._card["address"], self._card["port"]
            self._command(tracker.UpdateInfo("server:" + self._card["key"], host, port))
            return
        self._registration = self._link.next_id()
        leases = tuple(control.Running(*lease) for lease in running)
        told = self._link.tracker
        card = self._card if told.get("kind") != HolderKind.BOARD.value else self._named(str(told.get("member")))
        if control.VERSIONS not in (told.get("capabilities") or ()):
            card = {**card, "labels": dict(itertools.islice(card["labels"].items(), OLD_LABELS))}
        uses = tuple(control.ModuleUse(*use) for use in admitted[: checks.MAX_ITEMS])
        self._send(control.Register(self._registration, running=leases, admitted=uses, **card))

    def _named(self, board: str) -> dict[str, Any]:
        """The registration's fields of a board of a lab: a server without ``--name`` has its credential's."""
        card = self._card
        if not card["spare"]:
            return card
        return {**card, "name": board, "spare": "", "labels": {**card["labels"], "name": board}}

    def offer(self, matchkey: str = "") -> None:
        """Offer a match key. Without one, make and offer a new one: KeyMade follows."""
        new, seed = (matchkey, "") if matchkey else self._new_key(self._card["key"])
        # A server behind a proxy has no port: the tracker has the proxy's address.
        port = self._card["port"] or 0
        self._command(tracker.Put(self._card["key"], port, new, self._card["address"]))
        if not matchkey:
            self._loop.post(ev.KeyMade, new, seed)

    def make_key(self) -> None:
        self._loop.post(ev.KeyMade, *self._new_key(self._card["key"]))

    def poll(self) -> None:
        """Request the pending match keys from TVM's tracker: Pending follows."""
        if len(self._commands.unanswered) > MAX_UNANSWERED:
            self._down("the tracker does not answer any more")
        else:
            self._command(tracker.GetPending())

    def report_start(self, lease: str, epoch: int, peer: str, limit_s: float | None = None) -> None:
        self._reported[self._report(control.LeaseStarted, lease, epoch, peer, limit_s)] = None

    def report_end(
        self, lease: str, epoch: int, outcome: str, killed: Sequence[str], removed: Sequence[str],
        fault: str = "", why: str = "",
    ) -> None:  # fmt: skip
        """Report the end of a lease to our tracker: EndConfirmed follows."""
        cleaned = {what: list(names) for what, names in (("processes", killed), ("removed", removed)) if names}
        self._reported[self._report(control.LeaseEnded, lease, epoch, outcome, cleaned, fault, why)] = lease, epoch

    def report_health(self, problem: str) -> None:
        self._report(control.Health, problem)

    def report_canary(self, canary: str, seconds: float, disturbed: bool, throttled: float, problem: str) -> None:
        """Report a run of the canary, if the tracker is of a version that knows of canaries."""
        if self._link is not None and control.CANARIES in (self._link.tracker.get("capabilities") or ()):
            self._report(control.CanaryRun, canary, seconds, disturbed, throttled, self._canary_limit_s, problem)

    def report_deployed(self, key: str, modules: Sequence[tuple[Any, ...]], workers: int) -> None:
        """Report each deployed module to our tracker: name, version, whether served, running, waiting, clients."""
        kind = control.DeployedModule
        reports = tuple(kind(name, version, serving, workers, *load) for name, version, serving, *load in modules)
        self._report(control.Deployed, reports, key)

    def _report(self, kind: Callable[..., Any], *fields: Any) -> int:
        """Queue a message to our tracker, for :meth:`flush`; the message's number."""
        number = 0 if self._link is None else self._link.next_id()
        self._send(kind(number, *fields), lambda link, message: link.post(message))
        return number

    def flush(self) -> None:
        """Send the queued reports, by one system call."""
        try:
            if self._link is not None:
                self._link.flush()
        except ConnectError as error:
            self._down(str(error))

    def finish(self) -> None:
        """Wait until our tracker has answered all reports on leases, at most `FAREWELL_S`; then close."""
        until = time.monotonic() + FAREWELL_S
        self.flush()
        while self._reported and self._link is not None and time.monotonic() < until:
            select.select([self._link.fileno()], [], [], max(0.0, until - time.monotonic()))
            self._advance()
        self.close()

    def _command(self, command: tracker.TvmMessage) -> None:
        self._send(command, self._commands.give)

    def _send(self, message: Any, give: Callable[[Link, Any], None] | None = None) -> None:
        if self._link is None:
            return
        try:
            if give is None:
                self._link.send(message)
            else:
                give(self._link, message)
        except ConnectError as error:
            self._down(str(error))

    def _down(self, why: str, none: bool = False) -> None:
        hello = self._link.tracker if self._link is not None else {}
        at_once = self._link is not None and self._link.at_once
        self.close()
        none = none or hello.get("error") == control.NO_CONTROL_LINK
        self._loop.post(ev.LinkDown, why, jitter(), none, at_once)

    def _advance(self) -> None:
        if self._link is None:
            return
        try:
            messages = self._link.advance()
            if self._link.ready and not self._reported_up:
                self._reported_up = True
                self._loop.post(ev.LinkUp, bool(self._link.ours), self._link.tracker.get("open") is True)
            for message in messages:
                self._handle(message)
        except (ConnectError, ProtocolError, TrackerError) as error:
            self._down(str(error))
        if self._link is not None and self._link.follows:  # its state has the limits of others
            self._loop.call_at(self._link.due if self._link.due < math.inf else None, self._advance)

    def _handle(self, message: Any) -> None:
        if not isinstance(message, dict):
            self._handle_reply(message)
            return
        try:
            parsed = tracker.parse_from_tracker(message)
        except tracker.BadMessage as error:
            if error.fatal:
                raise
            self._note_refused(str(error))
            self._send(error.reply)
            return
        if isinstance(parsed, control.Answer):
            self._handle_answer(parsed)
        elif isinstance(parsed, (control.Taken, control.End, control.Limit)):
            self._post_about_lease(parsed)
            self._send(control.Answer(parsed.id, True))
        elif isinstance(parsed, (control.Admit, control.Unadmit)) and self._card.get("pin"):
            self._post_about_member(parsed)
            self._send(control.Answer(parsed.id, True))
        elif isinstance(parsed, control.Keepalive):
            self._send(control.Answer(parsed.id, True))
        elif isinstance(parsed, control.Ask):
            refusal = f"this version of the server has no {parsed.op} yet"
            self._send(control.Answer(parsed.id, False, "BadRequest", refusal))

    def _post_about_member(self, order: control.Admit | control.Unadmit) -> None:
        use = order.what, order.modules, order.member
        if isinstance(order, control.Admit):
            self._loop.post(ev.Admitted, order.secret, *use, order.until_s)
        else:
            self._loop.post(ev.Unadmitted, *use, order.why)

    def _post_about_lease(self, order: control.AboutLease) -> None:
        post, lease = self._loop.post, (order.lease, order.epoch)
        if isinstance(order, control.Limit):
            post(ev.LeaseRenewed, *lease, order.limit_s)
        elif isinstance(order, control.End):
            post(ev.LeaseRevoked, *lease, order.reason, order.why)
        elif isinstance(order, control.Taken):
            limits = order.limit_s, order.longest_s
            rights = order.code, order.plain
            post(ev.KeyTaken, *lease, order.matchkey, order.user, order.address, *limits, *rights)

    def _handle_answer(self, answer: control.Answer) -> None:
        ended = self._reported.pop(answer.id, None)
        if ended is not None:
            self._loop.post(ev.EndConfirmed, *ended)
        if answer.id != self._registration:
            return
        if answer.error == control.NO_CONTROL_LINK:
            self._down(answer.message, none=True)
        elif not answer.ok:
            raise ProtocolError(f"it refused the registration: {answer.message or answer.error}")
        else:
            self._loop.post(ev.Registered)

    def _note_refused(self, why: str) -> None:
        """Log an invalid message of the tracker, which may leave a client without its session."""
        now = self._loop.now()
        if now >= self._note_at:
            self._note_at = now + NOTE_EVERY_S
            log.warning(
                "refused a message of the tracker: %s. The tracker is broken, or of another version: restart it, or "
                "install the same version on both",
                why,
            )

    def _handle_reply(self, reply: Any) -> None:
        command, matchkeys = self._commands.answered(reply)
        if command is tracker.GetPending:
            self._loop.post(ev.Pending, matchkeys)
        elif command is tracker.UpdateInfo:
            self._loop.post(ev.Registered)
