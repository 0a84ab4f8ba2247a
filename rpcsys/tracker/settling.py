"""What of the last run has not come back yet after a restart, and the offers that are reserved for it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpcsys.tracker.labels import DeviceFacts, Wants
from rpcsys.tracker.matching import MAX_BESIDE, OfferIndex, WantsIndex


@dataclass
class Settling:
    """Servers and tickets that are absent. An offer that fits an absent ticket is reserved."""

    servers: dict[str, None] = field(default_factory=dict)
    arrival: int = 0  # the last arrival in the last run's history
    reserved: OfferIndex = field(default_factory=OfferIndex)
    _tickets: dict[str, Wants] = field(default_factory=dict)
    _counts: dict[Wants, int] = field(default_factory=dict)  # absent tickets
    _index: WantsIndex[Wants] = field(default_factory=WantsIndex, compare=False)

    @property
    def over(self) -> bool:
        """Whether all are back."""
        return not (self.servers or self._tickets)

    @property
    def absent(self) -> list[str]:
        """The tickets that are not back."""
        return [*self._tickets]

    def wait_for(self, ticket: str, wants: Wants) -> None:
        """Reserve what fits a ticket. Of more than `MAX_BESIDE` sets of labels beside each other, the first count."""
        if wants not in self._counts:
            if len(self._index.under(self._index.anchor(wants))) >= MAX_BESIDE:
                return
            self._index.add(wants, wants)
        self._tickets[ticket] = wants
        self._counts[wants] = self._counts.get(wants, 0) + 1

    def is_back(self, ticket: str) -> Wants | None:
        """Wait for a ticket no more; return its wants if no other absent ticket has them."""
        wants = self._tickets.pop(ticket, None)
        if wants is None:
            return None
        self._counts[wants] -= 1
        if self._counts[wants]:
            return None
        del self._counts[wants]
        self._index.remove(wants)
        return wants

    def reserves(self, facts: DeviceFacts) -> bool:
        """Whether an offer with these facts is reserved."""
        return bool(self._tickets) and bool(self._index.fitting(facts))
