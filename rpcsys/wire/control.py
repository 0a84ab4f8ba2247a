"""Our own messages on a tracker connection: JSON objects, beside TVM's lists (docs/wire.md, "Our messages").

An object with ``"op"`` asks; one without answers, with the same ``id``. Durations are seconds (``_s``).
"""

from __future__ import annotations

from typing import Any, Mapping

from rpcsys.wire import checks
from rpcsys.wire.checks import Message, field, optional

#: How a lease ended: its client closed it; the client vanished; its time was over; its session wanted more
#: memory than the server allows; the session's process died; nobody came; the tracker ended it.
OUTCOMES = ("closed", "lost", "timeout", "memory", "crashed", "unused", "ended")
#: `End.reason` when the client left before it opened a session: the server drops the match key, and a
#: session that was opened with it in the meantime goes on.
UNUSED = "unused"
#: Labels of a server, or that a request wants.
MAX_LABELS = 32
#: Kinds of what had to be removed after a session, and names of each, that are told.
MAX_CLEANED = 8
MAX_NAMES = 64

_id = checks.integer(0, checks.MAX_ID)
_count = checks.integer(1, checks.MAX_ITEMS)


def _place(value: Any, name: str) -> tuple[int, int]:
    if type(value) is not list or len(value) != 2:
        raise checks.wrong(name, "a place that an answer named", value)
    return _id(value[0], name), _id(value[1], name)


def _outcome(value: Any, name: str) -> str:
    if value not in OUTCOMES:
        raise checks.wrong(name, "one of " + ", ".join(OUTCOMES), value)
    return str(value)


def _brief(value: Any, name: str) -> str:
    """Text of which the first `checks.MAX_TEXT` characters are kept, printable: news is not refused for its length."""
    kept = checks.sentence(value, name)[: checks.MAX_TEXT]
    return kept if kept.isprintable() else "".join(c if c.isprintable() else "?" for c in kept)


def _left(value: Any, name: str) -> Any:
    """A count, or names of which the first `MAX_NAMES` are kept."""
    if type(value) is list:
        return [_brief(item, name) for item in value[:MAX_NAMES]]
    return _id(value, name)


class Ask(Message):
    """A message that wants an answer."""

    id: int = field(_id)


class AboutLease(Ask):
    """Of a server or to one, about a lease. Its epoch rises from lease to lease: what is late changes nothing."""

    lease: str = field(checks.text)
    epoch: int = field(_id)


# What clients ask.


class Hello(Message, op="hello"):
    """The first words of our clients and servers, in a ping; TVM's tracker answers ``0``. ``user`` is but a claim."""

    version: str = field(checks.text)
    capabilities: tuple[str, ...] = field(checks.items(checks.text), default=tuple)
    user: str | None = field(optional(checks.text), default=None)


class Request(Ask, op="request"):
    """Lease ``count`` devices together, of a key, or of any (None), and with all of ``labels``.

    A label's value is what the device must have, or ``">=N"``. ``ticket`` is one that a `Queued` brought: it keeps
    the place of a request whose connection broke.
    """

    key: str | None = field(optional(checks.key), default=None)
    priority: float = field(checks.number, default=1)
    session_timeout: float | None = field(optional(checks.seconds), default=None)
    wait_timeout: float | None = field(optional(checks.seconds), default=None)
    wait_for_key: bool = field(checks.flag, default=False)
    labels: Mapping[str, str] = field(checks.mapping(checks.text, MAX_LABELS), default=dict)
    count: int = field(_count, default=1)
    ticket: str | None = field(optional(checks.text), default=None)


class Cancel(Ask, op="cancel"):
    """Take back the request that was asked under the id ``request``."""

    request: int = field(_id)


class Renew(Ask, op="renew"):
    """Keep a lease for ``session_timeout`` seconds from now."""

    lease: str = field(checks.text)
    session_timeout: float | None = field(optional(checks.seconds), default=None)


class Release(Ask, op="release"):
    """Give a lease back. ``problem``: why no session could be opened with it; it counts against the server."""

    lease: str = field(checks.text)
    problem: str = field(checks.text, default="")


class Resolve(Ask, op="resolve"):
    """Where a deployed module ("": any) is served, and how busy those places are. Waits in no queue."""

    name: str = field(checks.text)


