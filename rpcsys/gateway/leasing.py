"""Leases a device of a pool and loads its model there. It blocks: it runs in a thread."""

from __future__ import annotations

from rpcsys.client.tracker import connect_tracker
from rpcsys.errors import ModelError
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.gateway.settings import LeasedPool
from rpcsys.gateway.upstream import take_over
from rpcsys.stream import Stream

#: Seconds to wait for a free device; the calls wait as long.
WAIT_S = 60.0
#: The model's object in a session that has no other.
FIRST_OBJECT = 1


def lease(tracker: tuple[str, int], pool: LeasedPool) -> tuple[Stream, ReplicaHello | None]:
    """The stream of a session with a leased device, on which the pool's file is loaded as `FIRST_OBJECT`.

    The lease lasts as long as the stream. Raises `WaitTimeout`, `UnknownKey` and what else `Tracker.request` raises;
    `ModelError` where the device cannot load the file.
    """
    with connect_tracker(tracker) as connected:
        session = connected.request(pool.key, wait_timeout=WAIT_S, on_queued=_do_nothing)
    try:
        model = session.load_module(pool.file)
        if model._id != FIRST_OBJECT:
            raise ModelError(f"the device keeps {pool.file} as another object than its first")
        return take_over(session), None
    except BaseException:
        session.close()
        raise


def _do_nothing(event: object) -> None:
    """Nobody watches the place in the queue."""
