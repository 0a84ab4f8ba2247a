"""The match keys on offer, found by what their devices are."""

from __future__ import annotations

from collections import OrderedDict

from rpcsys.tracker.entities import Offer
from rpcsys.tracker.labels import KEY, Pair, Wants


class Pool:
    """Match keys that are free, found by every fact of their devices; each index in the order of offering."""

    def __init__(self) -> None:
        self.by_fact: dict[Pair, OrderedDict[tuple[int, str], Offer]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pool) and self.by_fact == other.by_fact

    __hash__ = None  # type: ignore[assignment]

    def add(self, offer: Offer) -> None:
        """A match key is free."""
        offer.free = True
        for pair in offer.facts.pairs:
            index = self.by_fact.get(pair)
            if index is None:
                index = self.by_fact[pair] = OrderedDict()
            index[offer.conn, offer.match_key] = offer

    def remove(self, offer: Offer) -> None:
        """It is not, any more."""
        offer.free = False
        for pair in offer.facts.pairs:
            index = self.by_fact[pair]
            del index[offer.conn, offer.match_key]
            if not index:
                del self.by_fact[pair]

    def count(self, key: str) -> int:
        """How many match keys of a key are free."""
        return len(self.by_fact.get((KEY, key), ()))

    def find(self, wants: Wants) -> Offer | None:
        """The one of those that fit which was offered first."""
        rarest: OrderedDict[tuple[int, str], Offer] | None = None
        for pair in wants.exact:
            index = self.by_fact.get(pair)
            if index is None:
                return None
            if rarest is None or len(index) < len(rarest):
                rarest = index
        if rarest is None:
            return None
        if wants.bare:  # most are, and then all that is there fits
            return next(iter(rarest.values()))
        return next((offer for offer in rarest.values() if wants.fit(offer.facts)), None)