class Summary(Ask, op="summary"):
    """Queues, servers and leases now, as many as a frame holds; the answer's ``next`` is the next ``after``."""

    after: tuple[int, int] | None = field(optional(_place), default=None)


class History(Ask, op="history"):
    """At most ``limit`` leases that ended in [``since``, ``until``), seconds since 1970, the last to end first.

    Where there are more, the answer's ``before`` asks for the next ones.
    """

    key: str | None = field(optional(checks.key), default=None)
    user: str | None = field(optional(checks.text), default=None)
    server: str | None = field(optional(checks.text), default=None)
    since: float | None = field(optional(checks.seconds), default=None)
    until: float | None = field(optional(checks.seconds), default=None)
    limit: int = field(_count, default=100)
    before: int | None = field(optional(_id), default=None)


class Usage(Ask, op="usage"):
    """Leases, device time and waiting time by user and key, from the beginning of the hour of ``since`` on."""

    key: str | None = field(optional(checks.key), default=None)
    user: str | None = field(optional(checks.text), default=None)
    since: float | None = field(optional(checks.seconds), default=None)


class Why(Ask, op="why"):
    """Why the request under the id ``request``, or any request for ``key``, is waiting."""

    request: int | None = field(optional(_id), default=None)
    key: str | None = field(optional(checks.key), default=None)


class Drain(Ask, op="drain"):
    """To the tracker: hand out nothing more of ``server``. To a server: take nothing more."""

    server: str | None = field(optional(checks.text), default=None)


class Enable(Ask, op="enable"):
    """Undo a drain."""

    server: str = field(checks.text)


class EndLease(Ask, op="end"):
    """An operator ends a lease that another holds."""

    lease: str = field(checks.text)
    reason: str = field(checks.text, default="")


# What servers tell.


class Running(Message):
    """A lease that outlived the connection over which it was granted."""

    lease: str = field(checks.text)
    epoch: int = field(_id)
    since_s: float = field(checks.seconds, default=0)


class Register(Ask, op="register"):
    """A server presents itself; match keys are then offered with TVM's PUT, one for each free slot."""

    key: str = field(checks.key)
    name: str = field(checks.text)
    slots: int = field(_count, default=1)
    port: int | None = field(optional(checks.port), default=None)  # None behind a proxy
    address: str | None = field(optional(checks.text), default=None)  # in place of the one the connection comes from
    labels: Mapping[str, str] = field(checks.mapping(checks.text), default=dict)
    loads: tuple[str, ...] = field(checks.items(checks.text), default=tuple)
    running: tuple[Running, ...] = field(checks.items(Running.from_json), default=tuple)
    identity: str = field(checks.text, default="")  # random, the same for the server's life: tells it on any connection


class LeaseStarted(AboutLease, op="lease_started"):
    """A session was opened with the lease's match key, from ``peer``."""

    peer: str = field(checks.text, default="")


class LeaseEnded(AboutLease, op="lease_ended"):
    """The lease is over and the slot is clean."""

    outcome: str = field(_outcome)
    cleaned: Mapping[str, Any] = field(checks.mapping(_left, MAX_CLEANED), default=dict)  # what had to be removed
    fault: str = field(_brief, default="")  # why it failed, if the server is to blame, not its client or their code


class Health(Ask, op="health"):
    """How the device is."""

    problem: str = field(checks.text, default="")  # what its health check found, "" when all is well
    readings: Mapping[str, Any] = field(checks.mapping(checks.anything), default=dict)  # whatever it can measure


class DeployedModule(Message):
    """A deployed module of a server: of its host, calls that run on ``workers`` threads, calls that wait, clients."""

    name: str = field(checks.text)
    version: str = field(checks.text)
    serving: bool = field(checks.flag, default=True)
    workers: int = field(_count, default=1)
    running: int = field(_id, default=0)
    waiting: int = field(_id, default=0)
    clients: int = field(_id, default=0)


class Deployed(Ask, op="deployed"):
    """All the modules that are deployed on a registered server. ``key``: what finds it at its proxy, else ""."""

    modules: tuple[DeployedModule, ...] = field(checks.items(DeployedModule.from_json), default=tuple)
    key: str = field(checks.text, default="")


# What a proxy tells the tracker of a connection that it relays.


