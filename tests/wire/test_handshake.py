"""The handshake, whole, byte by byte and with trailing bytes; then arbitrary bytes."""

import io
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError, UsageError
from rpcsys.wire.handshake import (
    MAGIC,
    MAX_GREETING,
    AnswerReader,
    Greeting,
    HandshakeAnswer,
    OpeningReader,
    Options,
    encode_duplicate,
    encode_greeting,
    encode_mismatch,
    format_greeting,
    parse_greeting,
)


def read(reader, stream, step=None):
    """Feed ``reader`` the bytes of ``stream`` that it needs, at most ``step`` at a time."""
    while reader.needed:
        data = stream.read(min(reader.needed, step or reader.needed))
        if not data:
            return None
        reader.receive(data)
    return reader.result


def opening(text, magic=MAGIC):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<ii", magic, len(data)) + data


RPCSYS = Options(session="rpcsys/1")

OPENINGS = [
    ("client:rpi4:a1b2", Greeting("client", "rpi4:a1b2")),
    ("client:", Greeting("client", "")),
    ("client:127.0.0.1:5555:k -timeout=2.5", Greeting("client", "127.0.0.1:5555:k", Options(timeout_s=2.5))),
    ("client:k -timeout=0", Greeting("client", "k")),
    ("client:k -session=rpcsys/1", Greeting("client", "k", RPCSYS)),
    ("client:k -session=rpcsys/1 -serve=resnet", Greeting("client", "k", Options("rpcsys/1", "resnet"))),
    ("server:k -server=id-7", Greeting("server", "k", Options(server="id-7"))),
    ("server:k:1 -server=id-7 -offered=1", Greeting("server", "k:1", Options(server="id-7", offered=True))),
    ("client:k -new=1 word -session", Greeting("client", "k", Options(others=("-new=1", "word", "-session")))),
]


@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize(("text", "greeting"), OPENINGS, ids=[text for text, _ in OPENINGS])
def test_opening_leaves_what_follows(text, greeting, step):
    stream = io.BytesIO(opening(text) + b"TVM's first packet")
    assert read(OpeningReader(), stream, step) == greeting
    assert stream.read() == b"TVM's first packet"


ANSWERS = [
    (opening("server:rpi4"), HandshakeAnswer("success", Greeting("server", "rpi4"))),
    (opening("server:rpi4 -session=rpcsys/1"), HandshakeAnswer("success", Greeting("server", "rpi4", RPCSYS))),
    (opening("echo of a strange server"), HandshakeAnswer("success", parse_greeting(b"echo of a strange server"))),
    (opening(""), HandshakeAnswer("success", Greeting("", ""))),
    (encode_duplicate(), HandshakeAnswer("duplicate")),
    (encode_mismatch(), HandshakeAnswer("mismatch")),
]


@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize(("data", "answer"), ANSWERS)
def test_answer_leaves_what_follows(data, answer, step):
    stream = io.BytesIO(data + b"tail")
    assert read(AnswerReader(), stream, step) == answer
    assert stream.read() == b"tail"


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("server:k -session=rpcsys/1", True),
        ("server:k", False),
        ("server:k -session=rpcsys/2", False),
        ("client:k:1 -session=rpcsys/1", False),  # a Java server echoes what it was sent
    ],
)
def test_an_answer_speaks_rpcsys_with_role_and_session(text, speaks):
    assert read(AnswerReader(), io.BytesIO(opening(text))).speaks_rpcsys is speaks


def test_a_refusal_does_not_speak_rpcsys():
    assert not HandshakeAnswer("mismatch").speaks_rpcsys


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"GET / HTTP/1.1\r\n", ProtocolError, "not the protocol of a device server or a proxy, but of a page"),
        (b"\x16\x03\x01\x02", ProtocolError, "TLS"),
        (opening("peer:k"), ProtocolError, "client:KEY"),
        (opening(""), ProtocolError, "client:KEY"),
        (opening(b"client:\xff"), ProtocolError, "UTF-8"),
        (opening("client:k -timeout=soon"), ProtocolError, "seconds"),
        (opening("client:k -timeout=nan"), ProtocolError, "seconds"),
        (opening("client:k -timeout=-1"), ProtocolError, "seconds"),
        (struct.pack("<ii", MAGIC, -5), ProtocolError, "-5"),
        (struct.pack("<ii", MAGIC, MAX_GREETING + 1), LimitExceeded, str(MAX_GREETING)),
    ],
)
def test_an_invalid_opening_is_refused_with_a_reason(data, error, words):
    with pytest.raises(error, match=words):
        read(OpeningReader(), io.BytesIO(data))


def test_a_wrong_first_byte_is_refused():
    with pytest.raises(ProtocolError):
        OpeningReader().receive(b"G")


@pytest.mark.parametrize("code", [0, -1, MAGIC + 3])
def test_an_answer_with_an_unknown_code_is_refused(code):
    with pytest.raises(ProtocolError, match="not the protocol of a device server"):
        read(AnswerReader(), io.BytesIO(struct.pack("<i", code)))


def test_an_answer_above_the_limit_is_refused():
    fits = opening("server:" + "k" * (MAX_GREETING - 7))
    assert len(read(AnswerReader(), io.BytesIO(fits)).greeting.key) == MAX_GREETING - 7
    with pytest.raises(LimitExceeded):
        read(AnswerReader(), io.BytesIO(opening("server:" + "k" * (MAX_GREETING - 6))))


def test_more_bytes_than_needed_are_a_value_error():
    with pytest.raises(ValueError, match="9 bytes where 8"):
        OpeningReader().receive(bytes(9))


@pytest.mark.parametrize(
    "greeting",
    [
        Greeting("client", "two words"),
        Greeting("client", "nul\0"),
        Greeting("", ""),
        Greeting("client", "k", Options(others=("",))),
        Greeting("client", "k", Options(session="rpcsys/1", timeout_s=1.0)),
        Greeting("client", "k" * MAX_GREETING),
    ],
)
def test_a_greeting_without_a_text_is_refused(greeting):
    with pytest.raises(UsageError):
        encode_greeting(greeting)


words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=30)
options = st.one_of(
    st.builds(Options, session=st.none() | words, serve=st.none() | words, server=st.none() | words),
    st.builds(Options, timeout_s=st.floats(min_value=1e-9, max_value=1e12)),
    st.builds(Options, others=st.lists(words.map("+".__add__), max_size=4).map(tuple)),
)
greetings = st.builds(Greeting, st.sampled_from(["client", "server"]), words, options)


@given(greetings, st.integers(1, 9))
def test_round_trip(greeting, step):
    data = encode_greeting(greeting)
    assert read(OpeningReader(), io.BytesIO(data), step) == greeting
    assert read(AnswerReader(), io.BytesIO(data), step) == HandshakeAnswer("success", greeting)
    assert parse_greeting(format_greeting(greeting).encode()) == greeting


@given(st.binary(max_size=64), st.booleans(), st.sampled_from([OpeningReader, AnswerReader]))
def test_any_bytes_are_a_handshake_or_an_error(data, with_magic, reader_class):
    reader = reader_class()
    try:
        read(reader, io.BytesIO(struct.pack("<i", MAGIC) * with_magic + data), 3)
    except ProtocolError:
        return
    assert reader.needed <= MAX_GREETING


@given(st.binary(max_size=64))
def test_any_greeting_bytes(data):
    try:
        greeting = parse_greeting(data)
    except ProtocolError:
        return
    assert greeting.options.timeout_s is None or 0 < greeting.options.timeout_s < math.inf
