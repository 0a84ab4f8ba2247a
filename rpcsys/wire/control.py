"""Our messages on a tracker connection: JSON objects, where TVM's are lists (docs/wire.md, "Our messages").

An object with ``"op"`` is a question; one without is its answer, with the same ``id``. Durations are seconds (``_s``).
"""

from __future__ import annotations

from typing import Any, Mapping

from rpcsys.errors import ProtocolError
from rpcsys.wire import checks, pinned_keys
from rpcsys.wire.checks import Message, field, optional
from rpcsys.wire.kept_texts import brief, left
from rpcsys.wire.labels import MAX_WANTED
from rpcsys.wire.outcomes import OUTCOMES
from rpcsys.wire.pinned_keys import DEPLOY, SERVE

#: A capability of a tracker: it compares versions, and a server may have `rpcsys.wire.labels.MAX_LABELS` labels.
VERSIONS = "versions"
#: A capability of a tracker: it takes `CanaryRun`.
CANARIES = "canaries"
MAX_CLEANED = 8  # kinds of leftovers in `LeaseEnded.cleaned`

_id = checks.integer(0, checks.MAX_ID)
_count = checks.integer(1, checks.MAX_ITEMS)


def _place(value: Any, name: str) -> tuple[int, int]:
    if type(value) is not list or len(value) != 2:
        raise checks.wrong(name, "a place that an answer named", value)
    return _id(value[0], name), _id(value[1], name)


def _one_of(*words: str) -> checks.Check:
    def check(value: Any, name: str) -> str:
        if value not in words:
            raise checks.wrong(name, "one of " + ", ".join(words), value)
        return str(value)

    return check


_outcome = _one_of(*OUTCOMES)
_purpose = _one_of(SERVE, DEPLOY)


def _pin(value: Any, name: str) -> str:
    if value != "" and not pinned_keys.is_pin(value):
        raise checks.wrong(name, "64 hexadecimal digits", value)
    return str(value)


def _secret(value: Any, name: str) -> str:
    if not pinned_keys.is_secret(value):
        raise ProtocolError(f"{name} must be 32 hexadecimal digits")  # the value may be nearly one
    return str(value)


class Ask(Message):
    """A message that requires an answer."""

    id: int = field(_id)


class AboutLease(Ask):
    """A message from or to a server about a lease. Each lease has a higher epoch, so a late message changes nothing."""

    lease: str = field(checks.text)
    epoch: int = field(_id)


# Clients to the tracker.


class Hello(Message, op="hello"):
    """The first message of our clients and servers, in a ping. TVM's tracker answers ``0``. ``user`` is unverified.

    Inside TLS alone, a lab's member says its ``token``; one who joins says ``ID.SECRET`` of its ``invitation``, or the
    ``id_token`` that an issuer has given it, and the ``hash`` of its new token's secret. With ``sign_in`` it is told of
    that issuer.
    """

    version: str = field(checks.text)
    capabilities: tuple[str, ...] = field(checks.items(checks.text), default=tuple)
    user: str | None = field(optional(checks.text), default=None)
    token: str | None = field(optional(checks.text), default=None)
    invitation: str | None = field(optional(checks.text), default=None)
    hash: str | None = field(optional(checks.text), default=None)
    id_token: str | None = field(optional(checks.sentence), default=None)
    sign_in: bool | None = field(optional(checks.flag), default=None)

    def to_json(self) -> dict[str, Any]:
        """The hello's object; what a lab alone has is there where it is set."""
        fields = super().to_json()
        return {name: value for name, value in fields.items() if value is not None or name == "user"}


class Request(Ask, op="request"):
    """Lease ``count`` devices together, of one key or of any (None), with all of ``labels``.

    A label's value is the device's value, or comparisons like ``">=1.22,<2"``. ``ticket`` comes from a `Queued`: with
    it, a request keeps its place after its connection broke.
    """

    key: str | None = field(optional(checks.key), default=None)
    priority: float = field(checks.number, default=1)
    session_timeout: float | None = field(optional(checks.seconds), default=None)
    wait_timeout: float | None = field(optional(checks.seconds), default=None)
    wait_for_key: bool = field(checks.flag, default=False)
    labels: Mapping[str, str] = field(checks.mapping(checks.text, MAX_WANTED), default=dict)
    count: int = field(_count, default=1)
    ticket: str | None = field(optional(checks.text), default=None)


class Cancel(Ask, op="cancel"):
    """Cancel the request with the id ``request``."""

    request: int = field(_id)


class Renew(Ask, op="renew"):
    """Have a lease end ``session_timeout`` seconds from now."""

    lease: str = field(checks.text)
    session_timeout: float | None = field(optional(checks.seconds), default=None)


class Release(Ask, op="release"):
    """Release a lease. ``problem``: why no session could be opened with it; this counts as the server's failure."""

    lease: str = field(checks.text)
    problem: str = field(checks.text, default="")


class Resolve(Ask, op="resolve"):
    """The servers of a deployed module ("": of each), and how busy they are. Has no queue.

    With ``admit`` the client is about to connect: in a lab, each row then has what it is to say there.
    """

    name: str = field(checks.text)
    admit: bool = field(checks.flag, default=False)