class Via(Message, op="via"):
    """The first frame of a connection through a proxy. In a chain each puts its own before what it relays: clients go
    to the first, next to the tracker; the last tells where the server is.
    """

    address: tuple[str, int] = field(checks.place(checks.text))  # where the connection comes from
    #: Where match keys offered on it are used; no host: the one this connection comes from.
    proxy: tuple[str | None, int] = field(checks.place(optional(checks.text)))


#: ``error`` of a hello's answer from a proxy that has no tracker of ours: what a server offers, it offers by the proxy.
NO_CONTROL_LINK = "NoControlLink"


# What the tracker tells servers.


class Taken(AboutLease, op="taken"):
    """A match key was handed out to ``user`` at ``address``; the session may last ``limit_s``."""

    matchkey: str = field(checks.match_key)
    user: str = field(checks.text)
    address: str = field(checks.text)
    limit_s: float | None = field(optional(checks.seconds), default=None)


class Limit(AboutLease, op="limit"):
    """A running lease ends ``limit_s`` from now (None: no longer limited)."""

    limit_s: float | None = field(optional(checks.seconds), default=None)


class End(AboutLease, op="end"):
    """End a lease: stop its session, or drop its match key (see `UNUSED`), and offer a new one."""

    reason: str = field(checks.text)


class Keepalive(Ask, op="keepalive"):
    """Whether the server lives: its answer, from its own loop, says so. Asked of those whose hello has `KEEPALIVE`."""


#: The capability of a server that answers `Keepalive`.
KEEPALIVE = "keepalive/1"
#: The ``id`` of each `Keepalive`, and of no other question: all of them are the same bytes, and so are all answers.
QUESTION = 0


# Answers, both ways.


class Lease(Message):
    """What a client gets: where to connect, and with which match key."""

    lease: str = field(checks.text)
    epoch: int = field(_id)
    key: str = field(checks.key)
    host: str = field(checks.text)
    port: int | None = field(optional(checks.port))
    matchkey: str = field(checks.match_key)
    server: str | None = field(optional(checks.text), default=None)
    limit_s: float | None = field(optional(checks.seconds), default=None)


class Queued(Message):
    """A request waits behind ``ahead`` others. ``holders`` have the devices: user, address, server, since_s, …"""

    id: int = field(_id)
    position: int = field(checks.integer(1, checks.MAX_ID))  # 1 is next
    ahead: int = field(_id)
    eta_s: tuple[float, ...] | None = field(optional(checks.items(checks.seconds)), default=None)  # (low, high)
    ticket: str | None = field(optional(checks.text), default=None)
    holders: tuple[Any, ...] = field(checks.items(checks.mapping(checks.anything)), default=tuple)
    note: str = field(checks.text, default="")  # why it is passed over

    def to_json(self) -> dict[str, Any]:
        """The event's object, marked as one."""
        return {**super().to_json(), "event": "queued"}


class Answer(Message):
    """The final answer to the question ``id``: its ``fields``, or an ``error`` and its ``message``."""

    id: int = field(_id)
    ok: bool = field(checks.flag)
    error: str = field(checks.text, default="")
    message: str = field(checks.sentence, default="")
    fields: Mapping[str, Any] = field(checks.mapping(checks.anything), default=dict)

    def to_json(self) -> dict[str, Any]:
        """The answer's object: its fields stand beside ``id`` and ``ok``."""
        if self.ok:
            return {**self.fields, "id": self.id, "ok": True}
        return {"id": self.id, "ok": False, "error": self.error, "message": self.message}

    @classmethod
    def from_json(cls, value: Any, name: str = "answer") -> Answer:
        """The answer in ``value``; what is not its own is its fields."""
        answer = super().from_json(value, name)
        own = ("id", "ok", "error", "message")
        rest = {label: item for label, item in value.items() if label not in own} if answer.ok else {}
        return cls(answer.id, answer.ok, answer.error, answer.message, rest)


_FROM_CLIENTS = (Request, Cancel, Renew, Release, Resolve, Summary, History, Usage, Why, Drain, Enable, EndLease)
_FROM_SERVERS = (Register, LeaseStarted, LeaseEnded, Health, Deployed)
#: What the tracker understands, by ``op``.
TO_TRACKER: dict[str, type[Ask]] = {message.op: message for message in _FROM_CLIENTS + _FROM_SERVERS}
#: What a server understands, by ``op``.
FROM_TRACKER: dict[str, type[Ask]] = {message.op: message for message in (Taken, Limit, End, Drain, Keepalive)}
