"""The opening of an encrypted session, in the session's own process: TLS ends here, and the secret is compared here.

Loaded only where sessions are encrypted: ``ssl`` takes 5 MB.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any, List, Optional, Tuple

from rpcsys.errors import NoTls, ProtocolError
from rpcsys.link import identity, tls
from rpcsys.link.openssl import ssl
from rpcsys.secure_stream import SecureStream, open_secure
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session.outgoing import error_frame
from rpcsys.stream import Ended, Stream
from rpcsys.wire import handshake
from rpcsys.wire.handshake import CLIENT, SERVER, SESSION, Greeting, Options
from rpcsys.wire.keys import same

OPENING_S = 5.0  # for the handshake and the greeting inside
#: A context for the next client.
_ahead: List[ssl.SSLContext] = []
SESSIONS_ONLY = "this server's key is for sessions: it serves no deployed modules, and takes none, over TLS"


def accept(sock: socket.socket, job: Job, *settings: Any) -> Optional[Tuple[Stream, bytes]]:
    """The stream of a client that has proven itself, and the answer to its greeting; None for any other client.

    ``settings`` as those of `SecureStream`.
    """
    until = time.monotonic() + OPENING_S
    context = _ahead.pop() if _ahead else tls.nobodys_context()
    tls.prove(context, identity.from_seed(bytes.fromhex(job.seed)))
    with contextlib.suppress(Ended, NoTls, ProtocolError, TimeoutError, OSError):
        if job.reply:
            sock.sendall(job.reply)
        stream = open_secure(sock, tls.Tunnel(context, server=True), *settings)
        stream.handshake(until)
        greeting = _greeting(stream, until)
        if not (same(greeting.key, job.matchkey) and greeting.role == CLIENT and greeting.options.session == SESSION):
            stream.send_at_once([handshake.encode_mismatch()])
            return None
        answer = handshake.encode_greeting(Greeting(SERVER, job.key, Options(session=SESSION)))
        if greeting.options.serve is None:
            return stream.finished(), answer
        stream.send_at_once([answer, *error_frame(0, "ServerRefused", SESSIONS_ONLY)])
    return None


def _greeting(stream: SecureStream, until: float) -> Greeting:
    reader = handshake.OpeningReader()
    greeting = None
    while greeting is None:
        greeting = reader.receive(stream.receive_raw(reader.needed, until))
    return greeting


def rehearse() -> None:
    """Open a tunnel, and make the next one's context: OpenSSL prepares much, and writes to pages that are shared."""
    _ahead[:] = [tls.nobodys_context()]
    own = identity.new()
    server = tls.Tunnel(tls.server_context(own), server=True)
    client = tls.Tunnel(tls.client_context(), server=False, pins=(own.pin,))
    while not (client.handshake() and server.handshake()):
        server.feed(client.outgoing())
        server.handshake()
        client.feed(server.outgoing())
