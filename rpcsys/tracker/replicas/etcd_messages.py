"""What is said to etcd's JSON gateway and what it answers, without a socket (etcd's ``rpc.proto``, 3.4 to 3.6).

Keys and values are in Base64. A whole number of 64 bits is text in answers, and a field of its default value is left
out.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from rpcsys.errors import ProtocolError
from rpcsys.tracker.replicas.engine import (
    MAX_ENTRIES,
    MAX_PIECES,
    MAX_VALUE,
    EngineRefused,
    Leader,
    Look,
    ReplicaStatus,
    Snapshot,
)
from rpcsys.wire import checks
from rpcsys.wire.checks import Check, shown
from rpcsys.wire.tracker import decode_json

Operation = dict[str, Any]
Made = TypeVar("Made")

#: Replicas that are read.
MAX_REPLICAS = 64

_REPLICA = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUMBER = re.compile(r"[0-9]{16}")
_TOKEN = re.compile(r"[!-~]{1,4096}")
_SIZE, _QUOTA = (
    re.compile(rb"^%b ([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+[0-9]{2})?)$" % name, re.MULTILINE)
    for name in (b"etcd_mvcc_db_total_size_in_bytes", b"etcd_server_quota_backend_bytes")
)
_INTEGER = re.compile(r"-?[0-9]{1,19}")

_COUNT = checks.integer(0, checks.MAX_ID)
_ADDRESS = checks.place(checks.text)
_ADDRESSED: Mapping[str, Check] = {"address": _ADDRESS, "http_port": checks.port, "version": checks.text}
_LEADER: Mapping[str, Check] = {**_ADDRESSED, "replica": checks.text, "format": _COUNT}
_MEMBER: Mapping[str, Check] = {
    **_ADDRESSED, "role": checks.text, "through": _COUNT, "since": checks.number, "whole": checks.flag,
}  # fmt: skip
_SNAPSHOT: Mapping[str, Check] = {
    "through": _COUNT,
    "pieces": checks.integer(0, MAX_PIECES),
    **dict.fromkeys(("epoch", "arrivals"), _COUNT),
    "at": checks.number,
}

# ------------------------------------------------------------------ keys


class Keys:
    """The keys of a lab."""

    def __init__(self, lab: str) -> None:
        prefix = f"/rpcsys/{lab}/"
        self.leader, self.config = f"{prefix}leader", f"{prefix}config"
        self.snapshot, self.pieces = f"{prefix}snapshot", f"{prefix}snapshot/"
        self.journal, self.replicas = f"{prefix}journal/", f"{prefix}replicas/"

    def entry(self, number: int) -> str:
        """An entry of the journal."""
        return f"{self.journal}{number:016d}"

    def piece(self, through: int, index: int) -> str:
        """A piece of the snapshot that goes up to an entry."""
        return f"{self.pieces}{through:016d}/{index:04d}"

    def replica(self, replica_id: str) -> str:
        """What a replica says of itself. Raises `ValueError` for an ID that no key can have."""
        if not _REPLICA.fullmatch(replica_id):
            raise ValueError(f"{replica_id!r} is no ID of a replica")
        return self.replicas + replica_id


def behind(prefix: str) -> str:
    """The first key that is behind all that begin with ``prefix``, which ends with "/"."""
    return prefix[:-1] + "0"


# ------------------------------------------------------------------ requests


def put(key: str, value: bytes, lease: int = 0) -> Operation:
    """Write a value; it goes when its lease does."""
    return {"request_put": {"key": _text(key), "value": base64.b64encode(value).decode(), "lease": lease}}


def get(key: str, end: str = "", limit: int = 0) -> Operation:
    """Read a key, or all from ``key`` to ``end``, which is left out."""
    return {"request_range": {**_range(key, end), "limit": limit}}


def delete(key: str, end: str = "") -> Operation:
    """Delete a key, or all from ``key`` to ``end``, which is left out."""
    return {"request_delete_range": _range(key, end)}


def written_at(key: str, revision: int) -> Operation:
    """The condition that a key was last written at a revision; 0: that it does not exist."""
    return {"key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def transaction(
    conditions: Sequence[Operation], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
) -> dict[str, Any]:
    """All of ``then`` at once if all conditions hold."""
    return {"compare": [*conditions], "success": [*then], "failure": [*otherwise]}


def to_value(plain: Mapping[str, Any]) -> bytes:
    """A JSON object as a value."""
    return json.dumps(plain, separators=(",", ":")).encode()


def _range(key: str, end: str) -> dict[str, str]:
    return {"key": _text(key), "range_end": _text(end)} if end else {"key": _text(key)}


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


# ------------------------------------------------------------------ answers


class Fault(Enum):
    """What an answer that is no success asks for."""

    ELSEWHERE = auto()  # another member may do it: this one has no leader, say
    FULL = auto()  # the quota is used up
    NO_LEASE = auto()  # the lease is over
    TOKEN = auto()  # a new token is needed
    REFUSED = auto()  # nobody does it
    NO_ETCD = auto()  # another program answers


#: By gRPC's status code. What is not here is refused.
_FAULTS = {
    **dict.fromkeys((1, 2, 4, 8, 10, 13, 14), Fault.ELSEWHERE),  # canceled … resource exhausted … unavailable
    5: Fault.NO_ETCD,  # not found: the path
    16: Fault.TOKEN,  # unauthenticated
}
#: Parts of texts that say more than the code.
_TEXTS = {"space exceeded": Fault.FULL, "lease not found": Fault.NO_LEASE, "auth store is old": Fault.TOKEN}


class EtcdAnswer(NamedTuple):
    """``fault``: None for a success. ``text``: what the fault is. ``body``: of a success."""

    fault: Fault | None
    text: str
    body: dict[str, Any]


class KeyValue(NamedTuple):
    """A key and its value. ``revision``: at which it was written."""

    key: str
    value: bytes
    revision: int
    lease: int


class Found(NamedTuple):
    """What a range has; ``more``: beyond the limit."""

    pairs: list[KeyValue]
    more: bool


class EtcdOutcome(NamedTuple):
    """Of a transaction: whether its conditions held, and what its ranges have found, in order."""

    held: bool
    found: list[Found]


def read_answer(status: int, data: bytes) -> EtcdAnswer:
    """What a member says. Never raises."""
    try:
        body = _object(decode_json(data), "the answer")
    except ProtocolError as problem:
        fault = Fault.ELSEWHERE if status >= 500 else Fault.NO_ETCD  # a proxy whose member is away
        return EtcdAnswer(fault, f"HTTP status {status}, {problem}", {})
    error = body.get("error")
    if status == 200 and error is None:
        return EtcdAnswer(None, "", body)
    told = error if isinstance(error, dict) else body  # in a stream it is inside
    code, text = told.get("code", told.get("grpc_code")), told.get("message", error)
    if type(code) is not int or type(text) is not str:
        return EtcdAnswer(Fault.ELSEWHERE if status >= 500 else Fault.NO_ETCD, f"HTTP status {status}", {})
    for part, fault in _TEXTS.items():
        if part in text:
            return EtcdAnswer(fault, text, {})
    return EtcdAnswer(_FAULTS.get(code, Fault.REFUSED), text[: checks.MAX_TEXT], {})


def integer(body: Mapping[str, Any], name: str) -> int:
    """A field of 64 bits; 0 where it is left out. Raises `ProtocolError`."""
    value = body.get(name, 0)
    if type(value) is int and abs(value) < 1 << 63:
        return value
    if type(value) is not str or not _INTEGER.fullmatch(value):
        raise checks.wrong(name, "a whole number", value)
    return int(value)


def inside(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in an answer; an empty one where it is left out. Raises `ProtocolError`."""
    return _object(body.get(name, {}), name)


