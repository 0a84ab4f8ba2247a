"""The rows of a tracker's and a server's answers, as types for editors and type checkers.

An answer of rpcsys' tracker has all fields of its type, and those of a newer tracker. Durations are in seconds.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict

__all__ = [
    "DeployedRow",
    "DeployedVersion",
    "DeviceReport",
    "HolderRow",
    "LeaseRow",
    "MemoryReport",
    "ModulePlace",
    "PastLease",
    "QueueCounts",
    "ServerBrief",
    "ServerPlace",
    "ServerRow",
    "TrackerSummary",
    "TurnsReport",
    "UsageRow",
    "WaitingRow",
    "WhyAnswer",
]


class QueueCounts(TypedDict):
    """A key's free devices and waiting requests."""

    free: int
    pending: int


class ServerPlace(TypedDict):
    """A slot of a server as TVM's summary has it."""

    key: str  # server:KEY
    addr: List[Any]  # host and port


class _State(TypedDict):
    slots: int
    free: int
    state: str
    reason: str  # of a state other than "ok"
    until_s: Optional[float]  # until a pause ends


class ServerBrief(_State):
    """A server for those who wait."""

    server: str


class ServerRow(_State):
    """A server."""

    name: str
    key: str
    address: str
    port: int
    running: int  # sessions
    labels: Dict[str, str]
    loads: List[str]  # endings of model files, and kinds of modules
    devices: List[str]  # of its board, such as opencl:0
    limits: bool  # whether its sessions can be limited and ended: False for TVM's
    since_s: float  # in this state
    speed: str  # by its canary: "ok" or "slow", "" while that is not known
    slow: str  # why it is slow


class LeaseRow(TypedDict):
    """A current lease."""

    lease: str
    key: str
    server: str
    holder: str
    address: str
    since_s: float
    until_s: Optional[float]  # the most seconds left; None: no limit
    limit_s: Optional[float]
    state: str


class _Queues(TypedDict):
    queue_info: Dict[str, QueueCounts]
    server_info: List[ServerPlace]


class GoneRow(TypedDict):
    """A server that is gone."""

    name: str
    key: str
    since_s: float
    reason: str


class ClearRow(TypedDict):
    """One who has come to an open lab without a credential; ``allowed``: a closed lab would serve it, too."""

    address: str
    user: str
    server: str
    allowed: bool


class TrackerSummary(_Queues, total=False):
    """The queues by key; with our tracker also the servers and the leases, and those of the others that there are."""

    servers: List[ServerRow]
    leases: List[LeaseRow]
    gone: List[GoneRow]
    clear: List[ClearRow]
    replicas: str
    sites: str


class ReplicaRow(TypedDict):
    """One of several trackers. ``since``: when it took its role, seconds since 1970; ``behind``: entries it lacks;
    ``whole``: whether its history has all leases that ended before it came, or while it was away.
    """

    address: str
    http_port: int
    version: str
    role: str
    through: int
    behind: int
    since: float
    whole: bool


class Replicas(TypedDict):
    """The replicas of a tracker, and who leads: an address, None for nobody. ``engine``: "up", or what is wrong."""

    leader: Optional[str]
    term: int
    engine: str
    replicas: List[ReplicaRow]


class HolderRow(TypedDict):
    """The holder of a device."""

    user: str
    address: str
    server: str
    since_s: float
    until_s: Optional[float]
    inferred: bool  # from the state of TVM's server


class WaitingRow(TypedDict):
    """A waiting request."""

    user: str
    address: str
    priority: float
    risen: int  # steps by which waiting has raised it
    waited_s: float
    spent_s: float  # device time of its user lately
    labels: Dict[str, str]
    count: int


class WhyAnswer(TypedDict):
    """Why requests for a key wait."""

    key: str
    waiting: int
    free: int
    devices: int
    servers: List[ServerBrief]
    holders: List[HolderRow]
    queue: List[WaitingRow]
    position: Optional[int]
    ahead: int
    eta_s: Optional[List[float]]  # from low to high
    reasons: List[str]


class PastLease(TypedDict):
    """A lease that is over. Times are seconds since 1970."""

    lease: str
    epoch: int
    key: str
    server: str
    user: str
    address: str
    how: str
    since: float
    begun: Optional[float]  # when its session was opened
    ended: float
    held_s: float
    limit_s: Optional[float]
    waited_s: float
    priority: float
    outcome: str
    reason: str
    fault: str  # the server's, or ""
    cleaned: Dict[str, Any]  # what the session left


class UsageRow(TypedDict):
    """Totals of a user's leases of a key."""

    user: str
    key: str
    leases: int
    held_s: float
    waited_s: float
    faults: int  # leases that ended by the server's own fault


class ModulePlace(TypedDict):
    """A server of a deployed module."""

    name: str
    version: str
    server: str
    host: str
    port: int
    key: str  # addresses it at a proxy, or ""
    workers: int
    running: int
    waiting: int
    clients: int


class DeployedVersion(TypedDict):
    """A version of a deployed module."""

    name: str
    version: str
    file: str
    sha256: str


class DeployedRow(DeployedVersion):
    """A deployed module and its load."""

    state: str
    running: int
    waiting: int
    clients: int


class _KeptObjects(TypedDict):
    objects: int
    bytes: int
    kept: List[Dict[str, Any]]  # the largest first


class MemoryReport(_KeptObjects, total=False):
    """What a session keeps on its device."""

    devices: Dict[str, Dict[str, float]]  # figures by device, if the session uses several


class TurnsReport(TypedDict):
    """Turns of functions that were timed on a board; each list has an item for each turn that began in time."""

    seconds: List[float]  # mean of a call
    own_cpu: List[float]  # CPU seconds of the session's process
    thread_cpu: List[float]  # of these, the calling thread's
    others_cpu: List[Optional[float]]  # share of the CPUs' time that other processes took, or the machine's host
    waited: List[Optional[float]]  # seconds in which the calling thread was ready to run and had no CPU
    switches: List[int]  # how often the process lost a CPU while it could have gone on
    board: Dict[str, Dict[str, Any]]  # the state before and after, as in `TimingResult`


class DeviceReport(TypedDict):
    """What the devices of a board have done in a session."""

    devices: Dict[str, Dict[str, float]]
    runs: List[List[Any]]  # device, number of the call, begin and end in seconds
