"""What requests that wait make the tracker hold, in bytes: in all, and for each address."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpcsys.tracker.entities import Waiting
    from rpcsys.tracker.labels import Wants

MAX_BYTES = 512 << 20
MAX_BYTES_OF_ADDRESS = 160 << 20
"""About what requests that wait may take: a hundred thousand plain ones, and a third of that from one address."""

REQUEST_BYTES = 5 << 10
"""Of a request with its line, its queue and its deadlines, without what its client calls things. Measured."""

_CHARACTER_BYTES = 8
"""Of text, in UTF-32 where it is not Latin, and kept twice."""


def size_of(wants: Wants) -> int:
    """About how many bytes a request for this takes."""
    return REQUEST_BYTES + _CHARACTER_BYTES * wants.characters


class Held:
    """The sums. Two are equal when they hold the same."""

    def __init__(self) -> None:
        self.bytes = 0
        self.by_address: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def full(self, address: str, wants: Wants) -> str:
        """Why no further request may wait, in a sentence for its client; "" if it may."""
        size = size_of(wants)
        if self.bytes + size <= MAX_BYTES_OF_ADDRESS:
            return ""
        if self.by_address.get(address, 0) + size > MAX_BYTES_OF_ADDRESS:
            return f"requests of {address} that wait take {MAX_BYTES_OF_ADDRESS >> 20} MiB already: cancel some"
        if self.bytes + size > MAX_BYTES:
            return f"requests that wait take {MAX_BYTES >> 20} MiB already: try again later"
        return ""

    def add(self, request: Waiting) -> None:
        """A request waits."""
        size, address = size_of(request.wants), request.address
        self.bytes += size
        self.by_address[address] = self.by_address.get(address, 0) + size

    def remove(self, request: Waiting) -> None:
        """A request waits no more."""
        size, address = size_of(request.wants), request.address
        self.bytes -= size
        left = self.by_address[address] - size
        if left:
            self.by_address[address] = left
        else:
            del self.by_address[address]
