"""The link to the tracker, and the match keys offered over it: one for every free slot, each for one client.

When the link breaks, untaken keys are void. A taken key stays valid until it expires, because its client may be about
to connect. If no proxy leads to a tracker of ours, connections wait at the proxies under the plain key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rpcsys.link.backoff import Backoff
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.records import ServerRecords, Use, earliest
from rpcsys.wire.keys import same
from rpcsys.wire.pinned_keys import public_name

UNUSED_S = 8.0  # an unused taken key expires then, as with TVM's server; clients connect within milliseconds
POLL_S = 2.0  # between two polls of TVM's tracker for pending match keys, as with TVM's server
ANSWER_S = 5.0  # longest wait for a tracker's answer to a connection or a registration
#: First and longest pause before connecting again. The server is back within 5 s of the tracker's return, even if an
#: attempt fails just before it.
RETRY_S = (0.1, 2.0)
SELDOM_S = 20.0  # longest pause between two searches for a tracker behind proxies that never led to one
MAX_REASONS = 8  # why the tracker cannot be reached, logged until it is back
LED_S = 30.0  # after the last contact, proxies are still expected to lead to a tracker: it may be restarting
#: Ends of leases that no tracker has confirmed. A server has at most 256 slots, and none is leased again before its
#: tracker is back.
MAX_UNREPORTED = 512

#: FOREIGN: TVM's tracker is behind the proxies, which offer this server there.
LinkState = Enum("LinkState", "DOWN CONNECTING REGISTERING UP FOREIGN CLOSED")


class LinkEvent(str, Enum):
    """What happens to the link."""

    TRIED = "a connection attempt begins"
    ANSWERED = "the tracker answers with its kind"
    IS_TVMS = "it is TVM's tracker, behind proxies"
    TAKEN = "the tracker has accepted the registration"
    LOST = "the connection ended, or is closed to connect again"
    CLOSE = "the server stops"


DOWN, CONNECTING, REGISTERING, UP, FOREIGN, CLOSED = LinkState
TRIED, ANSWERED, IS_TVMS, TAKEN, LOST, CLOSE = LinkEvent

TRANSITIONS = {
    DOWN: {TRIED: CONNECTING, CLOSE: CLOSED},
    CONNECTING: {ANSWERED: REGISTERING, IS_TVMS: FOREIGN, LOST: DOWN, CLOSE: CLOSED},
    REGISTERING: {TAKEN: UP, LOST: DOWN, CLOSE: CLOSED},
    UP: {LOST: DOWN, CLOSE: CLOSED},
    FOREIGN: {LOST: DOWN, CLOSE: CLOSED},
    CLOSED: {CLOSE: CLOSED},
}


@dataclass
class MatchKey:
    """A match key: offered, then possibly taken under a lease."""

    matchkey: str
    seed: str = ""  # of a pinned one: the private key of its session, hexadecimal
    proxy: int = 0  # the proxy where a connection waits for its client
    put: bool = True  # it is offered to the tracker
    taken_at: float | None = None
    lease: str | None = None
    epoch: int = 0
    limit_s: float | None = None
    longest_s: float | None = None
    code: bool = False  # whether its session may load more than models in ONNX's format
    plain: bool = False  # whether its client may come in the clear
    held: bool = False  # a client has said its public name, and the front waits for the rest


class Offers:
    """The state of the ``link``, the offered ``keys`` by their text, and ``asked``: the number of keys being made."""

    def __init__(self, records: ServerRecords) -> None:
        self.records = records
        self.proxy = 0
        self.link = DOWN
        self.ours = False
        self.keys: dict[str, MatchKey] = {}
        self.asked = 0
        self.unreported: dict[tuple[str, int], do.ReportEnd] = {}
        self._proxies = len(records.policy.proxies)
        self._failures = 0
        self._led_at: float | None = None
        self._begun: list[do.Action] = []
        self._backoff = Backoff(*RETRY_S)
        self._next: float | None = None
        self._complained: list[str] = []

    def _move(self, event: LinkEvent, next_at: float | None) -> None:
        self.link, self._next = TRANSITIONS[self.link][event], next_at

    def open(self) -> list[do.Action]:
        self._move(TRIED, self.records.now + ANSWER_S)
        return [do.Connect(self.proxy)]

    def abandon(self) -> list[do.Action]:
        """Make every key void, and report its lease to our tracker as unused."""
        keys, self.keys = self.keys, {}
        return [action for key in keys.values() for action in self.unused(key.lease, key.epoch)]

    def owing(self) -> bool:
        """Whether ends of leases wait for a link that is being made."""
        return bool(self.unreported) and self.link in (CONNECTING, REGISTERING)

    def close(self) -> list[do.Action]:
        """Close the link for good. A tracker drops the offers of a closed connection."""
        was = self.link
        self._move(CLOSE, None)
        return [] if was in (DOWN, CLOSED) else [do.Disconnect()]

    def up(
        self, ours: bool, running: tuple[tuple[str, int, float], ...], admitted: tuple[Use, ...] = ()
    ) -> list[do.Action]:
        """Register with a tracker that has answered."""
        if self.link is not CONNECTING:
            return []
        if self._proxies and not ours:
            return self._foreign()
        self._move(ANSWERED, self.records.now + ANSWER_S)
        self.ours, self._begun = ours, []
        return [do.RegisterServer(running, admitted)]

    def _foreign(self) -> list[do.Action]:
        """Keep the link idle: when it ends, another tracker may have replaced this one."""
        self._move(IS_TVMS, None)
        self._backoff.worked()
        self._failures = self._proxies  # counts as a whole round: no proxy leads to a tracker of ours
        return [do.Log("info", "the tracker behind the proxy is TVM's: the proxy offers this board there")]

    def registered(self) -> list[do.Action]:
        """The tracker accepted the registration: report leases begun since it was sent, and unconfirmed ends."""
        if self.link is not REGISTERING:
            return []
        self._move(TAKEN, None if self.ours else self.records.now + POLL_S)
        self._failures = 0
        self._backoff.worked()
        self._complained.clear()
        owed = (*self._begun, *self.unreported.values()) if self.ours else ()
        return [do.Log("info", "registered with the tracker"), *owed]

    def down(self, event: ev.LinkDown) -> list[do.Action]:
        """The link broke or could not be made: try again after a pause. Log each reason once in a row of failures."""
        if self.link in (DOWN, CLOSED):
            return []
        if self.link is UP:
            self._led_at = event.now
        elif event.none:
            self._led_at = None
        self._move(LOST, event.now + (0.0 if event.at_once else self._next_pause(event.jitter)))
        self.asked = 0
        self.keys = {text: key for text, key in self.keys.items() if key.taken_at is not None}
        if event.why in self._complained or len(self._complained) == MAX_REASONS:
            return []
        self._complained.append(event.why)
        if self._leads_nowhere:
            text = f"no proxy leads to a tracker of ours ({event.why}): this board waits there under its key"
            return [do.Log("info", text)]
        return [do.Log("warning", event.why if event.at_once else f"{event.why}; trying again until it is back")]

    def _next_pause(self, jitter: float) -> float:
        """The pause before the next attempt. Proxies are tried in turn, and the pause grows after each whole round."""
        self._failures += 1
        if self._proxies:
            self.proxy = (self.proxy + 1) % self._proxies
            if self._failures % self._proxies:
                return Backoff(*RETRY_S).pause(jitter)  # the first pause of a new backoff
        self._backoff.longest_s = SELDOM_S if self._leads_nowhere else RETRY_S[1]
        return self._backoff.pause(jitter)

    @property
    def _leads_nowhere(self) -> bool:
        """Whether there are proxies, and none has led to a tracker of ours so far."""
        return bool(self._proxies) and self._led_at is None

    def plain_at(self) -> list[int]:
        """The proxies at which connections wait under the plain key."""
        if self.records.policy.pinned:
            return []
        if self.link is FOREIGN:
            return [self.proxy]
        if self.link not in (DOWN, CONNECTING, REGISTERING) or self._failures < self._proxies:
            return []
        if self._led_at is not None and self.records.now < self._led_at + LED_S:
            return []
        return list(range(self._proxies))

    def parked(self, matchkey: str) -> list[do.Action]:
        """Offer a match key once a connection waits at its proxy."""
        key = self.keys.get(matchkey)
        if key is None or key.put or self.link is not UP:
            return []
        key.put = True
        return [do.Offer(matchkey)]

    def withdraw(self) -> list[do.Action]:
        """Withdraw all offers by closing the link: a tracker drops the offers of a closed connection."""
        if self.link is not UP or not (self.keys or self.asked):
            return []
        self._move(LOST, self.records.now)
        self.asked, self._led_at = 0, self.records.now
        return [*self.abandon(), do.Disconnect()]

    def offer(self, free: int) -> list[do.Action]:
        """Make the match keys that are missing for ``free`` slots, and offer them."""
        if self.link is not UP:
            return []
        missing = free - len(self.keys) - self.asked
        self.asked += max(missing, 0)
        return [do.MakeKey() if self._proxies else do.Offer() for _ in range(missing)]

    def key_made(self, event: ev.KeyMade) -> list[do.Action]:
        """Record a new match key: offered already, or, behind proxies, to be offered once a connection waits."""
        if self.asked:
            self.asked -= 1
            self.keys[event.matchkey] = MatchKey(event.matchkey, event.seed, self.proxy, put=not self._proxies)
        return []

    def find(self, text: str) -> MatchKey | None:
        """The match key for what a client says in the clear: its public name, or the whole of it.

        Compares with every key, each in constant time.
        """
        named = [key for key in self.keys.values() if same(public_name(key.matchkey), text)]
        whole = [key for key in self.keys.values() if same(key.matchkey, text)]
        found = next(iter([*named, *whole]), None)
        return None if found is None or found.held else found

    def use(self, key: MatchKey) -> None:
        del self.keys[key.matchkey]

    def may_precede_its_lease(self, key: MatchKey) -> bool:
        """Whether the tracker's message about this key may arrive after its client."""
        return self.ours and self.link is UP and key.taken_at is None

    def taken(self, event: ev.KeyTaken) -> bool:
        """Record that our tracker handed out a key; whether the key was still offered."""
        key = self.keys.get(event.matchkey)
        if key is None:
            return False
        key.taken_at = event.now
        key.lease, key.epoch, key.limit_s, key.longest_s = event.lease, event.epoch, event.limit_s, event.longest_s
        key.code, key.plain = event.code, event.plain
        return True

    def pending(self, event: ev.Pending) -> list[do.Action]:
        for key in self.keys.values():
            if key.matchkey in event.matchkeys:
                key.taken_at = None
            elif key.taken_at is None:
                key.taken_at = event.now
        return []

    def renewed(self, event: ev.LeaseRenewed) -> bool:
        """Renew the lease of an unused key; whether there is such a key."""
        key = self._leased(event)
        if key is not None:
            key.limit_s = event.limit_s
        return key is not None

    def revoked(self, event: ev.LeaseRevoked) -> None:
        """Make the unused key of a revoked lease void."""
        key = self._leased(event)
        if key is not None:
            self.use(key)

    def _leased(self, event: ev.LeaseReport) -> MatchKey | None:
        lease = event.lease, event.epoch
        return next((key for key in self.keys.values() if (key.lease, key.epoch) == lease), None)

    def unused(self, lease: str | None, epoch: int) -> list[do.Action]:
        """Report a lease, if there is one, as unused."""
        return [] if lease is None else self.report(do.ReportEnd(lease, epoch, "unused"))

    def report(self, action: do.ReportStart | do.ReportEnd) -> list[do.Action]:
        """Report a lease to our tracker. The end of a lease is sent again on each new link until it is confirmed."""
        if isinstance(action, do.ReportEnd):
            self.unreported[action.lease, action.epoch] = action
            if len(self.unreported) > MAX_UNREPORTED:
                del self.unreported[next(iter(self.unreported))]
        elif self.link is REGISTERING:
            self._begun.append(action)  # the registration was sent without this lease
        return [action] if self.linked else []

    @property
    def linked(self) -> bool:
        """Whether the link to a tracker of ours is up."""
        return self.link is UP and self.ours

    def confirmed(self, event: ev.EndConfirmed) -> list[do.Action]:
        self.unreported.pop((event.lease, event.epoch), None)
        return []

    def deadline(self) -> float | None:
        taken = (key.taken_at + self._unused_s for key in self.keys.values() if key.taken_at is not None)
        return earliest([self._next, *taken])

    def tick(self) -> list[do.Action]:
        """Replace expired keys; connect, poll or close the link when that is due."""
        actions, now = self._renew(), self.records.now
        if self._next is None or now < self._next:
            return actions
        if self.link is DOWN:
            return actions + self.open()
        if self.link is UP:
            self._next = now + POLL_S
            return [*actions, do.Poll()]
        silent = ev.LinkDown(now, f"the tracker did not answer for {ANSWER_S:g} s")
        return [*actions, do.Disconnect(), *self.down(silent)]

    @property
    def _unused_s(self) -> float:
        """Seconds until a taken key expires. With TVM's tracker, the key may have been taken just after a poll."""
        return UNUSED_S if self.ours else UNUSED_S - POLL_S

    def _renew(self) -> list[do.Action]:
        actions: list[do.Action] = []
        for key in list(self.keys.values()):
            if key.taken_at is not None and self.records.now >= key.taken_at + self._unused_s:
                self.use(key)
                actions.append(do.Log("info", "a match key was taken and not used: offering a new one"))
                actions += self.unused(key.lease, key.epoch)
        return actions
