"""TVM's handshake of a session: the opening and its answer (docs/wire.md, 2). All integers are int32 little-endian.

A reader never needs bytes past the greeting: those belong to TVM's runtime or to the session, and may have arrived. The
length is checked before the greeting is read.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Callable, Generic, TypeVar, Union

from rpcsys.errors import LimitExceeded, ProtocolError, UsageError
from rpcsys.wire import first_bytes

MAGIC = first_bytes.SESSION_MAGIC
DUPLICATE = first_bytes.DUPLICATE
MISMATCH = first_bytes.MISMATCH

#: The value of ``-session=`` for the protocol of :mod:`rpcsys.wire.frames`.
SESSION = "rpcsys/1"

#: Bytes of a key with its options. A match key is its key and 33 characters; all options together need a few hundred
#: bytes. A connection of an unknown peer can make a daemon keep no more than this.
MAX_GREETING = 4096

CLIENT = "client"
SERVER = "server"

_INT = struct.Struct("<i")
_INTS = struct.Struct("<ii")
_MAGIC_BYTES = _INT.pack(MAGIC)
_OPTIONS = ("-session", "-serve", "-server", "-offered", "-timeout")
_NAMES = {MAGIC: "success", DUPLICATE: "duplicate", MISMATCH: "mismatch"}

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Options:
    """The options behind the key of a greeting."""

    session: str | None = None  # the session protocol, None for TVM's own
    serve: str | None = None  # the deployed module to connect to
    server: str | None = None  # the identity of a server that dials a proxy
    offered: bool = False  # whether the server itself, not its proxy, offers the match key to the tracker
    timeout_s: float | None = None  # TVM's time limit in seconds, None for no limit
    others: tuple[str, ...] = ()  # unknown options, as received: TVM's server ignores them, too


@dataclass(frozen=True)
class Greeting:
    """A key with its options. ``role`` is ``client``, ``server``, or empty for neither."""

    role: str
    key: str
    options: Options = Options()


@dataclass(frozen=True)
class HandshakeAnswer:
    """The answer to an opening: ``code`` is ``success``, ``duplicate`` or ``mismatch``; a greeting on success."""

    code: str
    greeting: Greeting | None = None

    @property
    def speaks_rpcsys(self) -> bool:
        """Whether the peer is a server that speaks rpcsys/1.

        Both role and session are checked: a Java server of TVM answers with the client's own greeting.
        """
        answer = self.greeting
        return answer is not None and answer.role == SERVER and answer.options.session == SESSION


def encode_greeting(greeting: Greeting) -> bytes:
    """An opening, or the answer to one that was accepted: they look the same.

    Raises UsageError for a key or an option that a greeting cannot carry.
    """
    text = format_greeting(greeting).encode("utf-8")
    if len(text) > MAX_GREETING:
        raise UsageError(f"a key with its options may have {MAX_GREETING} bytes, not {len(text)}")
    return _INTS.pack(MAGIC, len(text)) + text


def encode_mismatch() -> bytes:
    """The answer for a key that is not served here."""
    return _INT.pack(MISMATCH)


def encode_duplicate() -> bytes:
    """A proxy's answer to a second server of a key that is served already."""
    return _INT.pack(DUPLICATE)


def _greeting(data: bytes) -> Union[Greeting, int]:
    """The greeting in ``data``; while it is incomplete, the number of bytes it has in all, as far as known."""
    if len(data) < 8:
        return 8
    length = _INTS.unpack_from(data)[1]
    if length < 0:
        raise ProtocolError(f"a session's key has the length {length}")
    if length > MAX_GREETING:
        raise LimitExceeded(f"a session's key of {length} bytes; at most {MAX_GREETING}")
    return parse_greeting(data[8:]) if len(data) == 8 + length else 8 + length


def _opening(data: bytes) -> Union[Greeting, int]:
    if data[:1] == b"\x16":
        raise ProtocolError("a TLS connection, and this port does not speak TLS")
    if not _MAGIC_BYTES.startswith(data[:4]):
        raise first_bytes.OtherProtocol(first_bytes.SESSION, data)
    greeting = _greeting(data)
    if isinstance(greeting, Greeting) and not greeting.role:
        raise ProtocolError("a session opens with client:KEY or server:KEY")
    return greeting


