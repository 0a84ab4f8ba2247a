"""The lab's page: totals, keys with their queues, boards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.errors import printable
from rpcsys.tracker.board_speed import SLOW
from rpcsys.tracker.transitions import AWAY, INFERRED, OURS
from rpcsys.tracker.views import eta, rows, speeds
from rpcsys.tracker.views.fragments import Fragment
from rpcsys.wire.labels import OPERATORS, VERSIONS

if TYPE_CHECKING:
    from rpcsys.tracker.entities import LeaseRecord, Peer, Queue, WaitingRequest
    from rpcsys.tracker.records import Records

MAX_BOARDS, MAX_KEYS = 3000, 200  # listed at most; the others are counted
MAX_WAITING = 5  # of a key: its own page has more
GONE = "gone"  # the state of a board that is not here
_LEFT = "its connection ended; its sessions may go on"
_VERSIONS = frozenset(VERSIONS)


def lab_fragments(records: Records, at: float) -> Iterator[Fragment]:
    """All of the lab's page. It may be read in slices: of a board that leaves meanwhile, no row is made."""
    yield Fragment("notices", "notices", "notices.html", _notices(records))
    yield Fragment("totals", "totals", "totals.html", totals(records))
    used = (queue for queue in records.queues.values() if queue.servers or queue.waiting or queue.leases)
    queues = sorted(used, key=lambda queue: queue.key)
    yield head("keys", "Keys", len(queues), len(queues) - MAX_KEYS, "" if queues else NOBODY)
    for queue in queues[:MAX_KEYS]:
        yield Fragment("keys", queue.key, "key_card.html", _card(records, at, queue))
    peers = [peer for peer in records.peers.values() if peer.name]
    yield from boards(records, at, peers, gone(records, at), MAX_BOARDS)


NOBODY = "No server has registered, and nobody waits."


def head(group: str, word: str, count: int, more: int, none: str) -> Fragment:
    """The heading of a list: its word, how many there are, and how many of them are not listed."""
    data = {"word": word, "count": count, "more": max(0, more), "none": none}
    return Fragment(f"{group}-head", group, "head.html", data)


def _notices(records: Records) -> dict[str, Any]:
    replicas, sites = records.replicas_text, records.sites_text
    return {
        "settling": records.settling is not None,
        "lines": [line for line in (replicas, sites) if line],
        "bad": " behind" in replicas or " missing" in replicas or " (cut off)" in sites,
    }


def totals(records: Records) -> dict[str, int]:
    """Slots in all, free, leased and out of use (those not leased of a server that is not offered), and requests."""
    found = {"slots": 0, "free": 0, "leased": 0, "out_of_use": 0, "waiting": len(records.waiting)}
    for peer in records.peers.values():
        if peer.serves:
            slots, leased = peer.slots, len(peer.serving)
            found["slots"] += slots
            found["leased"] += leased
            found["free"] += sum(offer.free for offer in peer.offers.values())
            condition = records.condition(peer)
            if condition is not None and not condition.open:
                found["out_of_use"] += max(0, slots - leased)
    return found


def counts(records: Records, queue: Queue) -> dict[str, Any]:
    """A key's slots and requests."""
    return {
        "key": queue.key,
        "slots": sum(records.peers[conn].slots for conn in queue.servers),
        "free": records.free(queue.key),
        "leased": len(queue.leases),
        "waiting": len(queue.waiting),
    }


def _card(records: Records, at: float, queue: Queue) -> dict[str, Any]:
    first = islice(eta.in_order(records, at, queue), MAX_WAITING) if queue.waiting else ()
    return {**counts(records, queue), "queue": [waiting(request) for request in first]}


