"""A session's stream through TLS, ended in the session's own process; loaded in a closed lab only.

Ciphertext is received into memory of its own, cut into TLS's records, and whole records are given to OpenSSL. So each
byte can be counted from outside: Python looks for signals inside OpenSSL's calls, too, and a handler that raises there
takes the result of the call with it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any, Callable, List, NoReturn, Optional, Sequence, Tuple, cast

from rpcsys import stream as streams
from rpcsys.compiled import speedups
from rpcsys.errors import NoTls
from rpcsys.link import tls
from rpcsys.link.openssl import ssl
from rpcsys.link.tls import STRETCH, Tunnel
from rpcsys.stream import BLOCKING, DONT_WAIT, NOT_BLOCKING, Action, Ended, PythonStream, Stream
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.limits import DEFAULT, Limits
from rpcsys.wire.memory import Pool

#: RFC 8446, section 5: a record's header, the type of its content, and what authenticates it.
_HEADER_BYTES, _TYPE_BYTES, _TAG_BYTES = 5, 1, 16
_OVERHEAD = _HEADER_BYTES + _TYPE_BYTES + _TAG_BYTES
_MAX_RECORD = (16 << 10) + 256
_KINDS = range(20, 24)
#: Bytes that may lie before the next ones to be received. A record is not larger, and has some of them before it.
_BEFORE = 64 << 10
#: The end of what was received, in which a server's last words are looked for, and the seconds to wait for them.
_TAIL = 2 << 10
_LAST_S = 1.0
_ALL = -1
_TWICE = "it was interrupted twice in the middle of a record"

#: Finds a frame in a server's last words, the end of what was received; None if it is no frame that can be believed.
FindLast = Callable[[bytes], Optional[Frame]]


class SecureStream(PythonStream):
    """Frames through an open `Tunnel`."""

    def __init__(
        self,
        sock: socket.socket,
        tunnel: Tunnel,
        limits: Limits = DEFAULT,
        pool: Optional[Pool] = None,
        find_last: Optional[FindLast] = None,
    ) -> None:
        super().__init__(sock, limits, pool)
        self._limits = limits
        self._tunnel = tunnel
        self._find_last = find_last
        self._cipher = memoryview(bytearray(_BEFORE + STRETCH))
        # In ``cipher``: where the bytes begin that OpenSSL lacks, and how many of them it has got since; where all of
        # them end, and how many have come behind. No handler interrupts the step that fills a list.
        self._extent: Tuple[int, List[int], int, List[int]] = (0, [], 0, [])
        self._moved = [0, 0]  # bytes received and encrypted
        # Whether bytes are decrypted, or encrypted, and not counted yet: only a second interruption can leave it so.
        self._reading = self._writing = False
        self._more = False  # whether OpenSSL may hold decrypted bytes
        # Ciphertext that is taken to be sent, and how many bytes of it were sent each time.
        self._leaving: Tuple[List[bytes], List[int]] = ([], [])

    @property
    def held(self) -> bool:
        return bool(self._more or self._tunnel.arrived.pending or self._extent[3])

    @property
    def moved(self) -> int:
        return max(self._moved)

    # -------------------------------------------------------------- opening

    def handshake(self, until: float) -> None:
        """Open the tunnel. What it has to send at last is sent with the next bytes.

        Raises `WrongPin` and `NoTls`; `Ended`, and TimeoutError after ``until`` (monotonic).
        """
        try:
            while not self._tunnel.handshake():
                self._flush(BLOCKING, None)
                self._await(until)
                self._fetch(DONT_WAIT)
                self._feed()
        except EOFError as error:
            raise Ended(str(error)) from None
        except NoTls:
            with contextlib.suppress(OSError):
                self.send_at_once([])  # OpenSSL's reason
            raise

    def receive_raw(self, most: int, until: float) -> bytes:
        """At least one byte, and at most so many, as they are. Raises as `handshake`."""
        space = memoryview(bytearray(most))
        while True:
            try:
                return bytes(space[: self._receive_into(space, 0, DONT_WAIT)])
            except BlockingIOError:
                self._await(until)
            except (EOFError, OSError) as error:
                raise streams.ended(error) from None
            finally:
                self.settle()

    def _await(self, until: float) -> None:
        """Wait until more has come over the socket. Raises TimeoutError."""
        if not self.wait(max(0.0, until - time.monotonic())):
            raise TimeoutError

    # -------------------------------------------------------------- receiving

    def _receive_into(self, place: memoryview, count: int, flags: int) -> int:
        received = self._received
        received.clear()
        try:
            while not received:
                while not self.held:
                    self._fetch(flags)
                if self._extent[3]:
                    self._feed()
                self._decrypt(place, received)
        except ssl.SSLError as error:
            raise Ended(_why(error)) from None
        except (BlockingIOError, EOFError):
            raise
        except BaseException as error:
            if not received:
                raise
            self.late = error
        return sum(received)

    def _fetch(self, flags: int) -> None:
        """Receive ciphertext once. All that came before is with OpenSSL, but for a part of a record."""
        begin, _, end, _ = self._extent
        self._whole(begin, end)
        if end > _BEFORE:
            # What was sent in the clear may stand behind a part of a record, too: the last bytes before it are kept.
            start = max(0, begin - _TAIL)
            self._cipher[: end - start] = self._cipher[start:end]
            begin, end = begin - start, end - start
        came: List[int] = []
        self._extent = begin, [], end, came
        came.extend(map(self.socket.recv_into, (self._cipher[end:],), (0,), (flags,)))

    def _feed(self) -> None:
        """Give OpenSSL the whole records that have come. Raises EOFError at the connection's end."""
        begin, fed, end, came = self._extent
        if not came[0]:
            raise EOFError("the connection was closed")
        begin, end = begin + sum(fed), end + came[0]
        self._moved[0] += came[0]
        whole = self._whole(begin, end)
        if whole > begin:
            fed = []
            self._extent = begin, fed, end - came[0], came
            fed.extend(map(self._tunnel.arrived.write, (self._cipher[begin:whole],)))
        self._extent = whole, [], end, []

    def _whole(self, begin: int, end: int) -> int:
        """Where the last whole record ends. Raises `Ended` where a record should begin and none does."""
        cipher, at = self._cipher, begin
        while end - at >= _HEADER_BYTES:
            size = cipher[at + 3] << 8 | cipher[at + 4]
            if cipher[at] not in _KINDS or size > _MAX_RECORD:
                if at > begin:
                    break
                raise Ended("what was received is no TLS")
            if end - at < _HEADER_BYTES + size:
                break
            at += _HEADER_BYTES + size
        return at

    def _decrypt(self, place: memoryview, received: List[int]) -> None:
        """Decrypt into ``place`` what OpenSSL holds, as far as it fits; each part's bytes are counted in ``received``.

        Raises EOFError: the other end says that nothing follows.
        """
        tunnel = self._tunnel
        with tunnel.lock:
            while place and (self._more or tunnel.arrived.pending):
                try:
                    self._read(place, received)
                except ssl.SSLWantReadError:
                    self._more = False
                    return
                except ssl.SSLError:
                    if not received:
                        raise
                    return  # what came before is whole; the next read raises it
                count = received[-1]
                self._more = count == len(place)
                if not count:
                    received.pop()
                    if received:
                        return
                    raise EOFError("closed by the other end")
                place = place[count:]

    def _read(self, place: memoryview, received: List[int]) -> None:
        """Decrypt a record, or a part of one, and count its bytes even if a handler raises meanwhile."""
        if self._reading:
            raise Ended(_TWICE)
        tunnel, known = self._tunnel, len(received)
        read = cast("Callable[[int, memoryview], int]", tunnel.tls.read)
        before = tunnel.arrived.pending, tunnel.tls.pending() if self._more else 0
        self._more = self._reading = True
        try:
            received.extend(map(read, (len(place),), (place,)))
        except ssl.SSLError:
            self._reading = False
            raise
        except BaseException:
            if len(received) == known:
                received.extend(filter(None, (self._uncounted(*before),)))
            self._reading = False
            raise
        self._reading = False

    def _uncounted(self, arrived: int, decrypted: int) -> int:
        """The bytes that a read has decrypted whose result was lost.

        ``arrived`` and ``decrypted``: what OpenSSL held before. A read takes no more than one record, and neither end
        pads records.
        """
        taken = arrived - self._tunnel.arrived.pending
        return (taken - _OVERHEAD if taken else decrypted) - self._tunnel.tls.pending()

    def last_frame(self) -> Optional[Frame]:
        find, self._find_last = self._find_last, None
        _, _, end, came = self._extent
        return find and find(_whole_tail(self.socket, bytes(self._cipher[: end + sum(came)][-_TAIL:])))

    # -------------------------------------------------------------- sending

    def send(
        self,
        pieces: Sequence[Buffer],
        on_full: Optional[Action] = None,
        patient: bool = False,
        begun: Optional[Action] = None,
    ) -> None:
        plain = tls.joined(pieces)
        sent: List[int] = []  # bytes that are encrypted: whatever happens, they are sent before all others
        self._sending = (plain, sent, begun)
        if begun is not None:
            begun()
        flags = BLOCKING if on_full is None or patient else NOT_BLOCKING
        for piece in plain:
            for start in range(0, len(piece), STRETCH):
                self._encrypt(piece[start : start + STRETCH], sent)
                if self._tunnel.leaving.pending >= STRETCH:
                    self._flush(flags, on_full)
        self._flush(flags, on_full)
        self._sending = streams.NOTHING

    def _encrypt(self, plain: memoryview, sent: List[int]) -> None:
        """Encrypt bytes, and count them in ``sent`` even if a handler raises meanwhile."""
        if self._writing:
            raise Ended(_TWICE)
        tunnel, known = self._tunnel, len(sent)
        self._moved[1] += len(plain)
        with tunnel.lock:
            before = tunnel.leaving.pending
            self._writing = True
            try:
                sent.extend(map(tunnel.tls.write, (plain,)))
            except ssl.SSLError as error:
                raise Ended(_why(error)) from None
            except BaseException:
                if len(sent) == known and tunnel.leaving.pending != before:
                    sent.append(len(plain))
                self._writing = False
                raise
            self._writing = False

    def _flush(self, flags: int, on_full: Optional[Action]) -> None:
        """Send the ciphertext. Without ``on_full`` it waits; it raises BlockingIOError if ``flags`` forbid this."""
        tunnel = self._tunnel
        while True:
            taken, sent = self._leaving
            if not taken:
                if not tunnel.leaving.pending:
                    return
                with tunnel.lock:
                    taken.extend(map(tunnel.leaving.read, (_ALL,)))
            data, done = taken[0], sum(sent)
            try:
                sent.extend(map(self.socket.send, (memoryview(data)[done:] if done else data,), (flags,)))
            except BlockingIOError:
                if on_full is not None:
                    on_full()
                elif flags & DONT_WAIT:
                    raise
            except OSError as error:
                raise streams.ended(error) from None
            if sum(sent) == len(data):
                self._leaving = [], []

    def send_at_once(self, pieces: Sequence[Buffer]) -> None:
        for piece in tls.joined(pieces):
            self._encrypt(piece, [])
        try:
            self._flush(NOT_BLOCKING, None)
        except Ended as end:
            raise OSError(str(end)) from None

    def finished(self) -> Stream:
        """What goes on with the session after its opening: a stream of the C library, where it can be used."""
        if not streams.SPEEDUPS:
            return self
        begin, fed, end, came = self._extent
        left = bytes(self._cipher[begin + sum(fed) : end + sum(came)])
        tunnel = self._tunnel
        parts = tunnel.tls, tunnel.arrived, tunnel.leaving, ssl.SSLWantReadError, ssl.SSLError, _why, self._more, left
        return NativeSecureStream(self.socket, self._limits, parts, self._find_last)