class AskAdmission(Ask, op="admission"):
    """Where a client deploys on ``server``, and what it is to say there."""

    what: str = field(_one_of(DEPLOY))
    server: str = field(checks.text)


class Summary(Ask, op="summary"):
    """Queues, servers and leases, as many as fit a frame. The answer's ``next`` is the next question's ``after``."""

    after: tuple[int, int] | None = field(optional(_place), default=None)


class History(Ask, op="history"):
    """At most ``limit`` leases that ended in [``since``, ``until``), seconds since 1970, the last to end first.

    Where there are more, the answer's ``before`` is the next question's ``before``.
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
    """To the tracker: grant no more leases on ``server``. To a server: accept no more sessions."""

    server: str | None = field(optional(checks.text), default=None)


class Enable(Ask, op="enable"):
    """Undo a drain."""

    server: str = field(checks.text)


class EndLease(Ask, op="end"):
    """End a lease of any user."""

    lease: str = field(checks.text)
    reason: str = field(checks.text, default="")


# Servers to the tracker.


class Running(Message):
    """A running lease that was granted over an earlier connection."""

    lease: str = field(checks.text)
    epoch: int = field(_id)
    since_s: float = field(checks.seconds, default=0)


class ModuleUse(Message):
    """What a member may do: call the one of ``modules``, or deploy those that match one of these patterns."""

    what: str = field(_purpose)
    modules: tuple[str, ...] = field(checks.items(checks.text))
    member: str = field(checks.text)


class Register(Ask, op="register"):
    """Register a server. It then offers match keys with TVM's PUT, one for each free slot.

    In a lab, ``pin``: of all its connections for deployed modules, "" without ``--deploy``; ``admitted``: who has such
    connections, or may have them by the word of an earlier link.
    """

    key: str = field(checks.key)
    name: str = field(checks.text)
    slots: int = field(_count, default=1)
    port: int | None = field(optional(checks.port), default=None)  # None behind a proxy
    address: str | None = field(optional(checks.text), default=None)  # replaces the connection's own
    labels: Mapping[str, str] = field(checks.mapping(checks.text), default=dict)
    loads: tuple[str, ...] = field(checks.items(checks.text), default=tuple)
    devices: tuple[str, ...] = field(checks.items(checks.text), default=tuple)  # their names
    running: tuple[Running, ...] = field(checks.items(Running.from_json), default=tuple)
    identity: str = field(checks.text, default="")  # random, constant for the server's life, on any connection
    spare: str = field(checks.text, default="")  # its name where another server has ``name``, "" for one given by hand
    pin: str = field(_pin, default="")
    admitted: tuple[ModuleUse, ...] = field(checks.items(ModuleUse.from_json), default=tuple)


class LeaseStarted(AboutLease, op="lease_started"):
    """A session was opened with the lease's match key, from ``peer``. ``limit_s``: a TVM client asked the server."""

    peer: str = field(checks.text, default="")
    limit_s: float | None = field(optional(checks.seconds), default=None)


class LeaseEnded(AboutLease, op="lease_ended"):
    """The lease is over and the slot is clean."""

    outcome: str = field(_outcome)
    cleaned: Mapping[str, Any] = field(checks.mapping(left, MAX_CLEANED), default=dict)  # the removed leftovers
    fault: str = field(brief, default="")  # why it failed, where the cause is the server, not the client or its code
    why: str = field(brief, default="")  # why it is over, where neither the server nor the tracker is the cause


class Health(Ask, op="health"):
    """The device's health."""

    problem: str = field(checks.text, default="")  # the failure of its health check, "" for none
    readings: Mapping[str, Any] = field(checks.mapping(checks.anything), default=dict)  # measured values


class CanaryRun(Ask, op="canary"):
    """A run of the server's canary; one with a ``problem`` could not be made, and has no time."""

    canary: str = field(checks.text)  # what ran, and with what: times of different ones are not compared
    seconds: float = field(checks.seconds, default=0)  # of one run
    disturbed: bool = field(checks.flag, default=False)  # by other processes: the time says nothing
    throttled: float = field(checks.seconds, default=0)  # the share of the time that a CPU quota took
    limit_s: float | None = field(optional(checks.seconds), default=None)  # above it the board is ill at once
    problem: str = field(brief, default="")


class DeployedModule(Message):
    """A deployed module of a server. Its model host has ``workers`` threads, calls running and waiting, and clients."""

    name: str = field(checks.text)
    version: str = field(checks.text)
    serving: bool = field(checks.flag, default=True)
    workers: int = field(_count, default=1)
    running: int = field(_id, default=0)
    waiting: int = field(_id, default=0)
    clients: int = field(_id, default=0)


class Deployed(Ask, op="deployed"):
    """All modules that are deployed on a registered server. ``key`` addresses the server at its proxy, else ""."""

    modules: tuple[DeployedModule, ...] = field(checks.items(DeployedModule.from_json), default=tuple)
    key: str = field(checks.text, default="")


# A proxy or a standby to the tracker, about a connection that it relays.


