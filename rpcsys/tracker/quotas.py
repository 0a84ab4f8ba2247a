"""Limits of the memory for waiting requests, and for the places that tickets keep."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpcsys.tracker.entities import QueuePlace, Sender, WaitingRequest
    from rpcsys.tracker.labels import Wants

#: Bytes of waiting requests: about a hundred thousand plain ones, and a third of that from one address.
MAX_BYTES = 512 << 20
MAX_BYTES_OF_ADDRESS = 160 << 20
#: Places kept for clients without a connection. Beyond, the oldest place is dropped.
MAX_PLACES = 100_000
MAX_PLACES_BYTES = 160 << 20
#: A request with its queue and its deadlines, without the texts of its wants. Measured.
REQUEST_BYTES = 5 << 10
_CHARACTER_BYTES = 8  # text that is not Latin is in UTF-32, and is kept twice


def size_of(wants: Wants) -> int:
    """About how many bytes a request with these wants takes."""
    return REQUEST_BYTES + _CHARACTER_BYTES * wants.characters


@dataclass
class WaitingMemory:
    """The bytes of waiting requests, in all and of each address."""

    bytes: int = 0
    by_address: dict[str, int] = field(default_factory=dict)

    def full(self, address: str, wants: Wants) -> str:
        """Why a further request cannot wait, as a sentence for its client; "" if it can."""
        size = size_of(wants)
        if self.bytes + size <= MAX_BYTES_OF_ADDRESS:
            return ""
        if self.by_address.get(address, 0) + size > MAX_BYTES_OF_ADDRESS:
            return f"requests of {address} that wait take {MAX_BYTES_OF_ADDRESS >> 20} MiB already: cancel some"
        if self.bytes + size > MAX_BYTES:
            return f"requests that wait take {MAX_BYTES >> 20} MiB already: try again later"
        return ""

    def count(self, request: WaitingRequest, number: int) -> None:
        """Add (``number`` 1) or subtract (-1) a request."""
        size, address = number * size_of(request.wants), request.address
        self.bytes += size
        self.by_address[address] = self.by_address.get(address, 0) + size
        if not self.by_address[address]:
            del self.by_address[address]


class Places(dict[str, "QueuePlace"]):
    """The places in the queue that tickets keep, the oldest first; ``bytes`` is their size.

    ``of_senders``: the places of TVM's requests, whose clients know no ticket, by ticket.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.of_senders: dict[Sender, OrderedDict[str, QueuePlace]] = {}

    def has_room(self, place: QueuePlace) -> bool:
        """Whether another place can be kept."""
        return len(self) < MAX_PLACES and self.bytes + size_of(place.wants) <= MAX_PLACES_BYTES

    def keep(self, place: QueuePlace) -> None:
        """Keep a place; it replaces an earlier one of its ticket."""
        ticket = place.ticket
        if ticket in self:
            self.take(ticket)
        self.bytes += size_of(place.wants)
        self[ticket] = place
        if place.sender is not None:
            self.of_senders.setdefault(place.sender, OrderedDict())[ticket] = place

    def take(self, ticket: str) -> QueuePlace:
        """Remove and return a ticket's place."""
        place = self.pop(ticket)
        self.bytes -= size_of(place.wants)
        if place.sender is not None:
            places = self.of_senders[place.sender]
            del places[ticket]
            if not places:
                del self.of_senders[place.sender]
        return place

    def first_of(self, sender: Sender) -> QueuePlace | None:
        """A sender's first place, None if it has none."""
        places = self.of_senders.get(sender)
        return None if places is None else next(iter(places.values()))
