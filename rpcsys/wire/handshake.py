"""The opening of a session: who calls, for which key, speaking what; and the answer.

TVM's handshake, all integers int32 little-endian::

    opening   0xFF271 | length | "client:MATCHKEY options" or "server:KEY options"
    answer    0xFF271 | length | "server:KEY options"      (a proxy sends each side the other's greeting)
              0xFF272                                       duplicate: the key is served already
              0xFF273                                       mismatch: no such key, or it is used up

Rules this file keeps:

- A reader is told how many bytes to read next and is never told to read past the greeting: what
  stands behind it belongs to TVM's runtime or to the session, and may already be there.
- The length is checked before the greeting is read.
- Options are words after the key. Ones nobody knows are kept aside, as TVM's server ignores them.
- With ``-session=`` no option that TVM defines is sent: its C++ server reads only the first option and
  wants digits, its Java server takes all of them for one number. Limits travel in HELLO instead.

Known weakness: a greeting is split at white space, so a key that contains any cannot be said here.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Generic, TypeVar

from rpcsys.errors import LimitExceeded, ProtocolError, UsageError

MAGIC = 0xFF271
DUPLICATE = 0xFF272
MISMATCH = 0xFF273

SESSION = "rpcsys/1"
"""What ``-session=`` says when both ends speak the protocol of :mod:`rpcsys.wire.frames`."""

MAX_GREETING = 4096
"""Bytes of a key with its options. A match key is its key and 33 characters; all options together
need a few hundred bytes; and a stranger's connection can make a daemon keep no more than this."""

CLIENT = "client"
SERVER = "server"

_INT = struct.Struct("<i")
_INTS = struct.Struct("<ii")
_OPTIONS = ("-session", "-serve", "-server", "-offered", "-timeout")
_NAMES = {MAGIC: "success", DUPLICATE: "duplicate", MISMATCH: "mismatch"}

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Options:
    """The words behind the key.

    ``session``: the session protocol asked for or offered, None for TVM's own; ``serve``: the deployed
    module to share; ``server``: the identity of a server that dials a proxy; ``offered``: its key is a match key
    that it offers to the tracker itself (a proxy registers nothing for it); ``timeout_s``: TVM's time
    limit in seconds (None: no limit); ``others``: words that nobody here knows, as they came.
    """

    session: str | None = None
    serve: str | None = None
    server: str | None = None
    offered: bool = False
    timeout_s: float | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Greeting:
    """One side's name and wishes: ``role`` is ``client``, ``server``, or empty when it is neither."""

    role: str
    key: str
    options: Options = Options()


@dataclass(frozen=True)
class HandshakeAnswer:
    """What came back: ``code`` is ``success``, ``duplicate`` or ``mismatch``; a greeting on success."""

    code: str
    greeting: Greeting | None = None

    @property
    def speaks_rpcsys(self) -> bool:
        """Whether the peer is a server that speaks rpcsys/1.

        Both marks are needed: a Java server of TVM answers with the client's own greeting.
        """
        said = self.greeting
        return said is not None and said.role == SERVER and said.options.session == SESSION


def encode_greeting(greeting: Greeting) -> bytes:
    """An opening, or the answer to one that was accepted: they look the same.

    Raises UsageError for a key or an option that cannot be said in a greeting.
    """
    text = format_greeting(greeting).encode("utf-8")
    if len(text) > MAX_GREETING:
        raise UsageError(f"a key with its options may have {MAX_GREETING} bytes, not {len(text)}")
    return _INTS.pack(MAGIC, len(text)) + text


def encode_mismatch() -> bytes:
    """The answer when nobody here has the key."""
    return _INT.pack(MISMATCH)


def encode_duplicate() -> bytes:
    """A proxy's answer to a second server of a key that is served already."""
    return _INT.pack(DUPLICATE)