class Via(Message, op="via"):
    """The first frame of a connection through a proxy. Each proxy of a chain sends its own before the bytes it relays.
    Clients connect to the first, next to the tracker; the last has the server's address.
    """

    address: tuple[str, int] = field(checks.place(checks.text))  # the relayed connection's peer
    #: The proxy's address for clients with match keys of the server; no host: this connection's own. None: a standby
    #: relays, which is no way to servers.
    proxy: tuple[str | None, int] | None = field(optional(checks.place(optional(checks.text))))


#: ``error`` of a hello's answer from a proxy without a tracker of ours: a server then makes its offers by the proxy.
NO_CONTROL_LINK = "NoControlLink"


# The tracker to servers.


class Taken(AboutLease, op="taken"):
    """A match key was granted to ``user`` at ``address``; the session may last ``limit_s`` seconds.

    No session of its key may last longer than ``longest_s`` seconds (None: no such limit). In a lab, ``code``: whether
    the session may load more than models in ONNX's format; ``plain``: whether its client may come in the clear.
    """

    matchkey: str = field(checks.match_key)
    user: str = field(checks.text)
    address: str = field(checks.text)
    limit_s: float | None = field(optional(checks.seconds), default=None)
    longest_s: float | None = field(optional(checks.seconds), default=None)
    code: bool = field(checks.flag, default=True)
    plain: bool = field(checks.flag, default=False)


class Limit(AboutLease, op="limit"):
    """A running lease ends ``limit_s`` seconds from now (None: no limit)."""

    limit_s: float | None = field(optional(checks.seconds), default=None)


class End(AboutLease, op="end"):
    """End a lease: stop its session, or drop its match key (see `UNUSED`), and offer a new one."""

    reason: str = field(checks.text)
    why: str = field(brief, default="")  # a sentence for the holder


class Admit(Ask, op="admit"):
    """Until ``until_s`` seconds from now, let in who says ``secret`` behind the server's pin, for this use."""

    secret: str = field(_secret)
    what: str = field(_purpose)
    modules: tuple[str, ...] = field(checks.items(checks.text))
    member: str = field(checks.text)  # "": one without a credential, in an open lab
    until_s: float = field(checks.seconds)


class Unadmit(Ask, op="unadmit"):
    """End all that came of this use: the secrets and the connections. ``why``: a sentence for the member."""

    what: str = field(_purpose)
    modules: tuple[str, ...] = field(checks.items(checks.text))
    member: str = field(checks.text)
    why: str = field(brief, default="")


class Keepalive(Ask, op="keepalive"):
    """The heartbeat. The server's own loop answers it. Sent to servers with `KEEPALIVE` in their hello."""


#: The capability of a server that answers `Keepalive`.
KEEPALIVE = "keepalive/1"
#: The ``id`` of every `Keepalive` and of no other question, so that all heartbeats are equal bytes, and all answers.
QUESTION = 0


# Answers, both ways.


class Lease(Message):
    """A granted lease: the address to connect to, and the match key."""

    lease: str = field(checks.text)
    epoch: int = field(_id)
    key: str = field(checks.key)
    host: str = field(checks.text)
    port: int | None = field(optional(checks.port))
    matchkey: str = field(checks.match_key)
    server: str | None = field(optional(checks.text), default=None)
    limit_s: float | None = field(optional(checks.seconds), default=None)
    plain: bool = field(checks.flag, default=False)  # in a lab: the session is not encrypted, and may be so


class Queued(Message):
    """A request waits behind ``ahead`` others. ``holders`` have the devices: user, address, server, since_s, …"""

    id: int = field(_id)
    position: int = field(checks.integer(1, checks.MAX_ID))  # 1 is next
    ahead: int = field(_id)
    eta_s: tuple[float, ...] | None = field(optional(checks.items(checks.seconds)), default=None)  # (low, high)
    ticket: str | None = field(optional(checks.text), default=None)
    holders: tuple[Any, ...] = field(checks.items(checks.mapping(checks.anything)), default=tuple)
    note: str = field(checks.text, default="")  # why it cannot be served now

    def to_json(self) -> dict[str, Any]:
        """The event's object, marked as an event."""
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
        """The answer in ``value``. Every name but its own four becomes one of ``fields``."""
        answer = super().from_json(value, name)
        own = ("id", "ok", "error", "message")
        rest = {label: item for label, item in value.items() if label not in own} if answer.ok else {}
        return cls(answer.id, answer.ok, answer.error, answer.message, rest)


_FROM_CLIENTS = (
    *(Request, Cancel, Renew, Release, Resolve, AskAdmission, Summary, History, Usage, Why, Drain, Enable, EndLease),
)
_FROM_SERVERS = (Register, LeaseStarted, LeaseEnded, Health, Deployed, CanaryRun)
#: The messages that the tracker accepts, by ``op``.
TO_TRACKER: dict[str, type[Ask]] = {message.op: message for message in _FROM_CLIENTS + _FROM_SERVERS}
#: The messages that a server accepts, by ``op``.
FROM_TRACKER: dict[str, type[Ask]] = {
    message.op: message for message in (Taken, Limit, End, Drain, Admit, Unadmit, Keepalive)
}