def read_outcome(asked: Mapping[str, Any], body: Mapping[str, Any]) -> EtcdOutcome:
    """What the transaction ``asked`` did. Raises `ProtocolError`."""
    held = checks.flag(body.get("succeeded", False), "succeeded")
    if not held and not asked["compare"]:
        raise ProtocolError("a transaction without conditions has failed")
    operations = asked["success" if held else "failure"]
    responses = [_object(row, "a response") for row in _list(body, "responses")]
    if len(responses) != len(operations):
        raise ProtocolError(f"{len(responses)} responses to {len(operations)} operations")
    both = zip(operations, responses, strict=True)
    return EtcdOutcome(held, [_found(inside(row, "response_range")) for one, row in both if "request_range" in one])


def read_lifetime(body: Mapping[str, Any]) -> int:
    """For how many seconds a lease was renewed; 0: it is over. Raises `ProtocolError`."""
    return max(0, integer(inside(body, "result"), "TTL"))


def read_cluster(body: Mapping[str, Any]) -> str:
    """Which etcd a member belongs to; empty where it does not say it. Raises `ProtocolError`."""
    return checks.text(inside(body, "header").get("cluster_id", ""), "cluster_id")


def read_sizes(metrics: bytes) -> tuple[int, int]:
    """Bytes of the data, and the quota, in a member's metrics (Prometheus's text format); 0 for what is not there."""
    found = [pattern.search(metrics) for pattern in (_SIZE, _QUOTA)]
    size, quota = (int(float(each[1])) if each else 0 for each in found)
    return size, quota


