"""Who has had how much device time lately: every second of every lease counts, half as much after an hour.

A user's sum is ``base + running * x`` over ``x``, a clock on which an hour is twice as long as the hour before: nothing
decays on it, so two users with equally many leases keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Protocol

HALF_LIFE_S = 3600.0
#: Running leases count as if they had run so much longer: of two who have had nothing, the one goes first who holds
#: fewer devices.
AHEAD_S = 1.0
_RATE = log(2) / HALF_LIFE_S
_REBASE_HALVES = 300  # half-lives after which the clock starts anew: a double holds 1,023 doublings
_NEGLIGIBLE_S = 1.0
_MANY = 1024  # users remembered before those without noticeable device time are looked for


class Order(Protocol):
    """Something that stands in the order of shares."""

    def reorder(self, share: Share) -> None:
        """A share has changed."""


@dataclass(slots=True)
class Share:
    """One user's device time."""

    user: str
    base: float = 0.0
    running: int = 0
    waiting: int = 0
    #: The bands that have it in its place. One that is told of a change is forgotten until somebody looks at its order
    #: again: a user who waits for thousands of keys does not make each of its own leases cost as much.
    sorted_in: dict[tuple[object, float], Order] = field(default_factory=dict, compare=False)


@dataclass
class Shares:
    """All users' device time."""

    zero: float  # when the clock started
    users: dict[str, Share] = field(default_factory=dict)
    many: int = _MANY

    def clock(self, at: float) -> float:
        """``x`` at a time: device seconds since ever, if one device had always run, on the undecaying scale."""
        if at - self.zero > _REBASE_HALVES * HALF_LIFE_S:
            self._rebase(at)
        x: float = 2.0 ** ((at - self.zero) / HALF_LIFE_S) / _RATE
        return x

    def of(self, user: str) -> Share:
        """A user's share, a new one if there is none."""
        return self.users.get(user) or self.users.setdefault(user, Share(user))

    def waits(self, at: float, user: str) -> None:
        """A request of the user's waits."""
        if len(self.users) > self.many:
            self._tidy(at)
        self.of(user).waiting += 1

    def waits_no_more(self, user: str) -> None:
        """A request of the user's is gone."""
        share = self.users[user]
        share.waiting -= 1
        self._forget_if_nothing(share)

    def begin(self, at: float, user: str) -> None:
        """A lease of the user's begins."""
        if len(self.users) > self.many:
            self._tidy(at)
        share, x = self.users.get(user) or self.of(user), self.clock(at)  # which may start anew, and change every base
        share.base -= x
        share.running += 1
        if share.sorted_in:
            _reorder(share)

    def end(self, at: float, user: str) -> None:
        """A lease of the user's ends."""
        if user in self.users:
            self._change(self.users[user], self.clock(at), -1)

    def remember(self, user: str, since: float, until: float) -> None:
        """A lease that is over, from before."""
        self._change(self.of(user), self.clock(until) - self.clock(since), 0)

    def _change(self, share: Share, base: float, running: int) -> None:
        share.base += base
        share.running += running
        if share.sorted_in:
            _reorder(share)
        if not share.base:
            self._forget_if_nothing(share)

    def _forget_if_nothing(self, share: Share) -> None:
        """A user is forgotten who waits for nothing, runs nothing and has had nothing, as by a lease of no duration."""
        if not (share.waiting or share.running or share.base):
            del self.users[share.user]

    def spent(self, at: float, user: str) -> float:
        """Device seconds of a user, decayed."""
        share = self.users.get(user)
        if share is None:
            return 0.0
        x = self.clock(at)
        return max(0.0, (share.base + share.running * x) / (x * _RATE))

    def _tidy(self, at: float) -> None:
        for user in [user for user, share in self.users.items() if not (share.running or share.waiting)]:
            if self.spent(at, user) < _NEGLIGIBLE_S:
                del self.users[user]
        self.many = max(_MANY, 2 * len(self.users))

    def _rebase(self, at: float) -> None:
        halves = (at - self.zero) // HALF_LIFE_S
        self.zero += halves * HALF_LIFE_S
        for share in self.users.values():
            share.base *= 2.0**-halves  # a power of two: nothing is rounded, no order changes
            _reorder(share)


def _reorder(share: Share) -> None:
    bands, share.sorted_in = share.sorted_in, {}
    for band in bands.values():
        band.reorder(share)


def lead(x: float) -> float:
    """What each running lease of a user weighs at ``x`` when users are compared."""
    return x * (1 + AHEAD_S * _RATE)
