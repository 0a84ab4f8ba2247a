"""Each user's share of device time: every second of every lease counts, half as much after an hour.

A user's share is ``base + running * x``. ``x`` is a clock on which each hour is twice as long as the hour before, so
nothing decays on it, and two users with equally many running leases keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Protocol

HALF_LIFE_S = 3600.0
#: Seconds that are added to each running lease: of two users without device time, the one with fewer devices is first.
AHEAD_S = 1.0
_RATE = log(2) / HALF_LIFE_S
_REBASE_HALVES = 300  # half-lives after which the clock starts anew: a double holds 1,023 doublings
_NEGLIGIBLE_S = 1.0  # of device time
_MANY = 1024  # users kept before those with negligible device time are dropped


class Order(Protocol):
    """An order of users by their shares."""

    def reorder(self, share: Share) -> None:
        """A share has changed."""


@dataclass(slots=True)
class Share:
    """One user's device time."""

    user: str
    base: float = 0.0
    running: int = 0
    waiting: int = 0
    #: The bands in which it is sorted in. A band is dropped with its first `reorder` and comes back when its order is
    #: read again. So each lease of a user with requests for thousands of keys costs little.
    sorted_in: dict[tuple[object, float], Order] = field(default_factory=dict, compare=False)


@dataclass
class Shares:
    """All users' device time."""

    zero: float  # when the clock started
    users: dict[str, Share] = field(default_factory=dict)
    many: int = _MANY

    def clock(self, at: float) -> float:
        """``x`` at a time: the share of a user who has always had one device, on the scale without decay."""
        if at - self.zero > _REBASE_HALVES * HALF_LIFE_S:
            self._rebase(at)
        x: float = 2.0 ** ((at - self.zero) / HALF_LIFE_S) / _RATE
        return x

    def of(self, user: str) -> Share:
        """A user's share, a new one if there is none."""
        return self.users.get(user) or self.users.setdefault(user, Share(user))

    def waits(self, at: float, user: str, devices: int = 1) -> None:
        """Count the devices of a request of the user's that waits."""
        if len(self.users) > self.many:
            self._tidy(at)
        self.of(user).waiting += devices

    def waits_no_more(self, user: str, devices: int = 1) -> None:
        """Count the end of a request's wait."""
        share = self.users[user]
        share.waiting -= devices
        self._forget_if_nothing(share)

    def begin(self, at: float, user: str) -> None:
        """Count a lease of the user's that begins."""
        if len(self.users) > self.many:
            self._tidy(at)
        share, x = self.users.get(user) or self.of(user), self.clock(at)  # `clock` may change every base
        share.base -= x
        share.running += 1
        if share.sorted_in:
            _reorder(share)

    def end(self, at: float, user: str) -> None:
        """Count the end of a lease of the user's."""
        if user in self.users:
            self._change(self.users[user], self.clock(at), -1)

    def remember(self, user: str, since: float, until: float) -> None:
        """Count a lease of an earlier run."""
        self._change(self.of(user), self.clock(until) - self.clock(since), 0)

    def _change(self, share: Share, base: float, running: int) -> None:
        share.base += base
        share.running += running
        if share.sorted_in:
            _reorder(share)
        if not share.base:
            self._forget_if_nothing(share)

    def _forget_if_nothing(self, share: Share) -> None:
        """Drop a user without requests, leases and device time; a lease of no duration leaves one."""
        if not (share.waiting or share.running or share.base):
            del self.users[share.user]

    def held(self, user: str) -> int:
        """The devices that a user has, or waits for."""
        share = self.users.get(user)
        return 0 if share is None else share.running + share.waiting

    def spent(self, at: float, user: str) -> float:
        """A user's share in device seconds, decayed."""
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
    """The weight of each running lease at ``x`` when users are compared."""
    return x * (1 + AHEAD_S * _RATE)