def read_token(body: Mapping[str, Any]) -> str:
    """A user's token, fit for a field of a head. Raises `ProtocolError`."""
    token = body.get("token")
    if type(token) is not str or not _TOKEN.fullmatch(token):
        raise ProtocolError("no token")  # it may be nearly one
    return token


def _found(body: Mapping[str, Any]) -> Found:
    pairs = [_pair(_object(row, "a pair")) for row in _list(body, "kvs")]
    return Found(pairs, checks.flag(body.get("more", False), "more"))


def _pair(body: Mapping[str, Any]) -> KeyValue:
    key = _bytes(body, "key").decode("utf-8", "backslashreplace")
    return KeyValue(key, _bytes(body, "value"), integer(body, "mod_revision"), integer(body, "lease"))


def _bytes(body: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(body.get(name, ""), validate=True)
    except (ValueError, TypeError):
        raise checks.wrong(name, "Base64", body[name]) from None


def _object(value: Any, name: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise checks.wrong(name, "an object", value)
    return value


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name, [])
    if type(value) is not list:
        raise checks.wrong(name, "a list", value)
    return value


# ------------------------------------------------------------------ a lab's data


def look(keys: Keys, after: int) -> dict[str, Any]:
    """The transaction that reads what `read_look` takes."""
    return transaction(
        (),
        [
            *(get(key) for key in (keys.leader, keys.snapshot, keys.config)),
            get(keys.replicas, behind(keys.replicas), MAX_REPLICAS),
            get(keys.entry(after + 1), behind(keys.journal), MAX_ENTRIES),
        ],
    )


def read_look(keys: Keys, after: int, outcome: EtcdOutcome) -> Look:
    """The engine at one moment. Raises `EngineRefused`."""
    leader, snapshot, config = map(only, outcome.found[:3])
    replicas, journal = outcome.found[3:]
    entries, ends = _entries(keys, after, journal.pairs)
    return Look(
        leader=None if leader is None else _made(Leader, _LEADER, leader),
        term=0 if leader is None else leader.revision,
        entries=entries,
        snapshot=None if snapshot is None else read_snapshot(snapshot),
        config=None if config is None else _json(config),
        more=journal.more and not ends,
        replicas={_replica_id(keys, pair): _made(ReplicaStatus, _MEMBER, pair) for pair in replicas.pairs},
    )


def read_snapshot(pair: KeyValue) -> Snapshot:
    """Where a snapshot is. Raises `EngineRefused`."""
    return _made(Snapshot, _SNAPSHOT, pair)


def only(found: Found) -> KeyValue | None:
    """The pair of a single key."""
    return found.pairs[0] if found.pairs else None


def sized(pair: KeyValue) -> bytes:
    """A value of an allowed size. Raises `EngineRefused`."""
    if len(pair.value) > MAX_VALUE:
        raise strange(pair.key, f"{len(pair.value)} bytes, and at most {MAX_VALUE} are allowed")
    return pair.value


def strange(key: str, why: str) -> EngineRefused:
    """The error for a key that no tracker has written."""
    return EngineRefused(
        f"{shown(key)} in etcd is no tracker's ({why}): another program writes there; "
        "give the lab another name at the end of --replicate"
    )


def _entries(keys: Keys, after: int, pairs: Sequence[KeyValue]) -> tuple[list[tuple[int, bytes]], bool]:
    """The entries behind ``after`` up to the first gap, and whether there is one."""
    entries: list[tuple[int, bytes]] = []
    for number, pair in enumerate(pairs, after + 1):
        digits = pair.key.removeprefix(keys.journal)
        if not _NUMBER.fullmatch(digits):
            raise strange(pair.key, "no number of an entry")
        if int(digits) != number:
            return entries, True
        entries.append((number, sized(pair)))
    return entries, False


def _replica_id(keys: Keys, pair: KeyValue) -> str:
    replica_id = pair.key.removeprefix(keys.replicas)
    if not _REPLICA.fullmatch(replica_id):
        raise strange(pair.key, "no ID of a replica")
    return replica_id


def _made(kind: type[Made], fields: Mapping[str, Check], pair: KeyValue) -> Made:
    """What a value says. Fields that a newer tracker has added are left out."""
    value = _json(pair)
    try:
        return kind(**checks.record(**fields)({name: value[name] for name in fields if name in value}, "it"))
    except ProtocolError as error:
        raise strange(pair.key, str(error)) from None


def _json(pair: KeyValue) -> dict[str, Any]:
    try:
        return _object(decode_json(sized(pair)), "it")
    except ProtocolError as error:
        raise strange(pair.key, str(error)) from None