def waiting(request: WaitingRequest) -> dict[str, Any]:
    """A waiting request: who, since when, and what it wants beside its key."""
    labels = request.wants.labels
    wants = [name + ("" if value.startswith(OPERATORS) else "=") + value for name, value in labels.items()]
    details = [
        f"{request.count} at once" if request.count > 1 else "",
        " ".join(wants),
        f"priority {request.priority:g}" if request.priority != 1 else "",
        request.parked,
    ]
    return {
        "who": who(request.user, request.address),
        "since": request.since,
        "details": printable("; ".join(filter(None, details))),
    }


def who(user: str, address: str) -> str:
    """A user for people."""
    return user if user == address or not address else f"{user} @ {address}"


# Boards.


def gone(records: Records, at: float) -> dict[str, dict[str, Any]]:
    """The rows of boards that are not here: those that have left, and those whose leases go on. By name."""
    found = {name: _gone_row(name, left.key, left.since, left.reason) for name, left in records.gone_lately(at).items()}
    for lease in records.leases.values():
        if lease.state in AWAY:
            row = found.setdefault(lease.server_name, _gone_row(lease.server_name, lease.key, None, ""))
            row["reason"] = _LEFT
            row["leases"].append(lease_cell(lease))
    return found


def _gone_row(name: str, key: str, since: float | None, reason: str) -> dict[str, Any]:
    return {
        "name": name, "keys": (key,), "state": GONE, "reason": reason, "slow": "", "trace": None, "since": since,
        "until": None, "facts": "", "leases": [],
    }  # fmt: skip


def boards(
    records: Records, at: float, peers: Iterable[Peer], left: dict[str, dict[str, Any]], most: int
) -> Iterator[Fragment]:
    """The heading of a list of boards, and its rows by key and name: of those here, and of those that have ``left``."""
    places: list[tuple[tuple[tuple[str, ...], str], Peer | dict[str, Any]]]
    places = [((tuple(peer.serves), peer.name), peer) for peer in peers]
    here = len(places)
    places += [((row["keys"], name), row) for name, row in left.items()]
    places.sort(key=lambda place: place[0])
    yield head("boards", "Boards", here, len(places) - most, "" if places else "No board is here.")
    for (_, name), board in places[:most]:
        if isinstance(board, dict):
            yield Fragment("boards", f"{GONE}\n{name}", "board_row.html", board)  # no name has more than one line
        elif board.name:  # it has not left meanwhile
            yield Fragment("boards", name, "board_row.html", board_row(records, at, board))


def board_row(records: Records, at: float, peer: Peer) -> dict[str, Any]:
    """The row of a board that is here."""
    row = rows.server_on_page(records, at, peer)
    speed = records.speeds.get(peer.name)
    slow = speed is not None and speed.state is SLOW
    return {
        "name": peer.name,
        "keys": tuple(peer.serves),
        "state": row["state"],
        "reason": row["reason"],
        "slow": row["slow"] if slow else "",
        "trace": trace(speeds.of_board(speed)) if slow and speed is not None else None,
        "since": row["since"],
        "until": row["until"],
        "facts": _facts(row),
        "leases": [lease_cell(lease) for lease in peer.serving.values()],
    }


def trace(speed: dict[str, Any]) -> dict[str, Any] | None:
    """What a canary's picture shows; None if there is nothing yet."""
    return {"points": speed["points"], "seconds": speed["seconds"]} if speed["points"] else None


def _facts(row: dict[str, Any]) -> str:
    labels = [f"{name}={value}" for name, value in row["labels"].items() if name not in _VERSIONS]
    devices = [f"device={name}" for name in row["devices"]] if len(row["devices"]) > 1 else []
    slots = [f"{row['slots']} slots"] if row["slots"] > 1 else []
    return " ".join([row["address"], *slots, *labels, *devices])


def lease_cell(lease: LeaseRecord) -> dict[str, Any]:
    """A running lease in a table."""
    note = "inferred" if lease.how == INFERRED else "opening" if lease.how == OURS and not lease.opened else ""
    return {
        "lease": lease.lease,
        "who": who(lease.user, lease.address),
        "note": note,
        "since": lease.since,
        "until": lease.until,
    }