if speedups is not None:

    class NativeSecureStream(streams.NativeStream):
        """The same by the library, for a session that is open."""

        def __new__(cls, sock: socket.socket, limits: Limits, tunnel: Any, _: Optional[FindLast]) -> NativeSecureStream:
            return cast("NativeSecureStream", super().__new__(cls, sock, limits, tunnel))

        def __init__(self, sock: socket.socket, limits: Limits, _: Any, find_last: Optional[FindLast]) -> None:
            super().__init__(sock, limits)
            self._find_last = find_last

        def last_frame(self) -> Optional[Frame]:
            find, self._find_last = self._find_last, None
            return find and find(_whole_tail(self.socket, self.tail()))

        def send_at_once(self, pieces: Sequence[Buffer]) -> None:
            try:
                self.send(pieces, _leave)
            except _Full:
                pass
            except Ended as end:
                raise OSError(str(end)) from None


class _Full(Exception):
    """The system takes no more."""


def _leave() -> NoReturn:
    raise _Full


def _why(error: ssl.SSLError) -> str:
    return f"TLS: {tls.reason(error)}"


def _whole_tail(sock: socket.socket, tail: bytes) -> bytes:
    """The last bytes of a connection, of which ``tail`` is received."""
    until = time.monotonic() + _LAST_S
    with contextlib.suppress(OSError):
        while True:
            sock.settimeout(max(0.001, until - time.monotonic()))
            more = sock.recv(_TAIL)
            if not more:
                break
            tail = (tail + more)[-_TAIL:]
    return tail


def open_secure(sock: socket.socket, tunnel: Tunnel, *settings: Any) -> SecureStream:
    """A stream over ``sock``, through its open tunnel; ``settings`` as those of `SecureStream`."""
    streams.prepare(sock)
    return SecureStream(sock, tunnel, *settings)
