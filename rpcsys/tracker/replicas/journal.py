"""The journal's entries and snapshots as bytes, and what they say together: the fold.

An entry is a batch of the leader's records. Each replica folds the same entries in the same order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.tracker import tables
from rpcsys.tracker.batch import LiveState, bytes_of
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas.engine import MAX_VALUE, Snapshot
from rpcsys.tracker.tables import Position
from rpcsys.wire import checks

#: The format of entries and snapshots. Unknown fields of a record are kept, so they need no new one.
FORMAT = 1
#: The most bytes of an entry's JSON.
MAX_TEXT = 4 << 20
_LEVEL = 1  # of zlib: 330 bytes of a record become 45, in a third of the time of level 6


def pack(records: Sequence[HistoryEntry]) -> tuple[bytes, int]:
    """The bytes of an entry with the first of the records, as many as fit, and how many these are; at least one."""
    count = _fitting(records)
    data = _packed(records[:count])
    while len(data) > MAX_VALUE and count > 1:
        count //= 2
        data = _packed(records[:count])
    return data, count


def _fitting(records: Sequence[HistoryEntry]) -> int:
    size = 0
    for count, record in enumerate(records):
        size += bytes_of(record)
        if size > MAX_TEXT // 2 and count:
            return count
    return len(records)


def unpack(data: bytes) -> list[HistoryEntry]:
    """The records of an entry. Raises `ProtocolError`: it is damaged, or of a later format."""
    found = _unpacked(data)
    if not isinstance(found, list):
        raise ProtocolError("an entry of the journal is no list of records")
    return [_record(item) for item in found]


def pieces(records: Iterable[HistoryEntry]) -> Iterator[bytes]:
    """The bytes of a snapshot, in pieces of at most `MAX_VALUE` bytes."""
    left = list(records)
    while left:
        data, count = pack(left)
        yield data
        del left[:count]


def id_in(config: Mapping[str, Any] | None) -> str:
    """The ID of the journal, by what the engine's ``config`` says; empty where it says none."""
    found = (config or {}).get("journal")
    return found if type(found) is str and len(found) <= checks.MAX_TEXT else ""


def _packed(records: Sequence[HistoryEntry]) -> bytes:
    plain = [[record.at, record.kind, record.details] for record in records]
    text = json.dumps({"v": FORMAT, "records": plain}, separators=(",", ":"))
    return zlib.compress(text.encode(), _LEVEL)


def _unpacked(data: bytes) -> Any:
    expander = zlib.decompressobj()
    try:
        text = expander.decompress(data, MAX_TEXT)
        if not expander.eof:
            raise ProtocolError(f"an entry of the journal has more than {MAX_TEXT} bytes, or lacks its end")
        found = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise ProtocolError(f"an entry of the journal is damaged ({error})") from None
    if not isinstance(found, dict) or type(found.get("v")) is not int:
        raise ProtocolError("an entry of the journal has no version")
    if found["v"] > FORMAT:
        raise ProtocolError(f"the journal has version {found['v']}, and this tracker reads {FORMAT}: update it")
    return found.get("records")


def _record(item: Any) -> HistoryEntry:
    if type(item) is not list or len(item) != 3:
        raise ProtocolError("a record of the journal has the wrong form")
    at, kind, details = item
    if type(kind) is not str or type(details) is not dict:
        raise ProtocolError("a record of the journal has the wrong form")
    record = HistoryEntry(checks.number(at, "at"), kind, details)
    if not tables.is_record(record):
        raise ProtocolError(f"a record {kind!r} of the journal lacks what it needs")
    return record


@dataclass
class Fold:
    """What the journal says up to entry ``through``: the records that hold, and the highest numbers given out.

    ``journal``: its ID, by which a replica knows that its entries are the engine's.
    """

    through: int = 0
    at: float = 0.0  # the latest time in it, seconds since 1970
    epoch: int = 0
    arrivals: int = 0
    live: LiveState = field(default_factory=LiveState)
    journal: str = ""

    @property
    def position(self) -> Position:
        """How far it goes."""
        return Position(self.through, self.at, self.epoch, self.arrivals, self.journal)

    def count(self, records: Iterable[HistoryEntry], through: int) -> None:
        """Note the highest numbers of an entry's records. Whoever keeps ``live`` folds them there."""
        self.through = through
        for record in records:
            self.at = max(self.at, record.at)
            details = record.details
            self.epoch = max(self.epoch, details.get("epoch", 0))
            self.arrivals = max(self.arrivals, details.get("arrival", 0))

    def fold(self, records: Sequence[HistoryEntry], through: int) -> None:
        """Apply an entry."""
        self.count(records, through)
        for record in records:
            self.live.fold(record)

    def snapshot(self) -> tuple[Snapshot, list[bytes]]:
        """A snapshot of it, and its pieces."""
        cut = list(pieces(self.live.values()))
        return Snapshot(self.through, len(cut), self.epoch, self.arrivals, self.at), cut

    @classmethod
    def of(cls, snapshot: Snapshot, cut: Iterable[bytes], journal: str = "") -> Fold:
        """What a snapshot says. Raises `ProtocolError`: it is damaged."""
        live = LiveState(record for piece in cut for record in unpack(piece))
        return cls(snapshot.through, snapshot.at, snapshot.epoch, snapshot.arrivals, live, journal)