class _GreetingReader(Generic[Parsed]):
    """Takes bytes until the message is whole. ``needed`` says how many may be read next, 0 when done."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 8
        self._head_done = False
        self.result: Parsed | None = None

    @property
    def needed(self) -> int:
        """Bytes to read next: reading more would take what belongs to the session."""
        return 0 if self.result is not None else self._wanted - len(self._buffer)

    def receive(self, data: bytes) -> Parsed | None:
        """Take at most ``needed`` bytes; the message once it is whole, None before.

        Raises ProtocolError for anything that is not a handshake, LimitExceeded for a greeting longer
        than MAX_GREETING, ValueError if there are more than ``needed`` bytes.
        """
        if len(data) > self.needed:
            raise ValueError(f"{len(data)} bytes where {self.needed} were needed")
        self._buffer += data
        self._look()
        return self.result

    def _look(self) -> None:
        raise NotImplementedError

    def _greeting(self) -> Greeting | None:
        """The greeting once the buffer holds it; sets how much is wanted as soon as that is known."""
        if not self._head_done and len(self._buffer) == 8:
            self._wanted = 8 + _checked_length(_INTS.unpack_from(self._buffer)[1])
            self._head_done = True
        if self._head_done and len(self._buffer) == self._wanted:
            return parse_greeting(bytes(self._buffer[8:]))
        return None


class OpeningReader(_GreetingReader[Greeting]):
    """Reads the opening of a client or of a dialling server: the side of servers and proxies."""

    def _look(self) -> None:
        magic = _INT.pack(MAGIC)
        if bytes(self._buffer[:4]) != magic[: len(self._buffer)]:
            raise ProtocolError(_not_an_opening(bytes(self._buffer[:4])))
        greeting = self._greeting()
        if greeting is not None and greeting.role not in (CLIENT, SERVER):
            raise ProtocolError("a session opens with client:KEY or server:KEY")
        self.result = greeting


class AnswerReader(_GreetingReader[HandshakeAnswer]):
    """Reads the answer to an opening: the side of clients and of servers that dial a proxy."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted = 4

    def _look(self) -> None:
        if len(self._buffer) < 4:
            return
        code = _INT.unpack_from(self._buffer)[0]
        if code not in _NAMES:
            raise ProtocolError("the peer is no RPC server or proxy: its answer has no known code")
        if code != MAGIC:
            self.result = HandshakeAnswer(_NAMES[code])
            return
        self._wanted = max(self._wanted, 8)
        greeting = self._greeting()
        if greeting is not None:
            self.result = HandshakeAnswer(_NAMES[code], greeting)


def parse_greeting(data: bytes) -> Greeting:
    """``client:KEY -option=value …``. Raises ProtocolError if it is no text or its options make no sense."""
    try:
        words = data.decode("utf-8").split()
    except UnicodeDecodeError:
        raise ProtocolError("the key of a session is not UTF-8 text") from None
    role, colon, key = words[0].partition(":") if words else ("", "", "")
    if not colon or role not in (CLIENT, SERVER):
        role, key = "", words[0] if words else ""
    return Greeting(role, key, _parse_options(words[1:]))


def format_greeting(greeting: Greeting) -> str:
    """The inverse of :func:`parse_greeting`. Raises UsageError for what cannot be said."""
    options = greeting.options
    if options.session is not None and options.timeout_s is not None:
        raise UsageError("-session= goes without -timeout=: the limit of such a session travels in HELLO")
    prefix = greeting.role + ":" if greeting.role else ""
    words = [prefix + greeting.key, *_format_options(options)]
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
    return Options(
        session=known.get("-session"),
        serve=known.get("-serve"),
        server=known.get("-server"),
        offered=known.get("-offered") == "1",
        timeout_s=_parse_timeout(known.get("-timeout")),
        others=tuple(others),
    )


def _parse_timeout(text: str | None) -> float | None:
    """Seconds; none and 0 are no limit, as in TVM's client (which leaves it out) and its C++ server."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ProtocolError(f"-timeout= wants seconds, not {text[:40]!r}")
    return seconds or None


def _format_options(options: Options) -> list[str]:
    named = [("-session=", options.session), ("-serve=", options.serve), ("-server=", options.server)]
    words = [name + value for name, value in named if value is not None]
    if options.offered:
        words.append("-offered=1")
    if options.timeout_s is not None:
        words.append(f"-timeout={options.timeout_s!r}")
    return words + list(options.others)


def _checked_length(length: int) -> int:
    if length < 0:
        raise ProtocolError(f"a session's key has the length {length}")
    if length > MAX_GREETING:
        raise LimitExceeded(f"a session's key of {length} bytes; at most {MAX_GREETING}")
    return length


def _not_an_opening(start: bytes) -> str:
    if start[:1] == b"\x16":
        return "a TLS connection, and this port does not speak TLS"
    return f"not the opening of a session: it starts with {start.hex()}"
