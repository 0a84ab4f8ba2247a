"""A tracker's replicas, of which one leads: what is known of them, and the connection to the one that leads.

Beside that connection there is a *lookout*: one to a replica that stands by, which says at once who leads now. So a
leader that hangs, or whose host is gone, is left in the moment another leads.
"""

from __future__ import annotations

import collections
import selectors
import threading
import time
from enum import Enum
from typing import Any, Collection, Deque, Dict, Optional, Sequence, Tuple, Union

from rpcsys.errors import (
    Cancelled,
    Forbidden,
    NoTls,
    ProtocolError,
    RpcsysError,
    TrackerLost,
    TrackerUnreachable,
    Unauthorized,
    WrongPin,
    one_line,
)
from rpcsys.link.address import address_text, each_address
from rpcsys.link.backoff import Backoff, jitter
from rpcsys.link.credential import Credential
from rpcsys.link.link import CAPABILITIES, Link
from rpcsys.wire import replicas
from rpcsys.wire.tracker import TrackerFrameReader

Address = Tuple[str, int]

#: Seconds in which the first replica may answer before a lookout is asked, too; and until a lookout must have answered.
ALONE_S, LOOKOUT_S = 0.5, 2.0
RETRY_S = (0.1, 10.0)  # first and longest pause before another lookout is tried
_NEVER = float("inf")


class Role(Enum):
    """What the answer to a hello makes of a tracker."""

    LEADER = "it leads"
    DEPOSED = "it led in an earlier term"
    STANDBY = "it stands by"
    SINGLE = "it has no replicas"


class Trackers:
    """What is known of the replicas at ``addresses``, for any number of links and threads.

    ``leader`` is None while none is known; ``term``: the highest that was heard of. ``credential``: the one with which
    a replica has answered, for a leader at an address that is none of these. ``keeps``: whether the lookout of a closed
    link is kept for the next one; then `close` it.
    """

    def __init__(self, addresses: Sequence[Address], keeps: bool = True) -> None:
        self.addresses = tuple(addresses)
        self.leader: Optional[Address] = None
        self.term = 0
        self.credential: Optional[Credential] = None
        self._lock = threading.Lock()
        self._keeps = keeps
        self._kept: Deque[ReplicaLink] = collections.deque()

    def hears(self, leader: Optional[Address], term: int) -> bool:
        """Take the news that ``leader`` leads. False: of an earlier term than is known, they change nothing."""
        with self._lock:
            if term < self.term:
                return False
            self.leader, self.term = leader, term
            return True

    def forget(self) -> None:
        """Take the next answer whatever its term: none leads in the known one, or later (the engine was made anew)."""
        with self._lock:
            self.leader, self.term = None, 0

    def role(self, welcome: Dict[str, Any]) -> Role:
        """The role of a tracker that has answered a hello so. Raises ProtocolError: it has no term."""
        role = welcome.get("role")
        if role == replicas.STANDBY:
            return Role.STANDBY
        if role != replicas.LEADER:
            return Role.SINGLE
        return Role.LEADER if replicas.Leads.from_json(welcome, "welcome").term >= self.term else Role.DEPOSED

    def next(self, tried: Collection[Address]) -> Optional[Address]:
        """Where to look for the leader: where it is known to be, else in order. None: all of them were tried."""
        order = self.addresses if self.leader is None else (self.leader, *self.addresses)
        return next((each for each in order if each not in tried), None)

    def lookout(self, main: Address, tried: Collection[Address], jitter: float) -> Optional[Address]:
        """Where to look for a standby beside the connection to ``main``; None: there is no other address.

        ``jitter``, in [0, 1), chooses, so that a lab's lookouts are spread over the standbys.
        """
        others = [each for each in self.addresses if each not in (main, self.leader)]
        fresh = [each for each in others if each not in tried] or others
        return fresh[int(jitter * len(fresh))] if fresh else None

    def keep(self, lookout: ReplicaLink) -> None:
        """Keep the lookout of a link that is closed, or close it."""
        if self._keeps and not self._kept:
            self._kept.append(lookout)
        else:
            lookout.close()

    def take(self) -> Optional[ReplicaLink]:
        """The lookout that is kept, if there is one; not ready if it leads now: its new hello is not answered yet."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close the lookout that is kept."""
        lookout = self.take()
        if lookout is not None:
            lookout.close()


