"""A model's tensors over HTTP/1.1: one call at a time on a connection, and as many connections as calls under way.

Tensors go as binary data behind JSON, or in it to a server that does not take these.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import select
import socket
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from rpcsys.client.inference.urls import InferenceUrl, error_of
from rpcsys.errors import (
    DeadlineExceeded,
    LimitExceeded,
    ProtocolError,
    ServerUnreachable,
    SessionLost,
    ValueNotSupported,
)
from rpcsys.link.tcp import tune
from rpcsys.wire.http1 import (
    CHUNKED,
    DEFAULT,
    TO_THE_END,
    ChunkReader,
    HttpError,
    ResponseHead,
    find_head,
    make_request,
    parse_response,
)
from rpcsys.wire.inference import InferTensor, request_to_json, response_from_json
from rpcsys.wire.memory import Pool

DIAL_S = 5.0  # for a connection of a further call
_MAX_JSON = 256 << 20  # bytes; parsed they take several times as many
_MOST_HEADS = 16  # of answers that only announce another one
_PIECE = 64 << 10  # received at a time; requests up to it are sent in one piece
_HEADS = 256  # requests whose heads are remembered
_BINARY = "binary_tensor_data"
_UNREADABLE = (400, 415, 422, 500)  # statuses with which servers refuse binary data
_log = logging.getLogger("rpcsys.remote")


class HttpAnswer(NamedTuple):
    """``text``: the JSON; ``binary``: the bytes behind it, on a 64-byte boundary."""

    status: int
    text: bytearray
    binary: memoryview


class HttpClientConnection:
    """One connection to a server. Raises `ServerUnreachable`."""

    def __init__(self, url: InferenceUrl, seconds: float) -> None:
        self.kept = True  # whether another request may follow
        self._url = url
        self._came = bytearray()  # received, and not yet used
        self._until = math.inf
        self._pool = Pool()
        try:
            self._sock = socket.create_connection((url.host, url.port), seconds)
            try:
                tune(self._sock)
                if url.scheme == "https":
                    import ssl

                    context = ssl.create_default_context()
                    self._sock = context.wrap_socket(self._sock, server_hostname=url.host)
            except BaseException:
                self._sock.close()
                raise
        except OSError as error:
            raise ServerUnreachable(f"no inference server at {url.place} ({error}); is it running there?") from None

    def ask(self, pieces: Sequence[Any], seconds: Optional[float] = None, method: str = "POST") -> HttpAnswer:
        """Send a request, and receive its answer. Raises `DeadlineExceeded`, `SessionLost`, `ProtocolError`."""
        self._until = math.inf if seconds is None else time.monotonic() + seconds
        self._sock.settimeout(seconds)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then the answer may be here already
                for piece in pieces if sum(map(len, pieces)) > _PIECE else [b"".join(pieces)]:
                    self._sock.sendall(piece)
            return self._answer(method)
        except socket.timeout:
            raise DeadlineExceeded(f"{self._url.text}: no answer within {seconds:g} s; hung up") from None
        except HttpError as error:
            raise ProtocolError(f"{self._url.text}: {error}") from None
        except (OSError, EOFError) as error:
            raise SessionLost(f"{self._url.text}: the connection was lost ({str(error) or 'closed'})") from None

    def is_stale(self) -> bool:
        """Whether the server has closed it, or sent what nobody asked for."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(self._came or poll.poll(0))

    def hang_up(self) -> None:
        """End it, and the call on it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def _answer(self, method: str) -> HttpAnswer:
        for _ in range(_MOST_HEADS):
            head = self._head(method)
            if head.status >= 200:
                break
        else:
            raise HttpError(f"{_MOST_HEADS} answers that only announce another one")
        self.kept = head.keep_alive
        body = self._endless(head.length) if head.length < 0 else None
        size = head.length if body is None else len(body)
        said = head.fields.get("inference-header-content-length", str(size))
        if not said.isdecimal() or len(said) > 15 or int(said) > size:
            raise HttpError(f"Inference-Header-Content-Length {said[:40]!r} of a body of {size} bytes")
        if int(said) > _MAX_JSON:
            raise LimitExceeded(
                f"{self._url.text}: an answer of {said} bytes of JSON, and at most {_MAX_JSON} are read"
            )
        self._came[:0] = body or b""
        text, binary = bytearray(int(said)), self._pool.take(size - int(said))
        self._fill(memoryview(text))
        self._fill(binary)
        return HttpAnswer(head.status, text, binary)

    def _head(self, method: str) -> ResponseHead:
        while True:
            place = find_head(self._came, 0, len(self._came))
            if place is not None:
                head = bytes(self._came[place[0] : place[1]])
                del self._came[: place[1]]
                return parse_response(head, method=method)
            self._came += self._received()

    def _endless(self, length: int) -> bytearray:
        """A body in chunks, or one that ends with its connection."""
        reader = ChunkReader()
        while length == CHUNKED and not reader.done:
            data = self._came or self._received()
            self._came = bytearray(data[reader.feed(bytes(data)) :])
        if length == TO_THE_END:
            reader.body, self._came = self._came, bytearray()
            with contextlib.suppress(EOFError):
                while len(reader.body) <= DEFAULT.body:
                    reader.body += self._received()
                raise HttpError(f"a body of more than {DEFAULT.body} bytes")
        return reader.body

    def _received(self) -> bytes:
        data = self._sock.recv(_PIECE)
        if not data:
            raise EOFError
        self._bound()
        return data

    def _fill(self, place: memoryview) -> None:
        have = min(len(place), len(self._came))
        place[:have] = self._came[:have]
        del self._came[:have]
        while have < len(place):
            count = self._sock.recv_into(place[have:])
            if not count:
                raise EOFError
            have += count
            self._bound()

    def _bound(self) -> None:
        """Shorten the time of the next receive to what is left."""
        if self._until < math.inf:
            left = self._until - time.monotonic()
            if left <= 0:
                raise socket.timeout
            self._sock.settimeout(left)


class HttpModel:
    """A model behind a URL, over HTTP. For any number of threads. Raises `ServerUnreachable`, `Busy`, `SessionLost`."""

    def __init__(self, url: InferenceUrl, seconds: float) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._all: Set[HttpClientConnection] = set()
        self._idle: List[HttpClientConnection] = []
        self._closed = False
        self._heads: Dict[Any, bytes] = {}
        self._binary: Optional[bool] = None  # whether the server takes binary data, if known
        self._idle.append(self._dial(seconds))
        try:
            said = self._get(url.path[: url.path.rindex("/v2/models/") + 3], seconds)
        except BaseException:
            self.close()
            raise
        if isinstance(said, dict) and _BINARY in (said.get("extensions") or ()):
            self._binary = True

    def metadata(self) -> Any:
        """What the server says of the model."""
        return self._get(self._url.path, DIAL_S, True)

    def infer(
        self, inputs: Sequence[InferTensor], outputs: Sequence[str], deadline_s: Optional[float]
    ) -> List[InferTensor]:
        """One call. Its answer settles whether binary data are taken, where the server has not said it."""
        unknown, answer = self._binary is None, None
        try:
            answer = self._ask(self._request(inputs, outputs, self._binary is not False), deadline_s)
        except (SessionLost, ProtocolError):
            if not unknown:
                raise
        if unknown and (answer is None or answer.status in _UNREADABLE):
            answer = self._ask(self._request(inputs, outputs, False), deadline_s)
            if answer.status == 200 and self._binary is None:
                self._binary = False
                what = "takes no binary tensors over HTTP: arrays go as JSON, several times the bytes"
                _log.warning("%s %s; grpc:// is quicker", self._url.text, what)
        assert answer is not None
        value = self._value(answer)
        if self._binary is None:
            self._binary = True
        return response_from_json(value, answer.binary)

    def close(self, calls: bool = True) -> None:
        """End all connections; without ``calls`` not those that are used."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._all.difference_update(idle)
            for busy in self._all if calls else ():
                busy.hang_up()
        for connection in idle:
            connection.close()

    __del__ = close  # where a busy server was left for another one

    def _get(self, path: str, seconds: float, needed: bool = False) -> Any:
        answer = self._ask([make_request("GET", path, self._url.place)], seconds, "GET")
        return self._value(answer) if needed or answer.status in (200, 429, 503) else None

    def _value(self, answer: HttpAnswer) -> Any:
        """The JSON of an answer. Raises the error that it says."""
        try:
            value = json.loads(answer.text)
        except (ValueError, RecursionError):
            value = None
        if answer.status != 200:
            said = (value.get("error") or value.get("detail")) if isinstance(value, dict) else None
            raise error_of(self._url, answer.status, str(said or answer.text.decode("utf-8", "replace")))
        if value is None:
            raise ProtocolError(f"{self._url.text}: an answer that is no JSON; is an inference server there?")
        return value

    def _request(self, inputs: Sequence[InferTensor], outputs: Sequence[str], binary: bool) -> List[Any]:
        """The pieces of a request."""
        key = tuple([(name, datatype, shape, len(data)) for name, datatype, shape, data in inputs])
        head = self._heads.get(key) if binary else None
        if head is None:
            try:
                text = json.dumps(request_to_json(inputs, outputs, binary), allow_nan=False).encode()
            except ValueError:
                raise ValueNotSupported(
                    f"{self._url.text}: NaN and infinity have no form in JSON; try grpc://"
                ) from None
            size = sum(len(tensor.data) for tensor in inputs) if binary else 0
            kind = "application/octet-stream" if binary else "application/json"
            fields = [("Content-Type", kind), ("Inference-Header-Content-Length", len(text))]
            path = f"{self._url.path}/infer"
            head = make_request("POST", path, self._url.place, fields[: 1 + binary], len(text) + size) + text
            if binary:
                if len(self._heads) >= _HEADS:
                    self._heads.clear()
                self._heads[key] = head
        return [head, *(tensor.data for tensor in inputs)] if binary else [head]

    def _ask(self, pieces: Sequence[Any], seconds: Optional[float], method: str = "POST") -> HttpAnswer:
        """Ask on a connection that is idle, or on a new one."""
        connection = self._taken()
        try:
            answer = connection.ask(pieces, seconds, method)
            with self._lock:
                # Behind a refusal some servers end the connection.
                if connection.kept and answer.status == 200 and not self._closed:
                    self._idle.append(connection)
                    return answer
        except BaseException:
            self._end(connection)
            raise
        self._end(connection)
        return answer

    def _taken(self) -> HttpClientConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if not connection.is_stale():
                return connection
            self._end(connection)
        try:
            return self._dial(DIAL_S)
        except ServerUnreachable as error:  # it was there before
            raise SessionLost(str(error)) from None

    def _dial(self, seconds: float) -> HttpClientConnection:
        connection = HttpClientConnection(self._url, seconds)
        with self._lock:
            self._all.add(connection)
            if not self._closed:
                return connection
        self._end(connection)
        raise SessionLost(f"{self._url.text}: the connection was closed here")

    def _end(self, connection: HttpClientConnection) -> None:
        with self._lock:
            self._all.discard(connection)
        connection.close()
