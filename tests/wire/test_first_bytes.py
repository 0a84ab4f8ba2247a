"""First bytes name the kind of port; a port that was taken for another kind answers with its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.wire import handshake, tracker
from rpcsys.wire.first_bytes import PAGE, SESSION, TRACKER, OtherProtocol, answer, kind_of
from rpcsys.wire.handshake import AnswerReader, Greeting, OpeningReader, encode_greeting
from rpcsys.wire.tracker import TrackerFrameReader

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OPENING = encode_greeting(Greeting("client", "key"))
#: What a peer sends first that wants each kind of port.
WANTED = {TRACKER: tracker.MAGIC_BYTES, SESSION: OPENING, PAGE: REQUEST}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        *((data, kind) for kind, data in WANTED.items()),
        (handshake.encode_mismatch(), SESSION),
        (handshake.encode_duplicate(), SESSION),
        (b"HTTP/1.1 400 Bad Request\r\n", PAGE),
        (b"", None),
        (b"GET", None),
        (b"\x16\x03\x01\x02", None),
    ],
)
def test_first_bytes_have_a_kind(data, kind):
    assert kind_of(data) == kind
    assert kind_of(bytearray(data)) == kind


@given(st.binary(max_size=64))
def test_any_bytes_have_a_kind_or_none(data):
    kind = kind_of(data)
    assert kind in (None, *WANTED)
    assert str(OtherProtocol(TRACKER, data)).isprintable()


@pytest.mark.parametrize("own", WANTED)
@pytest.mark.parametrize("wanted", WANTED)
def test_each_kind_is_recognised_by_its_answer_to_another(own, wanted):
    said = answer(own, wanted)
    if own == wanted:
        assert said == b""
    elif wanted == PAGE:  # a browser, or a probe
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert f"this is the port of {own}".encode() in said
    else:
        assert kind_of(said) == own
    assert answer(own, None) == b""


def test_readers_raise_what_the_bytes_are():
    frames = TrackerFrameReader()
    frames.feed(REQUEST)
    with pytest.raises(OtherProtocol, match=r"not the protocol of a tracker, but of a page \(HTTP\)") as caught:
        frames.next()
    assert caught.value.kind == PAGE
    for reader in (OpeningReader(), AnswerReader()):
        with pytest.raises(OtherProtocol, match="but of a tracker") as caught:
            reader.receive(tracker.MAGIC_BYTES)
        assert caught.value.kind == TRACKER
    with pytest.raises(OtherProtocol, match=r"one that begins with b'SSH-'") as caught:
        AnswerReader().receive(b"SSH-")
    assert caught.value.kind is None