class ReplicaLink(Link):
    """A connection to one replica, whose conversation can begin anew. ``reason``: why there is no answer."""

    reason = ""

    def begin_anew(self, timeout: float) -> None:
        """Begin again with the magic; the hello must be answered within ``timeout`` seconds."""
        self.ours, self._hello_sent = None, False
        self._reader = TrackerFrameReader()
        self._expires = time.monotonic() + timeout
        self._greet()
        self.flush()

    def _unreachable(self, reason: str, kind: Optional[str] = None) -> TrackerUnreachable:
        self.reason = kind or reason
        return super()._unreachable(reason, kind)


#: Of a connection to the leader. SEEKING: there is none, an address is tried next, or the lookout's news are awaited.
#: ASKING: one is made, or its hello is not answered. OVER: the leader is lost, or another one leads.
Phase = Enum("Phase", "SEEKING ASKING UP OVER")
SEEKING, ASKING, UP, OVER = Phase
TRANSITIONS = {SEEKING: (ASKING, UP), ASKING: (SEEKING, ASKING, UP), UP: (OVER,), OVER: ()}


class LeaderLink(Link):
    """A link to the replica that leads: of `Addresses`, or of the `Trackers` of several links. Its parameters are those
    of `Link`.
    """

    follows = True

    def __init__(
        self, target: Union[Tuple[str, int], Trackers], *, timeout: float = 5.0,
        credential: Optional[Credential] = None, capabilities: Sequence[str] = CAPABILITIES, **hello: Any,
    ) -> None:  # fmt: skip
        self._begin(timeout)
        self._known = known = Trackers(each_address(target), keeps=False) if isinstance(target, tuple) else target
        self._credential = credential
        self._hello_options = {**hello, "capabilities": (*capabilities, replicas.REPLICAS)}
        self._phase = SEEKING
        self._term: Optional[int] = None  # the leader's; None: it has none
        self._tried: Dict[Address, str] = {}  # until the leader is found: and why it was not there
        self._refusal: Optional[RpcsysError] = None  # the first that says more than silence
        self._backoff = Backoff(*RETRY_S)
        self._look_at = time.monotonic() + ALONE_S
        self._lookout = kept = known.take()
        if kept is not None:
            self._selector.register(kept, selectors.EVENT_READ)
        if kept is not None and not kept.ready:
            self._lookout = None
            self._ask(kept)
        else:
            first = known.next(() if kept is None else (kept.address,)) or known.addresses[0]
            self._ask(self._dial(first, timeout))

    @property
    def ready(self) -> bool:
        """Whether the leader has answered the hello."""
        return self._phase is UP and not self._closed

    @property
    def due(self) -> float:
        """When `advance` is to be called at the latest, by the monotonic clock."""
        if self._phase is SEEKING and self._lookout is None:
            return 0.0
        look_at = self._look_at if self._lookout is None else self._lookout.due
        return look_at if self._phase is UP else min(look_at, self._expires)

    def post(self, message: Any) -> None:
        """As `Link.post`."""
        if not self.ready:
            raise TrackerLost(f"the link to the tracker {self._place} is not open")
        self._main.post(message)

    def flush(self) -> None:
        """As `Link.flush`."""
        if self.ready:  # else the main connection may be closed
            self._main.flush()

    def next_id(self) -> int:
        """As `Link.next_id`."""
        return self._main.next_id()

    def hang_up(self) -> None:
        """As `Link.hang_up`."""
        self._hung_up = True
        for one in (self._main, self._lookout):
            if one is not None:
                one.hang_up()

    def close(self) -> None:
        """Close the link; the lookout is kept for the next one, unless it has led to no leader."""
        if self._closed:
            return
        self._closed = True
        self._selector.close()
        lookout, self._lookout = self._lookout, None
        if self._main is not lookout:
            self._main.close()
        if lookout is not None and self._phase in (UP, OVER):
            self._known.keep(lookout)
        elif lookout is not None:
            lookout.close()

    def _step(self) -> None:
        if self._hung_up:
            raise Cancelled("the request was cancelled")
        if self._closed:
            raise TrackerLost(f"the link to the tracker {self._place} is closed")
        if self._lookout is not None:
            self._hear(self._lookout)
        self._check_term()
        if self._phase in (ASKING, UP):
            self._hear(self._main)
            self._check_term()
        if self._phase is not UP:
            self._seek()
        if self._lookout is None and time.monotonic() >= self._look_at:
            self._look()

    # The connections

    def _move(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self._phase], (self._phase, phase)
        self._phase = phase

    def _dial(self, address: Address, timeout: float) -> ReplicaLink:
        """Raises ConfigError: a credential is damaged; OSError: there are no descriptors left."""
        held = self._credential or (None if address in self._known.addresses else self._known.credential)
        made = ReplicaLink(address, timeout=timeout, credential=held, **self._hello_options)
        self._selector.register(made, selectors.EVENT_READ)
        return made

    def _drop(self, one: ReplicaLink) -> None:
        self._selector.unregister(one)
        one.close()

    def _ask(self, main: ReplicaLink) -> None:
        self._move(ASKING)
        self._have(main)

    def _have(self, main: ReplicaLink) -> None:
        """Have the main connection, and show what it knows."""
        self._main, self._place, self._tls = main, main._place, main._tls
        self.address, self.credential, self.ours, self.tracker = main.address, main.credential, main.ours, main.tracker

    def _seek(self) -> None:
        """Try the next address, or wait for the lookout's news. Raises the error of an opening that has failed."""
        expired = time.monotonic() >= self._expires
        if self._phase is SEEKING and not expired:
            lookout = self._lookout
            address = self._known.next({*self._tried, *(() if lookout is None else (lookout.address,))})
            if address is None and lookout is None:
                raise self._refusal or self._leaderless()
            if address is not None:
                try:
                    self._ask(self._dial(address, self._expires - time.monotonic()))
                except (RpcsysError, OSError) as error:
                    self._tried[address] = one_line(error)
        if expired:
            self.at_once = self._lookout is not None and self._lookout.ready
            raise self._leaderless()

    def _look(self) -> None:
        """Ask another replica to be the lookout."""
        address = self._known.lookout(self._main.address, self._tried, jitter())
        self._look_at = _NEVER if address is None else time.monotonic() + self._backoff.pause(jitter())
        if address is None:
            return
        try:
            self._lookout = self._dial(address, LOOKOUT_S)
        except (RpcsysError, OSError) as error:
            self._tried[address] = one_line(error)

    # What they say

    def _hear(self, one: ReplicaLink) -> None:
        """Take what one of the two connections brings."""
        was_ready = one.ready
        try:
            messages = one.advance()
            if one.ready and not was_ready:
                self._answered(one)
            for message in messages if one is self._lookout else ():
                self._take_news(one, message)
        except (RpcsysError, OSError) as error:
            self._failed(one, error)
        else:
            if one is self._main and self._phase is UP:
                self._inbox += messages
                self._have(one)

    def _failed(self, one: ReplicaLink, error: Exception) -> None:
        """A connection has failed. Raises the error where it ends the link."""
        self._tried[one.address] = one.reason or one_line(error)
        if one is self._lookout:
            self._drop(one)
            self._lookout = None
            return
        if self._phase is UP:
            self._move(OVER)
            raise error
        self._drop(one)
        self._move(SEEKING)
        if isinstance(error, (Unauthorized, Forbidden)):
            raise error
        if self._refusal is None and isinstance(error, (WrongPin, NoTls)):
            self._refusal = error

    def _answered(self, one: ReplicaLink) -> None:
        """The hello is answered. Raises RpcsysError: by one that is of no use here."""
        role = self._known.role(one.tracker)
        self._known.credential = one.credential or self._known.credential
        if role is Role.STANDBY:
            self._stands_by(one)
        elif role is Role.DEPOSED:
            raise TrackerLost(Role.DEPOSED.value)
        elif one is self._lookout and self._phase is UP:
            if role is Role.LEADER:
                self._known.hears(one.address, one.tracker["term"])
            raise TrackerLost(role.value)
        else:
            self._leads(one, role)

    def _stands_by(self, one: ReplicaLink) -> None:
        self._backoff.worked()
        if one is not self._lookout:
            if self._lookout is not None:
                self._drop(self._lookout)
            self._lookout = one
            self._tried[one.address] = ": ".join(filter(None, (Role.STANDBY.value, replicas.why_none(one.tracker))))
            self._move(SEEKING)
        self._take_news(one, one.tracker)

    def _leads(self, one: ReplicaLink, role: Role) -> None:
        if one is self._lookout:
            self._replace_main(one)
        self._move(UP)
        self._have(one)
        self._tried.clear()
        if role is Role.LEADER:
            self._term = one.tracker["term"]
            self._known.hears(one.address, self._term)
            self._look_at = 0.0
            return
        self._known.forget()
        self._look_at = _NEVER
        if self._lookout is not None:
            self._drop(self._lookout)
            self._lookout = None

    def _replace_main(self, one: ReplicaLink) -> None:
        """Have the lookout's connection as the main one."""
        if self._phase is ASKING:
            self._drop(self._main)
        self._lookout = None
        self._have(one)

    def _take_news(self, lookout: ReplicaLink, message: Any) -> None:
        """The lookout says who leads. Raises ProtocolError."""
        if type(message) is not dict or not ("term" in message and "leader" in message):
            return  # a newer tracker's
        news = replicas.Leads.from_json(message, "news")
        if not self._known.hears(lookout.address if news.here else news.leader, news.term):
            if news.here:  # it now waits for a hello
                raise ProtocolError(Role.DEPOSED.value)
            return
        if news.leader is not None:
            self._tried.pop(news.leader, None)
        if news.here:
            lookout.begin_anew(LOOKOUT_S)
            if self._phase is not UP:
                self._replace_main(lookout)
                self._move(ASKING)
        elif self._phase is ASKING and news.leader not in (None, self._main.address):
            self._drop(self._main)
            self._move(SEEKING)

    def _check_term(self) -> None:
        """Raise TrackerLost if another replica leads than the main connection's."""
        known = self._known
        if self._phase is UP and self._term is not None and known.leader is not None and known.term > self._term:
            self._move(OVER)
            self.at_once = True
            where = address_text(*known.leader), address_text(*self._main.address)
            raise TrackerLost("another tracker leads now: {}, not {}".format(*where))

    def _leaderless(self) -> TrackerUnreachable:
        """The error for an opening that has found no leader, with what each address has said."""
        self._known.forget()
        if self._lookout is not None and self._lookout.ready:
            self._tried.setdefault(self._lookout.address, Role.STANDBY.value)
        said = {**dict.fromkeys(self._known.addresses, "no answer in time"), **self._tried}
        how = "start one with `rpcsys tracker`, or check the address of each"
        stands_by = any(why.startswith(Role.STANDBY.value) for why in said.values())
        if stands_by:
            how = "one of them leads within seconds, unless they have lost their engine: see their logs"
        places = ", ".join(f"{address_text(*each)} ({why})" for each, why in said.items())
        return TrackerUnreachable(f"no tracker leads at {places}: {how}", stands_by)
