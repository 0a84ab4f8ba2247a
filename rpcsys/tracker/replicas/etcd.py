"""The engine on etcd, through its JSON gateway.

One member is asked until it fails, then the next. A request whose answer did not come is asked again there: each write
is one that may be made twice.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from rpcsys.errors import ProtocolError
from rpcsys.tracker.replicas import etcd_messages as messages
from rpcsys.tracker.replicas.config import EnginePlace, EngineTls, EngineUser
from rpcsys.tracker.replicas.engine import (
    MAX_ENTRIES,
    MAX_PIECES,
    MAX_VALUE,
    Engine,
    EngineFull,
    EngineLost,
    EngineRefused,
    Leader,
    Look,
    ReplicaStatus,
    Snapshot,
)
from rpcsys.tracker.replicas.etcd_messages import EtcdOutcome, Fault, Operation, behind, delete, get, put, written_at
from rpcsys.tracker.replicas.http_client import HttpReply, HttpServer
from rpcsys.wire.http1 import HttpLimits

#: Seconds for one member's answer, connection and token included; for all members together.
MEMBER_S, ALL_S = 1.0, 3.0
#: Seconds of the leases of a leader and of a replica that are asked for. etcd may grant more.
LEADER_LEASE_S, REPLICA_LEASE_S = 1, 10
#: Bytes of an answer: what `Engine.look` reads at most, in Base64.
_LIMITS = HttpLimits(body=(MAX_ENTRIES + 8) * MAX_VALUE * 3 // 2)

Made = TypeVar("Made")


class _NoLease(EngineLost):
    """The lease of a request is over."""


class _Failed(Exception):
    """A member has not answered, or cannot now: why."""


class EtcdEngine(Engine):
    """For one event loop. Raises `ConfigError`: a file of ``tls`` cannot be used."""

    def __init__(self, place: EnginePlace, tls: EngineTls | None = None, user: EngineUser | None = None) -> None:
        context = None if tls is None else tls.context()
        self._members = [HttpServer(host, port, _LIMITS, context) for host, port in place.endpoints]
        self._first = 0  # the member that is asked first
        self._keys = messages.Keys(place.lab)
        self._user = user
        self._cluster = self._token = ""
        self._signing_in = asyncio.Lock()
        self._lease = self._replica_lease = 0

    async def look(self, after: int) -> Look:
        outcome = await self._transaction(messages.look(self._keys, after))
        return messages.read_look(self._keys, after, outcome)

    async def campaign(self, leader: Leader, over: int) -> int:
        keys, lease = self._keys, await self._grant(LEADER_LEASE_S)
        won = [put(keys.leader, messages.to_value(leader.to_json()), lease), get(keys.leader)]
        conditions = [written_at(keys.leader, over)]
        try:
            outcome = await self._transaction(messages.transaction(conditions, won, [get(keys.leader)]))
        except _NoLease:
            return 0
        # Asked twice, the conditions fail the second time: the lease tells whose the key is.
        found = messages.only(outcome.found[0])
        if found is not None and found.lease == lease:
            self._lease = lease
            return found.revision
        await self._revoke(lease)  # otherwise a request that is still on its way could win later
        return 0

    async def begin(self, last: int, config: dict[str, Any], term: int) -> bool:
        keys = self._keys
        done = [delete(keys.entry(last + 1), behind(keys.journal)), put(keys.config, messages.to_value(config))]
        return await self._write(term, done)

    async def append(self, number: int, data: bytes, term: int) -> bool:
        assert len(data) <= MAX_VALUE
        return await self._write(term, [put(self._keys.entry(number), data)])

    async def renew(self, term: int) -> float:
        seconds = await self._keep_alive(self._lease)
        return seconds if seconds and await self._write(term, []) else 0.0

    async def resign(self, term: int) -> None:
        lease, self._lease = self._lease, 0
        await self._write(term, [delete(self._keys.leader)])
        await self._revoke(lease)

    async def write_snapshot(self, snapshot: Snapshot, pieces: Sequence[bytes], term: int) -> bool:
        assert len(pieces) == snapshot.pieces <= MAX_PIECES
        assert all(len(piece) <= MAX_VALUE for piece in pieces)
        keys, through = self._keys, snapshot.through
        outcome = await self._transaction(messages.transaction([self._leads(term)], [get(keys.snapshot)]))
        if not outcome.held:
            return False
        earlier = messages.only(outcome.found[0])
        if earlier is not None and messages.read_snapshot(earlier).through == through:
            return True  # others may be reading its pieces
        for index, piece in enumerate(pieces):
            if not await self._write(term, [put(keys.piece(through, index), piece)]):
                return False
        own = keys.piece(through, 0)[:-4]
        done = [
            put(keys.snapshot, messages.to_value(asdict(snapshot))),
            delete(keys.pieces, own),
            delete(behind(own), behind(keys.pieces)),
            delete(keys.journal, keys.entry(through + 1)),
        ]
        return await self._write(term, done)

    async def read_snapshot(self, snapshot: Snapshot) -> list[bytes] | None:
        pieces = []
        for index in range(snapshot.pieces):
            key = self._keys.piece(snapshot.through, index)
            outcome = await self._transaction(messages.transaction((), [get(self._keys.snapshot), get(key)]))
            current, piece = map(messages.only, outcome.found)
            if current is None or messages.read_snapshot(current).through != snapshot.through:
                return None
            if piece is None:
                raise messages.strange(key, "a piece of the snapshot is missing")
            pieces.append(messages.sized(piece))
        return pieces

    async def announce(self, replica_id: str, replica: ReplicaStatus) -> None:
        if not await self._keep_alive(self._replica_lease):
            self._replica_lease = await self._grant(REPLICA_LEASE_S)
        said = put(self._keys.replica(replica_id), messages.to_value(asdict(replica)), self._replica_lease)
        try:
            await self._transaction(messages.transaction((), [said]))
        except _NoLease:  # it ended in between: the next time grants another
            self._replica_lease = 0

    async def size(self) -> tuple[int, int]:
        # In the metrics, which all may read: its status is for administrators since 3.5.
        reply = await self._of_first(lambda member: self._exchange(member, "/metrics", method="GET"))
        return messages.read_sizes(reply.body)

    async def close(self) -> None:
        for member in self._members:
            member.close()

    # -- what is asked

    def _leads(self, term: int) -> Operation:
        return written_at(self._keys.leader, term)

    async def _write(self, term: int, operations: Sequence[Operation]) -> bool:
        """Write as the leader of a term. False: another leads."""
        outcome = await self._transaction(messages.transaction([self._leads(term)], operations))
        return outcome.held

    async def _transaction(self, asked: Mapping[str, Any]) -> EtcdOutcome:
        return await self._ask("/v3/kv/txn", asked, lambda body: messages.read_outcome(asked, body))

    async def _grant(self, seconds: int) -> int:
        return await self._ask("/v3/lease/grant", {"TTL": seconds}, lambda body: messages.integer(body, "ID"))

    async def _keep_alive(self, lease: int) -> float:
        """Renew a lease; for how many seconds, 0 if it is over."""
        if not lease:
            return 0.0
        return float(await self._ask("/v3/lease/keepalive", {"ID": lease}, messages.read_lifetime))

    async def _revoke(self, lease: int) -> None:
        if lease:
            try:
                await self._ask("/v3/lease/revoke", {"ID": lease}, lambda _: None)
            except _NoLease:
                pass

    # -- who is asked

    async def _ask(self, path: str, asked: Mapping[str, Any], read: Callable[[dict[str, Any]], Made]) -> Made:
        """What etcd answers. ``read``: may raise `ProtocolError`."""
        data = messages.to_value(asked)
        return await self._of_first(lambda member: self._answer(member, path, data, read))

    async def _of_first(self, ask: Callable[[HttpServer], Coroutine[Any, Any, Made]]) -> Made:
        """What the first member that can answer says.

        Raises `EngineLost`, `EngineFull`, `EngineRefused`, `_NoLease`.
        """
        clock = asyncio.get_running_loop().time
        until, why = clock() + ALL_S, ""
        for member in self._in_turn():
            seconds = min(MEMBER_S, until - clock())
            if seconds <= 0:
                break
            try:
                return await asyncio.wait_for(ask(member), seconds)
            except ProtocolError as error:
                raise _no_etcd(member, str(error)) from None
            except _Failed as failed:
                why = f"{member.name}: {failed}"
            except asyncio.TimeoutError:
                why = f"{member.name}: no answer within {seconds:.1f} s"
            self._leave(member)
        names = ", ".join(member.name for member in self._members)
        raise EngineLost(f"no etcd answers at {names} ({why}): see that most of its members run and reach each other")

    def _in_turn(self) -> Iterator[HttpServer]:
        first = self._first
        yield from self._members[first:]
        yield from self._members[:first]

    def _leave(self, member: HttpServer) -> None:
        """Ask the next member first from now on, unless another request has seen to it."""
        member.close()
        if self._members[self._first] is member:
            self._first = (self._first + 1) % len(self._members)

    def _check_cluster(self, member: HttpServer, body: Mapping[str, Any]) -> None:
        cluster = messages.read_cluster(body)
        self._cluster = self._cluster or cluster
        if cluster and cluster != self._cluster:  # each would have a leader of its own
            raise EngineRefused(
                f"etcd at {member.name} is another one than that of the other members, or was restored since: "
                "give the members of one etcd, and start the tracker anew"
            )

    async def _answer(self, member: HttpServer, path: str, data: bytes, read: Callable[[dict[str, Any]], Made]) -> Made:
        token = await self._token_of(member)
        answer = messages.read_answer(*await self._exchange(member, path, data, token))
        if answer.fault is Fault.TOKEN and self._user is not None:  # the member was started anew, or the token is old
            if self._token == token:
                self._token = ""
            token = await self._token_of(member)
            answer = messages.read_answer(*await self._exchange(member, path, data, token))
        body = _body(member, answer)
        self._check_cluster(member, body)
        return read(body)

    async def _token_of(self, member: HttpServer) -> str:
        if self._user is None:
            return ""
        async with self._signing_in:
            if not self._token:
                asked = messages.to_value(asdict(self._user))
                reply = await self._exchange(member, "/v3/auth/authenticate", asked)
                self._token = messages.read_token(_body(member, messages.read_answer(*reply)))
            return self._token

    async def _exchange(
        self, member: HttpServer, path: str, data: bytes = b"", token: str = "", method: str = "POST"
    ) -> HttpReply:
        try:
            return await member.ask(path, data, [("Authorization", token)] if token else (), method)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError, EOFError):
            raise _Failed("it hung up; is TLS on one side alone, or our certificate not one that it takes?") from None
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or str(error)
            raise EngineRefused(
                f"no TLS with {member.name} ({why}): see --replicate-ca, --replicate-cert and "
                "--replicate-key, and that etcd's certificate names this host"
            ) from None
        except OSError as error:
            number = error.errno or 0  # below 0 for names; asyncio has texts of its own, which say less
            raise _Failed(os.strerror(number) if number > 0 else error.strerror or str(error)) from None


def _body(member: HttpServer, answer: messages.EtcdAnswer) -> dict[str, Any]:
    """The body of a success. Raises what another answer means."""
    fault, text = answer.fault, answer.text
    if fault is None:
        return answer.body
    if fault is Fault.ELSEWHERE:
        raise _Failed(text)
    if fault is Fault.NO_LEASE:
        raise _NoLease(text)
    if fault is Fault.FULL:
        raise EngineFull(
            f"etcd at {member.name} takes no more data ({text}): defragment it or raise its quota, "
            "then type etcdctl alarm disarm"
        )
    if fault is Fault.NO_ETCD:
        raise _no_etcd(member, text)
    raise EngineRefused(
        f"etcd at {member.name} refuses ({text}): see RPCSYS_ENGINE_USER and RPCSYS_ENGINE_PASSWORD, "
        "and that this user may read and write the lab's keys"
    )


def _no_etcd(member: HttpServer, why: str) -> EngineRefused:
    return EngineRefused(
        f"what answers at {member.name} is no etcd ({why}): give the client addresses of an etcd 3.4 or later"
    )
