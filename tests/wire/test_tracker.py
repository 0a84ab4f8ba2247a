"""The tracker connection, whole, byte by byte and with trailing bytes; every message both ways; arbitrary bytes."""

import json
import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire import control, tracker
from rpcsys.wire.tracker import BadMessage, TrackerFrameReader
from tests.wire.messages import FROM_TRACKER, LEASES, TO_TRACKER, VIAS


def raw(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<i", len(data)) + data


def frames(reader):
    return list(iter(reader.next, None))


# --- frames ------------------------------------------------------------------------------------

STREAM = tracker.MAGIC_BYTES + raw("[1]") + raw('[4, "rpi4", "", 1]') + raw("[6]")
FRAMES = [b"[1]", b'[4, "rpi4", "", 1]', b"[6]"]


def test_a_stream_at_once():
    reader = TrackerFrameReader()
    reader.feed(STREAM)
    assert frames(reader) == FRAMES
    assert not reader.magic_due
    assert not reader.partial


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 11])
def test_a_stream_in_pieces(step):
    reader = TrackerFrameReader()
    got = []
    for start in range(0, len(STREAM), step):
        reader.feed(STREAM[start : start + step])
        got += frames(reader)
    assert got == FRAMES


def test_trailing_bytes_are_kept():
    reader = TrackerFrameReader()
    reader.feed(STREAM + b"\x05\x00\x00\x00[")
    assert frames(reader) == FRAMES
    assert reader.partial
    reader.feed(b"1,2")
    assert frames(reader) == []
    reader.feed(b"]" + raw("0")[:3])
    assert frames(reader) == [b"[1,2]"]
    reader.feed(raw("0")[3:])
    assert frames(reader) == [b"0"]


@given(st.integers(0, len(STREAM)), st.integers(0, len(STREAM)))
def test_the_rest_is_all_that_no_frame_was_made_of(first, second):
    """Another reader goes on with it, wherever the bytes were divided."""
    start, end = sorted((first, second))
    reader = TrackerFrameReader()
    got = []
    for piece in (STREAM[:start], STREAM[start:end]):
        reader.feed(piece)
        got += frames(reader)
    other = TrackerFrameReader(magic=reader.magic_due)
    other.feed(reader.rest())
    assert not reader.partial
    assert reader.rest() == b""
    other.feed(STREAM[end:])
    assert got + frames(other) == FRAMES


def test_a_wrong_magic_is_refused_at_its_first_wrong_byte():
    reader = TrackerFrameReader()
    reader.feed(tracker.MAGIC_BYTES[:3])
    assert reader.next() is None
    assert reader.magic_due
    reader.feed(b"\x01")
    with pytest.raises(ProtocolError, match="not the protocol of a tracker"):
        reader.next()
    reader = TrackerFrameReader()
    reader.feed(b"G")
    with pytest.raises(ProtocolError, match="not the protocol of a tracker"):
        reader.next()


@pytest.mark.parametrize("size", [0, -1, tracker.MAX_FRAME + 1, 2**31 - 1, -(2**31)])
def test_a_length_beyond_the_limit_is_refused_before_the_frame_comes(size):
    reader = TrackerFrameReader(magic=False)
    reader.feed(struct.pack("<i", size))
    with pytest.raises(LimitExceeded):
        reader.next()


def test_an_announced_frame_takes_no_memory_before_it_comes():
    tracemalloc.start()
    try:
        readers = [TrackerFrameReader(magic=False) for _ in range(50)]
        for reader in readers:
            reader.feed(struct.pack("<i", tracker.MAX_FRAME))
            assert reader.next() is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_stream_leaves_nothing_behind():
    reader = TrackerFrameReader()
    reader.feed(tracker.MAGIC_BYTES)
    tracemalloc.start()
    try:
        for _ in range(2000):
            reader.feed(raw("[" + "1," * 500 + "1]") * 2)
            assert len(frames(reader)) == 2
        assert tracemalloc.get_traced_memory()[0] < 1 << 16
    finally:
        tracemalloc.stop()


def test_a_message_too_long_for_a_frame_is_not_sent():
    with pytest.raises(LimitExceeded):
        tracker.encode(["x" * tracker.MAX_FRAME])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {"x": b"bytes"}])
def test_a_value_without_a_json_form_is_not_sent(value):
    with pytest.raises(ValueNotSupported):
        tracker.encode([4, "rpi4", "", value])


# --- JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [" [1]", "[1]\n", "\t[1] ", "[ 1 ]"])
def test_white_space_around_json_is_allowed(text):
    assert tracker.decode_json(text.encode()) == [1]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"[", b"[1", b"[1]]", b"[1] x", b"{", b"nul", b"'a'", b"[1,]"),
        *(b"NaN", b"[Infinity]", b"[-Infinity]"),
        *(b"\xff", b'"\xed\xa0\x80"', b"[1]".decode().encode("utf-16")),
        *(b"[" * 100_000, b"[" * 33 + b"]" * 33, b'{"a":' * 40 + b"1" + b"}" * 40),
        *(b"9" * 4301, b"[" + b"9" * 4300 + b"9]", b"[" + b"1" * 500_000 + b"]"),
    ],
)
def test_json_that_is_not_strict_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        tracker.decode_json(data)


def test_json_as_deep_as_allowed():
    value = tracker.decode_json(b"[" * 32 + b"]" * 32)
    for _ in range(31):
        (value,) = value
    assert value == []
    wide = json.dumps([[n, {}] for n in range(100)]).encode()
    assert len(tracker.decode_json(wide)) == 100


# --- messages ----------------------------------------------------------------------------------


def there_and_back(message, parse):
    reader = TrackerFrameReader(magic=False)
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
def test_via_survives_the_wire(via):
    assert there_and_back(via, control.Via.from_json) == via


@pytest.mark.parametrize("address", [None, [], ["a"], ["a", 1, 2], [None, 1], ["a", 65536], ["a", None], {"a": 1}])
def test_a_via_without_a_valid_address_is_refused(address):
    with pytest.raises(ProtocolError, match="address"):
        control.Via.from_json({"op": "via", "address": address, "proxy": [None, 1]})


def test_every_op_has_a_strategy():
    assert len(control.TO_TRACKER) == 19
    assert len(control.FROM_TRACKER) == 7


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
def test_an_invalid_tvm_message_is_fatal_unless_it_is_a_request(sent):
    with pytest.raises(BadMessage) as caught:
        tracker.parse_to_tracker(sent)
    assert caught.value.fatal == (type(sent) is not list or sent[:1] != [tracker.REQUEST])


def test_an_invalid_tvm_request_is_answered_with_the_reason():
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
def test_an_invalid_message_of_ours_is_answered_and_not_fatal(sent):
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
    """Parse every byte, or raise a documented error. Returns which, as a short text."""
    reader = TrackerFrameReader(magic=magic)
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
    reader = TrackerFrameReader(magic=False)
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


def test_durations_are_capped():
    asked = tracker.parse_to_tracker({"op": "request", "id": 1, "key": "rpi4", "wait_timeout": 1e308})
    assert asked.wait_timeout == 10**11
    running = [{"lease": "a", "epoch": 1, "since_s": 1e300}]
    told = tracker.parse_to_tracker({"op": "register", "id": 1, "key": "rpi4", "name": "board", "running": running})
    assert told.running[0].since_s == 10**11
