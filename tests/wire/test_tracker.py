"""The tracker connection, whole, byte by byte and with trailing bytes; every message there and back; then any bytes."""

import json
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import control, tracker
from rpcsys.wire.tracker import BadMessage, FrameReader
from tests.wire.messages import FROM_TRACKER, LEASES, TO_TRACKER, VIAS


def raw(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<i", len(data)) + data


def frames(reader):
    return list(iter(reader.next, None))


# --- messages ----------------------------------------------------------------------------------


def there_and_back(message, parse):
    reader = FrameReader(magic=False)
    reader.feed(tracker.encode(message))
    (frame,) = frames(reader)
    return parse(tracker.decode_json(frame))


@settings(max_examples=500)
@given(TO_TRACKER)
def test_every_message_to_the_tracker_survives_the_wire(message):
    assert there_and_back(message, tracker.parse_to_tracker) == message


@given(FROM_TRACKER)
def test_every_message_from_the_tracker_survives_the_wire(message):
    assert there_and_back(message, tracker.parse_from_tracker) == message


@given(LEASES)
def test_a_lease_survives_json(lease):
    assert control.Lease.from_json(json.loads(json.dumps(lease.to_json()))) == lease


@given(VIAS)
def test_where_a_relayed_connection_is_from_survives_the_wire(via):
    assert there_and_back(via, control.Via.from_json) == via


@pytest.mark.parametrize("address", [None, [], ["a"], ["a", 1, 2], [None, 1], ["a", 65536], ["a", None], {"a": 1}])
def test_a_relayed_connection_is_from_somewhere(address):
    with pytest.raises(ProtocolError, match="address"):
        control.Via.from_json({"op": "via", "address": address, "proxy": [None, 1]})


def test_every_op_has_a_strategy():
    assert len(control.TO_TRACKER) == 17
    assert len(control.FROM_TRACKER) == 5


# --- what TVM's ends send ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ([1], tracker.Ping()),
        ([1, "anything"], tracker.Ping()),
        ([3, "rpi4", [9090, "rpi4:0.5"], None], tracker.Put("rpi4", 9090, "rpi4:0.5", None)),
        ([3, "rpi4", [9090, "rpi4:0.5"]], tracker.Put("rpi4", 9090, "rpi4:0.5", None)),
        ([3, "rpi4", ["9090", "rpi4:0.5"], "host"], tracker.Put("rpi4", 9090, "rpi4:0.5", "host")),
        ([4, "127.0.0.1:5555", "", 1], tracker.TvmRequest("127.0.0.1:5555", "", 1)),
        ([4, "rpi4", None, 1.5], tracker.TvmRequest("rpi4", "", 1.5)),
        ([5, {"key": "server:rpi4", "addr": [None, "9090"]}], tracker.UpdateInfo("server:rpi4", None, 9090)),
        ([5, {"key": "server:proxy[a,b]", "addr": ["h", 9]}], tracker.UpdateInfo("server:proxy[a,b]", "h", 9)),
        ([6], tracker.TvmSummary()),
        ([7], tracker.GetPending()),
    ],
)
def test_tvms_messages(sent, meant):
    assert tracker.parse_to_tracker(sent) == meant


@pytest.mark.parametrize(
    "sent",
    [
        *(None, 1, "x", [], [0], [8], ["1"], [True], [1.0], [None], [[1]]),
        *([2], [2, 5], [3], [3, "k"], [3, "k", []], [3, "k", [9, 9]], [3, "k", ["x", "k:1"]], [3, "k", [70000, "k:1"]]),
        *([3, "a b", [9, "k:1"]], [3, "k", [True, "k:1"]], [3, "k", [9, "k:1"], 5], [3, "k", [9, "k:1"], "a\nb"]),
        *([4], [4, 5], [4, "a,b"], [4, "k", 5, 1], [4, "k", "", "high"], [4, "k", "", True], [4, "k", "", 2**60]),
        *(
            [5],
            [5, []],
            [5, {}],
            [5, {"key": "server:k"}],
            [5, {"key": 1, "addr": [None, 1]}],
            [5, {"key": "k", "addr": [1]}],
        ),
        *([1, {"op": "hello"}], [1, {"op": "hello", "version": 1}]),
    ],
)
def test_a_wrong_message_of_tvms_ends_the_connection_but_a_request(sent):
    with pytest.raises(BadMessage) as caught:
        tracker.parse_to_tracker(sent)
    assert caught.value.fatal == (type(sent) is not list or sent[:1] != [tracker.REQUEST])


