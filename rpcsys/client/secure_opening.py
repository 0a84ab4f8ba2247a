"""Opening a session with a pinned match key: always encrypted, and nothing is said before the server has proven itself.

Loaded only with such a key: ``ssl`` takes 5 MB.
"""

from __future__ import annotations

import functools
import socket
from typing import NoReturn, Optional

from rpcsys.client import answers
from rpcsys.errors import NoTls, ServerRefused, ServerUnreachable, WrongPin
from rpcsys.link import tls
from rpcsys.link.openssl import ssl
from rpcsys.secure_stream import SecureStream, open_secure
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames, handshake, last_words
from rpcsys.wire.frames import Frame
from rpcsys.wire.limits import Limits
from rpcsys.wire.pinned_keys import PinnedMatchKey
from rpcsys.wire.reader import FrameReader


class SecureOpening:
    """The client's side of one opening: :attr:`first` is sent, the answer in the clear received, then `finish`."""

    def __init__(self, match_key: PinnedMatchKey, where: str) -> None:
        """``where``: the server's address, for errors."""
        self._match_key = match_key
        self._where = where
        self._tunnel = tls.Tunnel(_context(), server=False, pins=(match_key.pin,))
        self._tunnel.handshake()
        greeting = handshake.Greeting(handshake.CLIENT, match_key.name, handshake.Options(session=handshake.SESSION))
        #: The greeting in the clear, which has the public name only, and TLS's first bytes at once behind it.
        self.first = handshake.encode_greeting(greeting) + self._tunnel.outgoing()

    def finish(self, sock: socket.socket, serve: Optional[str], until: float, limits: Limits) -> Stream:
        """The stream, after the handshake and the greetings inside. ``until``: monotonic time.

        Raises `WrongPin`, `NoTls`, `ServerRefused`, `ServerUnreachable`, `ProtocolError`; the error in a server's last
        words.
        """
        find_last = functools.partial(_last_frame, match_key=self._match_key)
        stream = open_secure(sock, self._tunnel, limits, None, find_last)
        try:
            stream.handshake(until)
            options = handshake.Options(session=handshake.SESSION, serve=serve)
            greeting = handshake.Greeting(handshake.CLIENT, self._match_key.text, options)
            stream.send([handshake.encode_greeting(greeting)])
            answer = _answer(stream, until)
        except WrongPin as error:
            raise WrongPin(
                f"what answers at {self._where} is not the server of this match key ({error}): a wrong address, or "
                "somebody in between; nothing was sent"
            ) from None
        except TimeoutError:
            raise ServerUnreachable(f"{self._where} accepted the session, and did not encrypt it in time") from None
        except (Ended, NoTls) as error:
            self._failed(stream, error)
        if answer.code != "success":
            raise ServerRefused(
                f"the server at {self._where} does not take this match key's secret: it is another session's, or was "
                "changed; request a device again"
            )
        return stream.finished()

    def _failed(self, stream: SecureStream, error: Exception) -> NoReturn:
        frame = stream.last_frame()
        if frame is not None:
            raise answers.error_of(frame) from None
        raise NoTls(
            f"the server at {self._where} closed the handshake ({error}): it is older than this client, or something "
            "in between changes bytes"
        ) from None


def _answer(stream: SecureStream, until: float) -> handshake.HandshakeAnswer:
    reader = handshake.AnswerReader()
    answer = None
    while answer is None:
        answer = reader.receive(stream.receive_raw(reader.needed, until))
    return answer


def _last_frame(tail: bytes, match_key: PinnedMatchKey) -> Optional[Frame]:
    """The ERROR frame of what a server says at last."""
    fields = last_words.find(tail, match_key)
    if fields is None:
        return None
    return FrameReader().feed(b"".join(frames.encode(frames.ERROR, 0, fields)))[0]


@functools.lru_cache(maxsize=None)
def _context() -> ssl.SSLContext:
    return tls.client_context()
