"""TLS 1.3 between bytes and bytes; sockets are the caller's.

A certificate is recognised by its pin and nothing else: `PIN_ALONE` is the one place that switches OpenSSL's own checks
off, and :meth:`Tunnel.handshake` the one that compares.
"""

from __future__ import annotations

import os
import ssl
import threading
from typing import Collection, List, Optional, Union

from rpcsys.errors import NoTls, WrongPin
from rpcsys.link import identity
from rpcsys.link.identity import Identity
from rpcsys.wire import keys

#: Bytes that are encrypted or decrypted in one step: more fill the CPU's cache, fewer take more steps.
STRETCH = 256 << 10
PIN_ALONE = ssl.CERT_NONE

Data = Union[bytes, bytearray, memoryview]


def client_context() -> ssl.SSLContext:
    """The context of an end that recognises the other by its pin."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = PIN_ALONE
    return _modern(context)


def server_context(own: Identity) -> ssl.SSLContext:
    """The context of an end that proves itself to be ``own``."""
    context = _modern(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.num_tickets = 0  # nobody resumes: a token is said on every connection
    # OpenSSL loads keys from paths only, and this one is on no disk.
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, own.pem().encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _modern(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


class Tunnel:
    """One end of a TLS connection, over memory. Two threads may use it: one to read, one to write.

    What :meth:`feed` takes is ciphertext that was received, what :meth:`outgoing` returns is to be sent, in that order.
    """

    def __init__(self, context: ssl.SSLContext, *, server: bool, pins: Collection[str] = ()) -> None:
        """``pins``: those of which the other end's certificate has one; a client needs at least one."""
        assert server or pins
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=server)
        self._pins = tuple(pins)
        self._lock = threading.Lock()  # OpenSSL's object is for one thread at a time; no operation waits
        self.open = False

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is done. Until then :meth:`outgoing` has only handshakes.

        Raises `WrongPin`: the other end is someone else. Raises `NoTls`: it does not speak TLS 1.3.
        """
        with self._lock:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                raise NoTls(f"the TLS handshake failed: {reason(error)}") from None
            found = self._certificate_pin()
        if self._pins and not any(found is not None and keys.same(found, pin) for pin in self._pins):
            raise WrongPin(f"its key is sha256:{(found or 'none')[:8]}…, and not that of this lab")
        self.open = True
        return True

    def _certificate_pin(self) -> Optional[str]:
        certificate = self._tls.getpeercert(binary_form=True)
        return identity.pin(certificate) if certificate else None

    @property
    def pending(self) -> bool:
        """Whether bytes were received that :meth:`read_into` has not returned yet, if only a part of a record."""
        return bool(self._arrived.pending or self._tls.pending())

    def feed(self, data: Data) -> None:
        """Take ciphertext that was received."""
        self._arrived.write(data)

    def feed_end(self) -> None:
        """Take note that the connection has ended."""
        self._arrived.write_eof()

    def read_into(self, space: memoryview) -> int:
        """Decrypt into ``space``; the number of bytes, 0 if nothing whole has arrived. May leave bytes to be sent.

        Raises EOFError: the other end has closed the connection, by TLS's own word. Raises `ssl.SSLError`: it was cut,
        or bytes were changed on the way.
        """
        count = 0
        with self._lock:
            try:
                while count < len(space):
                    got = int(self._tls.read(len(space) - count, space[count:]))
                    if not got:
                        break
                    count += got
                if not count and space:
                    raise EOFError("closed by the other end")
            except ssl.SSLWantReadError:
                pass
        return count

    def write(self, pieces: Collection[Data]) -> None:
        """Encrypt pieces for :meth:`outgoing`. Small ones are joined: a record has 22 bytes of its own."""
        with self._lock:
            for piece in _joined(pieces):
                for start in range(0, len(piece), STRETCH):
                    self._tls.write(piece[start : start + STRETCH])

    def outgoing(self) -> bytes:
        """The ciphertext that is to be sent, at once and in this order."""
        return self._leaving.read()

    def close(self) -> None:
        """Say in TLS's own word that nothing follows; :meth:`outgoing` has it."""
        with self._lock:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # the other end has not answered, and need not


def reason(error: ssl.SSLError) -> str:
    """What OpenSSL reports, in lower case and without its own numbers."""
    return (error.reason or str(error)).lower().replace("_", " ")


def _joined(pieces: Collection[Data]) -> List[memoryview]:
    """The pieces as bytes, neighbours that are small in one."""
    joined: List[memoryview] = []
    small: List[Data] = []
    for piece in map(_octets, pieces):
        if len(piece) < 16 << 10:
            small.append(piece)
            continue
        if small:
            joined.append(memoryview(b"".join(small)))
            small = []
        joined.append(piece)
    return [*joined, memoryview(b"".join(small))] if small else joined


def _octets(piece: Data) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
