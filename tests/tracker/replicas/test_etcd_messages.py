from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.tracker.replicas import etcd_messages as messages
from rpcsys.tracker.replicas.engine import MAX_PIECES, MAX_VALUE, EngineRefused, Leader, ReplicaStatus, Snapshot
from rpcsys.tracker.replicas.etcd_messages import EtcdOutcome, Fault, Found, Keys, KeyValue

KEYS = Keys("lab")
LEADER = Leader(("lab-1", 9190), 8080, "1.2", "id-a")
REPLICA = ReplicaStatus(("lab-1", 9190), 0, "1.2", "follower", 3, 1.5)
SNAPSHOT = Snapshot(2, 1, 7, 9, 1.5)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
base64s = st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode()) | plain
numbers = st.integers().map(str) | plain
pairs = st.fixed_dictionaries(
    {}, optional={"key": base64s, "value": base64s, "mod_revision": numbers, "lease": numbers}
)
ranges = st.fixed_dictionaries({}, optional={"kvs": st.lists(pairs | plain, max_size=3) | plain, "more": plain})
responses = st.fixed_dictionaries({}, optional={"response_range": ranges | plain})
answers = st.fixed_dictionaries(
    {}, optional={"succeeded": st.booleans() | plain, "responses": st.lists(responses, min_size=4, max_size=6) | plain}
)


def found(*rows: tuple[str, bytes], more: bool = False) -> Found:
    return Found([KeyValue(key, value, 5, 0) for key, value in rows], more)


def look(after: int = 0, **parts: Found) -> Any:
    names = ("leader", "snapshot", "config", "replicas", "journal")
    return messages.read_look(KEYS, after, EtcdOutcome(True, [parts.get(name, found()) for name in names]))


def entries(*numbers: int, more: bool = False) -> Found:
    return found(*((KEYS.entry(number), b"%d" % number) for number in numbers), more=more)


# ------------------------------------------------------------------ keys and requests


def test_keys() -> None:
    assert KEYS.leader == "/rpcsys/lab/leader"
    assert KEYS.entry(7) == "/rpcsys/lab/journal/0000000000000007"
    assert KEYS.piece(7, 3) == "/rpcsys/lab/snapshot/0000000000000007/0003"
    assert KEYS.replica("id-a") == "/rpcsys/lab/replicas/id-a"
    assert KEYS.entry(10**16 - 1) < messages.behind(KEYS.journal) == "/rpcsys/lab/journal0"
    for replica_id in ("", "a/b", "a" * 65):
        with pytest.raises(ValueError, match="no ID"):
            KEYS.replica(replica_id)


def test_a_transaction() -> None:
    asked = messages.transaction(
        [messages.written_at("a", 3)], [messages.put("b", b"\xff", 9), messages.delete("c", "d")], [messages.get("e")]
    )
    assert json.loads(messages.to_value(asked)) == {
        "compare": [{"key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": 3}],
        "success": [
            {"request_put": {"key": "Yg==", "value": "/w==", "lease": 9}},
            {"request_delete_range": {"key": "Yw==", "range_end": "ZA=="}},
        ],
        "failure": [{"request_range": {"key": "ZQ==", "limit": 0}}],
    }


# ------------------------------------------------------------------ answers


@pytest.mark.parametrize(
    ("status", "body", "fault", "text"),
    [
        (200, {"ID": "1"}, None, ""),
        (503, {"error": "etcdserver: no leader", "code": 14}, Fault.ELSEWHERE, "no leader"),
        (503, {"code": 14, "message": "etcdserver: leader changed"}, Fault.ELSEWHERE, "leader changed"),
        (200, {"error": {"grpc_code": 14, "message": "no leader", "http_code": 503}}, Fault.ELSEWHERE, "no leader"),
        (429, {"error": "etcdserver: mvcc: database space exceeded", "code": 8}, Fault.FULL, "space"),
        (429, {"error": "etcdserver: too many requests", "code": 8}, Fault.ELSEWHERE, "too many"),
        (404, {"error": "etcdserver: requested lease not found", "code": 5}, Fault.NO_LEASE, "lease"),
        (404, {"code": 5, "message": "Not Found", "details": []}, Fault.NO_ETCD, "Not Found"),
        (401, {"error": "etcdserver: invalid auth token", "code": 16}, Fault.TOKEN, "token"),
        (400, {"error": "etcdserver: revision of auth store is old", "code": 3}, Fault.TOKEN, "old"),
        (403, {"error": "etcdserver: permission denied", "code": 7}, Fault.REFUSED, "permission"),
        (400, {"error": "x" * 9999, "code": 3}, Fault.REFUSED, "x"),
        (500, {}, Fault.ELSEWHERE, "HTTP status 500"),
        (404, {}, Fault.NO_ETCD, "HTTP status 404"),
        (200, {"error": 5}, Fault.NO_ETCD, "HTTP status 200"),
        (200, [], Fault.NO_ETCD, "must be an object"),
    ],
)
def test_an_answer(status: int, body: Any, fault: Fault | None, text: str) -> None:
    answer = messages.read_answer(status, json.dumps(body).encode())
    assert answer.fault is fault
    assert text in answer.text
    assert len(answer.text) < 400
    assert answer.body == (body if fault is None else {})


