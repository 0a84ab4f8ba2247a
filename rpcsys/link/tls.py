"""TLS 1.3 between bytes and bytes; sockets are the caller's.

A certificate is recognised by its pin and nothing else: `PIN_ALONE` is the one place that switches OpenSSL's own checks
off, and :meth:`Tunnel.handshake` the one that compares.
"""

from __future__ import annotations

import os
import threading
from typing import Collection, List, Optional, Union

from rpcsys.errors import NoTls, WrongPin
from rpcsys.link import identity
from rpcsys.link.identity import Identity
from rpcsys.link.openssl import ssl
from rpcsys.wire import keys

#: Bytes that are encrypted or decrypted in one step: more fill the CPU's cache, fewer take more steps.
STRETCH = 256 << 10
PIN_ALONE = ssl.CERT_NONE

#: OpenSSL's SSL_OP_PRIORITIZE_CHACHA, which Python does not name: a client that has ChaCha20 first gets it.
_CHACHA20_IF_FIRST = 1 << 21

Data = Union[bytes, bytearray, memoryview]


def client_context() -> ssl.SSLContext:
    """The context of an end that recognises the other by its pin."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = PIN_ALONE
    return _modern(context)


def server_context(own: Identity) -> ssl.SSLContext:
    """The context of an end that proves itself to be ``own``."""
    return prove(nobodys_context(), own)


def nobodys_context() -> ssl.SSLContext:
    """A context for `prove`, which takes most of the time and can be made ahead."""
    context = _modern(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | _CHACHA20_IF_FIRST
    context.num_tickets = 0  # nobody resumes: a token is said on every connection
    return context


def prove(context: ssl.SSLContext, own: Identity) -> ssl.SSLContext:
    """Have an end prove itself to be ``own``. Returns the context."""
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
    context.options |= ssl.OP_NO_COMPRESSION
    return context


class Tunnel:
    """One end of a TLS connection, over memory. Two threads may use it: one to read, one to write.

    What :meth:`feed` takes is ciphertext that was received, what :meth:`outgoing` returns is to be sent, in that order.

    ``tls``, ``arrived`` and ``leaving``, OpenSSL's object and the ciphertext before and behind it, are for a stream
    that counts every byte itself: it holds ``lock`` while it uses them.
    """

    def __init__(self, context: ssl.SSLContext, *, server: bool, pins: Collection[str] = ()) -> None:
        """``pins``: those of which the other end's certificate has one; a client needs at least one."""
        assert server or pins
        self.arrived, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.arrived, self.leaving, server_side=server)
        self._pins = tuple(pins)
        self.lock = threading.Lock()  # OpenSSL's object is for one thread at a time; no operation waits
        self.open = False
        self.pin = ""  # the other end's, once its certificate was seen
        self.drained = True  # whether the last read has returned all that there was, and no end

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is done. Until then :meth:`outgoing` has only handshakes.

        Raises `WrongPin`: the other end is someone else. Raises `NoTls`: it does not speak TLS 1.3.
        """
        with self.lock:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                raise NoTls(f"the TLS handshake failed: {reason(error)}") from None
            found = self._certificate_pin()
        self.pin = found or ""
        if self._pins and not any(keys.same(self.pin, pin) for pin in self._pins):
            raise WrongPin(f"its key is sha256:{self.pin[:8] or 'none'}…")
        self.open = True
        return True

    def _certificate_pin(self) -> Optional[str]:
        certificate = self.tls.getpeercert(binary_form=True)
        return identity.pin(certificate) if certificate else None

    @property
    def pending(self) -> bool:
        """Whether bytes were received that :meth:`read_into` has not returned yet, if only a part of a record."""
        with self.lock:
            return self._holds()

    def _holds(self) -> bool:
        return bool(self.arrived.pending or self.tls.pending())

    def feed(self, data: Data) -> None:
        """Take ciphertext that was received."""
        with self.lock:  # OpenSSL uses the memory without the interpreter's lock
            self.arrived.write(data)

    def feed_end(self) -> None:
        """Take note that the connection has ended."""
        with self.lock:
            self.arrived.write_eof()

    def read_into(self, space: memoryview) -> int:
        """Decrypt into ``space``; the number of bytes, 0 if nothing whole has arrived. May leave bytes to be sent.

        Raises EOFError: the other end has closed the connection, by TLS's own word. Raises `ssl.SSLError`: it was cut,
        or bytes were changed on the way.
        """
        with self.lock:
            return self._read_into(space)

    def receive(self, data: Data, space: memoryview) -> int:
        """:meth:`feed` and :meth:`read_into` in one."""
        with self.lock:
            self.arrived.write(data)
            return self._read_into(space)

    def _read_into(self, space: memoryview) -> int:
        count, size = 0, len(space)
        self.drained = True
        try:
            while count < size:
                got = int(self.tls.read(size - count, space[count:] if count else space))
                if not got:
                    break
                count += got
                if not self._holds():
                    return count  # a further read would raise an exception, which takes longer than this
        except ssl.SSLWantReadError:
            return count
        except ssl.SSLZeroReturnError:
            pass  # as a read of nothing, after :meth:`close`
        self.drained = False
        if not count and space:
            raise EOFError("closed by the other end")
        return count

    def write(self, pieces: Collection[Data]) -> None:
        """Encrypt pieces for :meth:`outgoing`."""
        with self.lock:
            for piece in joined(pieces):
                for start in range(0, len(piece), STRETCH):
                    self.tls.write(piece[start : start + STRETCH])

    def seal(self, data: Data) -> bytes:
        """Encrypt bytes; what :meth:`outgoing` returns then."""
        with self.lock:
            for start in range(0, len(data), STRETCH):
                self.tls.write(memoryview(data)[start : start + STRETCH])
            return self.leaving.read()

    def outgoing(self) -> bytes:
        """The ciphertext that is to be sent, at once and in this order."""
        with self.lock:
            return self.leaving.read()

    def close(self) -> None:
        """Say in TLS's own word that nothing follows; :meth:`outgoing` has it."""
        with self.lock:
            try:
                self.tls.unwrap()
            except ssl.SSLError:
                pass  # the other end has not answered, and need not


def reason(error: ssl.SSLError) -> str:
    """What OpenSSL reports, in lower case and without its own numbers."""
    return (error.reason or str(error)).lower().replace("_", " ")


def joined(pieces: Collection[Data]) -> List[memoryview]:
    """The pieces as bytes, neighbours that are small in one: a record has 22 bytes of its own."""
    found: List[memoryview] = []
    small: List[Data] = []
    for piece in map(_octets, pieces):
        if len(piece) < 16 << 10:
            small.append(piece)
            continue
        if small:
            found.append(memoryview(b"".join(small)))
            small = []
        found.append(piece)
    return [*found, memoryview(b"".join(small))] if small else found


def _octets(piece: Data) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
