"""Who is answered over HTTP: a guard decides for each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tornado.httputil import HTTPServerRequest

from rpcsys.link.admission import plain
from rpcsys.link.web_guard import MetricsGuard


@dataclass(frozen=True)
class PageRequest:
    """What a guard knows of a request. ``address``: its peer's, ``local``: this machine's, ``""`` if it is gone."""

    url: str  # with what is behind the path
    path: str
    address: str
    local: str
    encrypted: bool
    host: str  # these three as in its header
    origin: str
    authorization: str

    @classmethod
    def of(cls, request: HTTPServerRequest) -> PageRequest:
        """What is known of a request."""
        stream = getattr(request.connection, "stream", None)
        try:
            local = "" if stream is None else plain(stream.socket.getsockname()[0])
        except (OSError, AttributeError):  # the connection has ended
            local = ""
        fields = (request.headers.get(name, "") for name in ("Host", "Origin", "Authorization"))
        address = plain(request.remote_ip or "")
        return cls(request.uri or "", request.path, address, local, request.protocol == "https", *fields)


@dataclass(frozen=True)
class Refusal:
    """The answer to a request that is refused: an HTTP status, and a sentence."""

    status: int
    text: str


Guard = Callable[[PageRequest], Awaitable[Refusal | None]]


def metrics_guard(what: str, networks: tuple[str, ...]) -> Guard:
    """The guard of a daemon in a lab that has nothing but metrics, as `rpcsys.link.web_guard.MetricsGuard`."""
    served = MetricsGuard(what, networks)

    async def guard(asked: PageRequest) -> Refusal | None:
        why = served.refusal(asked.path, asked.address, asked.local, asked.host, asked.origin)
        return Refusal(403, why) if why else None

    return guard