@given(st.integers(100, 999), st.binary(max_size=60) | plain.map(lambda value: json.dumps(value).encode()))
def test_any_answer(status: int, data: bytes) -> None:
    answer = messages.read_answer(status, data)
    assert type(answer.body) is dict


@pytest.mark.parametrize("value", ["", "1.0", "0x1", "1" * 20, " 1", 1.0, True, None, [], 1 << 63, "٣"])
def test_no_integer(value: Any) -> None:
    with pytest.raises(ProtocolError, match="TTL must be a whole number"):
        messages.integer({"TTL": value}, "TTL")


def test_an_integer() -> None:
    assert [messages.integer({"a": value}, "a") for value in ("12", 12, "-3")] == [12, 12, -3]
    assert messages.integer({}, "a") == 0


def test_small_answers() -> None:
    assert messages.read_lifetime({"result": {"ID": "3", "TTL": "2"}}) == 2
    assert messages.read_lifetime({"result": {"TTL": "-1"}}) == 0
    assert messages.read_lifetime({"result": {"ID": "3"}}) == 0
    assert messages.read_cluster({"header": {"cluster_id": "7"}}) == "7"
    assert messages.read_cluster({}) == ""
    for number, quota in (
        (b"2.147483648e+09", 2 << 30),
        (b"8388608", 8 << 20),
        (b"1.2.3", 0),
        (b"NaN", 0),
        (b"1e+999", 0),
    ):
        metrics = b"# TYPE\netcd_server_quota_backend_bytes %b\netcd_mvcc_db_total_size_in_bytes 24576\n" % number
        assert messages.read_sizes(metrics) == (24576, quota)
    assert messages.read_sizes(b"<html>") == (0, 0)
    assert messages.read_token({"token": "abc.1"}) == "abc.1"
    for token in (None, 1, "", "a b", "a\r\nb", "ä", "a" * 4097):
        with pytest.raises(ProtocolError, match="no token"):
            messages.read_token({"token": token})


def test_an_outcome() -> None:
    condition = messages.written_at("a", 0)
    asked = messages.transaction([condition], [messages.put("a", b""), messages.get("b")], [messages.get("a")])
    row = {"key": "Yg==", "value": "/w==", "mod_revision": "7", "lease": "9", "version": "1"}
    body = {"succeeded": True, "responses": [{"response_put": {}}, {"response_range": {"kvs": [row], "more": True}}]}
    assert messages.read_outcome(asked, body) == EtcdOutcome(True, [Found([KeyValue("b", b"\xff", 7, 9)], True)])
    assert messages.read_outcome(asked, {"responses": [{"response_range": {}}]}) == EtcdOutcome(
        False, [Found([], False)]
    )
    for wrong in ({"succeeded": True, "responses": []}, {"responses": [{}, {}]}, {"succeeded": "true"}):
        with pytest.raises(ProtocolError):
            messages.read_outcome(asked, wrong)
    with pytest.raises(ProtocolError, match="without conditions"):
        messages.read_outcome(messages.transaction((), ()), {})


def in_one_line(error: Exception) -> bool:
    return "\n" not in str(error) and len(str(error)) < 600


