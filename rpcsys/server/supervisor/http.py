"""Serves a few small pages over HTTP/1 for probes, on the server's loop; and metrics in Prometheus's text format.

No package is needed for either. A client that sends slowly, sends too much or does not read is dropped.
"""

from __future__ import annotations

import collections
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rpcsys.link.admission import own_address, plain
from rpcsys.server.supervisor.canary_runs import OUTCOMES as RUN_OUTCOMES
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.state import DeviceServerState
from rpcsys.wire.first_bytes import PAGE, answer, kind_of
from rpcsys.wire.outcomes import OUTCOMES

MAX_HEAD = 8 << 10  # bytes of a request: probes send a few hundred
MAX_ASKING = 16  # connections at a time; one more closes the oldest
REQUEST_TIMEOUT_S = 5.0

#: Upper bounds, in seconds, of the buckets of the histogram of sessions.
SECONDS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
#: What each metric is, by its name behind ``rpcsys_server_``.
HELP = {
    "info": "1; the labels are the versions of rpcsys and of what sessions run with.",
    "slots": "Sessions at once.",
    "free": "Slots that are free.",
    "running": "Sessions that run.",
    "clean": "0 for a board that could not be cleaned and accepts no session, else 1.",
    "parked": "Connections that wait for a client at proxies.",
    "tls_connections": "Sessions inside TLS.",
    "handshakes_total": "TLS handshakes with the greeting inside, by their outcome.",
    "unauthorized_total": "Peers that were not let in, by why.",
    "canary_seconds": "Time of the canary by its last run that nobody disturbed; 0 before there is one.",
    "canary_runs_total": "Runs of the canary, by their outcome.",
    "sessions_total": "Sessions that are over, by how they ended.",
    "faults_total": "Sessions that failed by the server's own fault.",
    "session_seconds": "How long sessions last.",
}
#: Counters of a server with a canary, and of who came to one whose sessions are encrypted: the label, and its values.
COUNTED = {
    "canary_runs": ("outcome", RUN_OUTCOMES),
    "handshakes": ("outcome", ("done", "failed")),
    "unauthorized": ("why", ("credential", "clear", "invalid", "silent", "crowd")),
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Web:
    """Serves ``pages`` by path. Each is a function that returns content type and body. Owns the listening socket.

    ``refusal``: why a request is not answered, by path, the peer's address, this machine's, ``Host`` and ``Origin``.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        pages: Mapping[str, Callable[[], tuple[str, bytes]]],
        refusal: Callable[[str, str, str | None, str, str], str] | None = None,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._pages = pages
        self._refusal = refusal
        #: By connection: the bytes received, and the callback that drops it when its time is over.
        self._asking: dict[socket.socket, tuple[bytearray, Callable[[], None]]] = {}
        loop.add(listener.fileno(), self._accept)

    def close(self) -> None:
        self._loop.remove(self._listener.fileno())
        self._listener.close()
        for sock in list(self._asking):
            self._drop(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the client closed it, or descriptors ran out: a probe will try again
        sock.setblocking(False)
        while len(self._asking) >= MAX_ASKING:
            self._drop(next(iter(self._asking)))
        self._asking[sock] = bytearray(), lambda: self._drop(sock)
        self._loop.add(sock.fileno(), lambda: self._read(sock))
        self._loop.call_at(self._loop.now() + REQUEST_TIMEOUT_S, self._asking[sock][1])

    def _read(self, sock: socket.socket) -> None:
        if sock not in self._asking:
            return
        head = self._asking[sock][0]
        try:
            data = sock.recv(MAX_HEAD)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        head += data
        other = answer(PAGE, kind_of(head))
        whole = b"\r\n\r\n" in head or bool(other)
        if whole:
            try:
                sock.send(other or self._reply(sock, bytes(head)))
            except OSError:
                pass  # the client hung up
        if whole or not data or len(head) > MAX_HEAD:
            self._drop(sock)

    def _reply(self, sock: socket.socket, head: bytes) -> bytes:
        """The answer to a request. Raises OSError: its sender is gone."""
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        refused = self._refused(sock, path, head)
        if method not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET and HEAD\n"
        elif refused:
            status, kind, body = "403 Forbidden", "text/plain; charset=utf-8", refused.encode() + b"\n"
        elif page is None:
            status, kind, body = "404 Not Found", "text/plain", " ".join(self._pages).encode() + b"\n"
        else:
            status = "200 OK"
            kind, body = page()
        lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else body)

    def _refused(self, sock: socket.socket, path: str, head: bytes) -> str:
        if self._refusal is None:
            return ""
        host, origin = (_field(head, name) for name in (b"host", b"origin"))
        return self._refusal(path, plain(sock.getpeername()[0]), own_address(sock), host, origin)

    def _drop(self, sock: socket.socket) -> None:
        self._loop.call_at(None, self._asking.pop(sock)[1])
        self._loop.remove(sock.fileno())
        sock.close()


def _field(head: bytes, name: bytes) -> str:
    """The value of a header field, empty if there is none."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip().decode("latin-1")
    return ""


class ServerMetrics:
    """Counters of sessions. ``now`` returns the gauges by name; it is called for each request. ``about``: versions.

    ``counted``: what others count, by the names in `COUNTED`.
    """

    def __init__(
        self,
        key: str,
        now: Callable[[], Mapping[str, float]],
        about: Mapping[str, str],
        counted: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._key = key
        self._counted = counted
        self._about = about
        self._now = now
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._faults = 0
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def ended(self, outcome: str, lasted_s: float, fault: str) -> None:
        self._outcomes[outcome] += 1
        self._faults += bool(fault)
        self._counts[sum(lasted_s > bound for bound in SECONDS)] += 1
        self._sum += lasted_s

    def page(self) -> tuple[str, bytes]:
        key = {"key": self._key}
        lines = [*_family("info", "gauge", [("", {**key, **self._about}, 1)])]
        for name, value in self._now().items():
            lines += _family(name, "gauge", [("", key, value)])
        for name, counts in self._counted.items():
            label, values = COUNTED[name]
            lines += _family(f"{name}_total", "counter", [("", {**key, label: word}, counts[word]) for word in values])
        words = sorted({*OUTCOMES, *self._outcomes})  # 0 for what has not happened: alerts need it
        outcomes = [("", {**key, "outcome": word}, self._outcomes[word]) for word in words]
        lines += _family("sessions_total", "counter", outcomes)
        lines += _family("faults_total", "counter", [("", key, self._faults)])
        lines += _family("session_seconds", "histogram", self._histogram(key))
        return METRICS_TYPE, "".join(line + "\n" for line in lines).encode()

    def _histogram(self, key: dict[str, str]) -> Iterable[tuple[str, dict[str, str], float]]:
        below = 0
        for bound, count in zip([*map(str, SECONDS), "+Inf"], self._counts):
            below += count
            yield "_bucket", {**key, "le": bound}, below
        yield "_sum", key, self._sum
        yield "_count", key, below


def gauges(state: DeviceServerState) -> dict[str, float]:
    """A server's gauges at this moment, by name."""
    policy, slots = state.records.policy, state.slots
    found = {
        "slots": policy.slots,
        "free": slots.free,
        "running": len(slots.sessions),
        "clean": float(not slots.processes.unclean),
        "parked": state.parking.waiting,
    }
    encrypted = sum(session.encrypted for session in slots.sessions.values())
    if state.canary is not None:
        found["canary_seconds"] = state.canary.seconds
    return {**found, "tls_connections": encrypted} if policy.pinned else found


def counted(state: DeviceServerState) -> dict[str, Mapping[str, int]]:
    """What a server counts that has a canary, or whose sessions are encrypted, by the names in `COUNTED`."""
    found: dict[str, Mapping[str, int]] = {}
    if state.canary is not None:
        found["canary_runs"] = state.canary.counts
    if state.records.policy.pinned:
        found.update(handshakes=state.admission.handshakes, unauthorized=state.admission.unauthorized)
    return found


def _family(name: str, kind: str, samples: Iterable[tuple[str, Mapping[str, str], Any]]) -> Sequence[str]:
    full = f"rpcsys_server_{name}"
    about = [f"# HELP {full} {HELP[name]}", f"# TYPE {full} {kind}"]
    return [*about, *(f"{full}{end}{_labels(labels)} {value}" for end, labels, value in samples)]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