def _answer(data: bytes) -> Union[HandshakeAnswer, int]:
    if len(data) < 4:
        return 4
    code = _NAMES.get(_INT.unpack_from(data)[0])
    if code is None:
        raise first_bytes.OtherProtocol(first_bytes.SESSION, data)
    if code != _NAMES[MAGIC]:
        return HandshakeAnswer(code)
    greeting = _greeting(data)
    return greeting if isinstance(greeting, int) else HandshakeAnswer(code, greeting)


class _HandshakeReader(Generic[Parsed]):
    """Takes bytes until the message, ``result``, is complete. ``needed``: the bytes to read next, 0 at the end."""

    def __init__(self, parse: Callable[[bytes], Union[Parsed, int]]) -> None:
        self._parse = parse  # returns the message in some bytes, or the number of bytes it has in all
        self._received = b""
        self.needed = 0
        self.result: Parsed | None = None
        self.receive(b"")

    def receive(self, data: bytes) -> Parsed | None:
        """Take at most ``needed`` bytes. Returns the message once it is complete, None before.

        Raises ProtocolError for anything that is not a handshake, LimitExceeded for a greeting longer
        than MAX_GREETING, ValueError if there are more than ``needed`` bytes.
        """
        if len(data) > self.needed:
            raise ValueError(f"{len(data)} bytes where {self.needed} were needed")
        self._received += data
        parsed = self._parse(self._received)
        if isinstance(parsed, int):
            self.needed = parsed - len(self._received)
        else:
            self.needed, self.result = 0, parsed
        return self.result


class OpeningReader(_HandshakeReader[Greeting]):
    """Reads the opening of a client, or of a server that dials a proxy. For servers and proxies."""

    def __init__(self) -> None:
        super().__init__(_opening)


class AnswerReader(_HandshakeReader[HandshakeAnswer]):
    """Reads the answer to an opening. For clients, and for servers that dial a proxy."""

    def __init__(self) -> None:
        super().__init__(_answer)


def parse_greeting(data: bytes) -> Greeting:
    """Parse ``client:KEY -option=value …``. Raises ProtocolError for bytes that are no text and for invalid options."""
    try:
        words = data.decode("utf-8").split()
    except UnicodeDecodeError:
        raise ProtocolError("the key of a session is not UTF-8 text") from None
    role, colon, key = words[0].partition(":") if words else ("", "", "")
    if not colon or role not in (CLIENT, SERVER):
        role, key = "", words[0] if words else ""
    return Greeting(role, key, _parse_options(words[1:]))


def format_greeting(greeting: Greeting) -> str:
    """The inverse of :func:`parse_greeting`. Raises UsageError for a greeting that has no such text."""
    options = greeting.options
    if options.session is not None and options.timeout_s is not None:
        # TVM's C++ server reads only the first option, as digits; its Java server reads all of them as one number.
        raise UsageError("-session= goes without -timeout=: the limit of such a session travels in HELLO")
    offered = "1" if options.offered else None
    timeout = None if options.timeout_s is None else repr(options.timeout_s)
    known = zip(_OPTIONS, (options.session, options.serve, options.server, offered, timeout))
    key = f"{greeting.role}:{greeting.key}" if greeting.role else greeting.key
    words = [key, *(f"{name}={value}" for name, value in known if value is not None), *options.others]
    for word in words:
        if word.split() != [word] or not word.isprintable():
            raise UsageError(f"a key or option of a session is empty, or contains white space: {word!r}")
    return " ".join(words)


def _parse_options(words: list[str]) -> Options:
    known: dict[str, str] = {}
    others = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in _OPTIONS:
            known[name] = value
        else:
            others.append(word)
    session, serve, server, offered, timeout = map(known.get, _OPTIONS)
    return Options(session, serve, server, offered == "1", _parse_timeout(timeout), tuple(others))


def _parse_timeout(text: str | None) -> float | None:
    """The limit in seconds. None for no limit: no option, as TVM's client sends, or 0, as in TVM's C++ server."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ProtocolError(f"-timeout= wants seconds, not {text[:40]!r}")
    return seconds or None