@given(answers)
def test_any_outcome_and_any_data(body: dict[str, Any]) -> None:
    """What another program may answer ends in one of two errors."""
    problem = None
    try:
        outcome = messages.read_outcome(messages.look(KEYS, 3), body)
        messages.read_look(KEYS, 3, outcome)
    except (ProtocolError, EngineRefused) as error:
        problem = error
    assert problem is None or in_one_line(problem)


NAMES = [KEYS.leader, KEYS.entry(4), KEYS.entry(5), KEYS.entry(9), KEYS.replica("a"), KEYS.replicas, KEYS.journal + "é"]
values = st.binary(max_size=9) | plain.map(lambda value: json.dumps(value).encode())
rows_of_look = st.lists(st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=3), min_size=5, max_size=5)


@given(rows_of_look)
def test_any_values(rows: list[list[tuple[str, bytes]]]) -> None:
    numbers, problem = [], None
    try:
        seen = messages.read_look(KEYS, 3, EtcdOutcome(True, [found(*row) for row in rows]))
        numbers = [number for number, _ in seen.entries]
    except EngineRefused as error:
        problem = error
    assert problem is None or in_one_line(problem)
    assert numbers == [*range(4, 4 + len(numbers))]


# ------------------------------------------------------------------ a lab's data


def test_what_a_tracker_writes_is_read() -> None:
    seen = look(
        leader=found((KEYS.leader, messages.to_value(LEADER.to_json()))),
        snapshot=found((KEYS.snapshot, messages.to_value(asdict(SNAPSHOT)))),
        config=found((KEYS.config, b'{"max_session": {}}')),
        replicas=found((KEYS.replica("id-a"), messages.to_value(asdict(REPLICA)))),
    )
    assert (seen.leader, seen.term, seen.snapshot) == (LEADER, 5, SNAPSHOT)
    assert (seen.config, seen.replicas) == ({"max_session": {}}, {"id-a": REPLICA})


def test_what_a_newer_tracker_adds_is_left_out() -> None:
    newer = {**LEADER.to_json(), "format": 2, "region": {"name": "x"}}
    assert look(leader=found((KEYS.leader, messages.to_value(newer)))).leader == replace(LEADER, format=2)


@pytest.mark.parametrize(
    ("after", "journal", "numbers", "more"),
    [
        (0, entries(), [], False),
        (0, entries(1, 2), [1, 2], False),
        (0, entries(1, 2, more=True), [1, 2], True),
        (2, entries(3), [3], False),
        (0, entries(1, 3, 4, more=True), [1], False),
        (1, entries(5, 6, more=True), [], False),
    ],
)
def test_the_journal_ends_at_a_gap(after: int, journal: Found, numbers: list[int], more: bool) -> None:
    seen = look(after, journal=journal)
    assert seen.entries == [(number, b"%d" % number) for number in numbers]
    assert seen.more is more


@pytest.mark.parametrize(
    ("part", "key", "value", "why"),
    [
        ("leader", KEYS.leader, b"", "not JSON"),
        ("leader", KEYS.leader, b"{}", "lacks 'address'"),
        ("leader", KEYS.leader, messages.to_value({**LEADER.to_json(), "address": ["a"]}), "must be [host, port]"),
        ("leader", KEYS.leader, b"[" * 100_000, "nested"),
        ("snapshot", KEYS.snapshot, messages.to_value(asdict(replace(SNAPSHOT, pieces=MAX_PIECES + 1))), "pieces"),
        ("snapshot", KEYS.snapshot, messages.to_value(asdict(SNAPSHOT)).replace(b"1.5", b"1e999"), "at must"),
        ("config", KEYS.config, b"[]", "must be an object"),
        ("replicas", KEYS.replicas + "a b", b"{}", "no ID of a replica"),
        ("replicas", KEYS.replica("a"), b"null", "must be an object"),
        ("journal", KEYS.journal + "1", b"", "no number of an entry"),
        ("journal", KEYS.entry(1), bytes(MAX_VALUE + 1), "524289 bytes, and at most 524288 are allowed"),
    ],
)
def test_another_programs_value(part: str, key: str, value: bytes, why: str) -> None:
    with pytest.raises(EngineRefused) as raised:
        look(**{part: found((key, value))})
    text = str(raised.value)
    assert text.startswith(repr(key))
    assert why in text
    assert "give the lab another name" in text
