"""Shared by the parts of a server's state: the command line's policy, the time, and the server's phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Tuple

from rpcsys.server.supervisor import actions as do

EARLY_S = 2.0  # longest wait of a client that arrives before the tracker's message about it
Use = Tuple[str, Tuple[str, ...], str]  # of deployed modules: what, modules, member, as of `rpcsys.wire.control.Admit`


class Phase(str, Enum):
    """The phases of a server's life."""

    STARTING = "no session can be served yet"
    SERVING = "serving"
    DRAINING = "ends when its sessions have ended"
    STOPPING = "ends its sessions after a grace"
    EXITED = "exited"


class PhaseEvent(str, Enum):
    """What happens to a server as a whole."""

    READY = "a child waits for a session"
    DRAIN = "it is to end after its sessions"
    STOP = "it is to end"
    LEAVE = "nothing is left to do, or no session can be served"


STARTING, SERVING, DRAINING, STOPPING, EXITED = Phase
READY, DRAIN, STOP, LEAVE = PhaseEvent

TRANSITIONS = {
    STARTING: {READY: SERVING, DRAIN: DRAINING, STOP: STOPPING, LEAVE: EXITED},
    SERVING: {READY: SERVING, DRAIN: DRAINING, STOP: STOPPING},
    DRAINING: {READY: DRAINING, DRAIN: DRAINING, STOP: STOPPING, LEAVE: EXITED},
    STOPPING: {READY: STOPPING, DRAIN: STOPPING, STOP: STOPPING, LEAVE: EXITED},
    EXITED: {},
}


@dataclass(frozen=True)
class Policy:
    """The part of the configuration that the state needs."""

    key: str
    slots: int = 1
    tracked: bool = False  # clients need a tracker's match keys, not the plain key; the tracker may be behind proxies
    tvm: bool = True
    tvm_apart: bool = False  # whether TVM's clients need children of their own kind
    grace_s: float = 10.0
    import_s: float = 60.0  # longest import of a zygote or a child
    memory: int | None = None  # bytes that a session may have
    spares: int = 1  # children that wait while all slots are taken: 2 MB each, and it saves a fork of 5 to 10 ms
    quiet_s: float = 0.05  # longest pause in forking while a session opens: a fork would delay its first call
    health_check: bool = False  # whether there is such a command
    recover: bool = False
    proxies: tuple[str, ...] = ()  # where connections wait for clients, in place of a port; each as HOST:PORT
    deploy: bool = False  # whether modules are deployed here
    pinned: bool = False  # whether sessions are encrypted: nothing is served in the clear
    standing: str = (
        ""  # the pinned match key of all clients of a server without a tracker; its private key, hexadecimal:
    )
    standing_seed: str = ""
    in_lab: bool = False  # whether its tracker says what each session may do
    front: str = ""  # in a lab, the public name of all clients of deployed modules; its private key, hexadecimal:
    front_seed: str = ""
    pin_governor: bool = False  # whether CPUs with sessions run at their highest frequency
    search: bool = False  # whether drivers are asked for the board's devices
    canary: bool = False  # whether the board times a canary
    canary_every_s: float | None = None  # from one run to the next; None: as often as is allowed by default
    deployed_key: str = ""  # the key under which connections wait at proxies for clients of deployed modules


class ServerRecords:
    """``now``: the time of the event that is being handled."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 0.0
        self.phase = STARTING
        self.searching = policy.search  # until they have answered, no session of ours begins, and nothing is offered
        self.lab_open = False  # whether modules are served in the clear, too, by the tracker's last word

    def move(self, event: PhaseEvent) -> None:
        self.phase = TRANSITIONS[self.phase][event]

    def exit(self, why: str = "") -> list[do.Action]:
        """End the server; a ``why`` is a failure."""
        self.move(LEAVE)
        return [do.Exit(why)]

    @property
    def stopping(self) -> bool:
        """Whether the server refuses new clients."""
        return self.phase not in (STARTING, SERVING)


def earliest(times: Iterable[float | None]) -> float | None:
    """The earliest of several times; None stands for a time that is not set."""
    known = [time for time in times if time is not None]
    return min(known) if known else None