def test_tvms_client_is_told_why_its_request_cannot_be():
    with pytest.raises(BadMessage) as caught:
        tracker.parse_to_tracker([4, "a b", "", 1])
    code, reason = caught.value.reply
    assert code == tracker.FAIL
    assert "'a b'" in reason


@pytest.mark.parametrize(
    "sent",
    [
        {"op": "request", "id": 7, "labels": []},
        {"op": "request", "id": 7, "key": "a b"},
        {"op": "request", "id": 7, "key": "k", "priority": "high"},
        {"op": "request", "id": 7, "key": "k", "wait_timeout": -1},
        {"op": "request", "id": 7, "key": "k", "count": 0},
        {"op": "request", "id": 7, "key": "k", "labels": {"a": 1}},
        {"op": "register", "id": 7, "key": "k", "name": "n", "running": [{"lease": "x"}]},
        {"op": "register", "id": 7, "key": "k", "name": "n", "slots": True},
        {"op": "lease_ended", "id": 7, "lease": "l", "epoch": 1, "outcome": "fine"},
        {"op": "lease_ended", "id": 7, "lease": "l", "epoch": 1, "outcome": ["closed"]},
        {"op": "dance", "id": 7},
        {"op": None, "id": 7},
        {"op": ["request"], "id": 7},
    ],
)
def test_a_wrong_message_of_ours_is_answered_and_the_connection_goes_on(sent):
    with pytest.raises(BadMessage) as caught:
        tracker.parse_to_tracker(sent)
    assert not caught.value.fatal
    assert caught.value.reply["id"] == 7
    assert caught.value.reply["ok"] is False
    assert caught.value.reply["error"] == "BadRequest"
    assert caught.value.reply["message"]


@pytest.mark.parametrize(
    "sent",
    [{}, {"op": "summary"}, {"op": "summary", "id": "x"}, {"op": "summary", "id": -1}, {"id": True, "op": "summary"}],
)
def test_an_object_without_an_id_cannot_be_answered(sent):
    with pytest.raises(BadMessage) as caught:
        tracker.parse_to_tracker(sent)
    assert caught.value.fatal


def test_fields_of_a_newer_version_are_ignored():
    assert tracker.parse_to_tracker({"op": "summary", "id": 1, "colour": "red"}) == control.Summary(1)


# --- any bytes ---------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["op", "id", "key"]), inner, max_size=4)
    ),
    max_leaves=12,
)
shaped = st.tuples(st.integers(0, 8), json_values, json_values, json_values).map(list) | st.fixed_dictionaries(
    {"op": st.sampled_from([*control.TO_TRACKER, "hello"]), "id": st.integers(0, 9) | json_values},
    optional=dict.fromkeys(("key", "name", "lease", "epoch", "request", "running", "labels", "outcome"), json_values),
)


def parse_all(data, magic, parse):
    """Either every byte is taken or waits for more, or a documented error is raised; which, as a short text."""
    reader = FrameReader(magic=magic)
    try:
        reader.feed(data)
        for frame in frames(reader):
            parse(tracker.decode_json(frame))
    except ProtocolError as error:
        return str(error)
    return "fine"


@settings(max_examples=500)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_messages_or_a_documented_error(data, magic):
    assert 0 < len(parse_all(data, magic, tracker.parse_to_tracker)) < 1000


@settings(max_examples=500)
@given(json_values | shaped)
def test_any_json_gives_a_message_or_a_documented_error(value):
    frame = raw(json.dumps(value))
    assert 0 < len(parse_all(frame, False, tracker.parse_to_tracker)) < 1000
    assert 0 < len(parse_all(frame, False, tracker.parse_from_tracker)) < 1000


@given(st.lists(st.binary(max_size=40), max_size=20))
@example([b"\x00", b"\x00", b"\x01\x00"])  # a length whose frame has not come
def test_a_reader_holds_no_more_than_it_was_fed(pieces):
    reader = FrameReader(magic=False)
    fed = given_out = 0
    try:
        for piece in pieces:
            reader.feed(piece)
            fed += len(piece)
            given_out += sum(len(frame) + 4 for frame in frames(reader))
            length_taken = 4 if reader._due else 0
            assert len(reader._buffer) - reader._at == fed - given_out - length_taken
    except ProtocolError:
        pass


def test_spans_beyond_thousands_of_years_are_all_the_same():
    asked = tracker.parse_to_tracker({"op": "request", "id": 1, "key": "rpi4", "wait_timeout": 1e308})
    assert asked.wait_timeout == 10**11
    running = [{"lease": "a", "epoch": 1, "since_s": 1e300}]
    told = tracker.parse_to_tracker({"op": "register", "id": 1, "key": "rpi4", "name": "board", "running": running})
    assert told.running[0].since_s == 10**11
