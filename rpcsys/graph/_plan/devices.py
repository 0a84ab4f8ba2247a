"""The devices to divide a model over: parses their names and opens sessions with them.

cpu:0        a CPU of this machine          cpu:0-3    several together
key:edge     a device leased by its key     HOST:PORT  a server without a tracker
key:edge@HOST:PORT  the same, of a server that requires its key
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from rpcsys.client import Session, Tracker, connect, connect_tracker
from rpcsys.errors import UsageError
from rpcsys.graph._build.targets import OnnxRuntime
from rpcsys.graph._pipeline.cpu_shares import available, shares
from rpcsys.link.address import parse_address

DeviceLike: TypeAlias = str | Session  # a device in a caller's terms: a text for `parse`, or an open session
TrackerLike: TypeAlias = Tracker | str | tuple[str, int] | None

_FORMS = "devices are written cpu:0, cpu:0-3, key:NAME or HOST:PORT"


@dataclass(frozen=True)
class PlanDevice:
    """A device that a plan can use."""

    name: str  # as the caller wrote it
    cpus: tuple[int, ...] = ()  # of this machine, if the device is these CPUs
    key: str = ""  # to lease it by
    address: str = ""  # to connect to it without a tracker
    session: Session | None = None

    @property
    def target(self) -> OnnxRuntime:
        """The target of a stage that runs on these CPUs."""
        return OnnxRuntime(threads=len(self.cpus), cpus=self.cpus)

    @property
    def leased(self) -> bool:
        """Whether it is leased from a tracker."""
        return bool(self.key) and not self.address

    @property
    def kind(self) -> object:
        """A value that is equal for devices that are alike, as far as their facts are known."""
        return (len(self.cpus), self.key, self.address, self.session)


def parse(devices: int | Sequence[DeviceLike]) -> list[PlanDevice]:
    """Parse the devices; a number n divides the CPUs that this process may use into n shares.

    Raises `UsageError` for invalid devices, and CPUs that this process does not have or that are given twice.
    """
    if isinstance(devices, int):
        return _shares(devices)
    if isinstance(devices, str):
        devices = devices.split(",")
    if not isinstance(devices, Iterable):
        raise UsageError(f"{devices!r} is no list of devices, nor a number of shares; {_FORMS}")
    parsed = [_parsed(device) for device in devices]
    if not parsed:
        raise UsageError(f"no device to divide the model over; {_FORMS}")
    taken: set[int] = set()
    for device in parsed:
        lacking = sorted(set(device.cpus) - available())
        if lacking:
            raise UsageError(f"{device.name}: this process has CPUs {_listed(sorted(available()))}")
        if not taken.isdisjoint(device.cpus):
            raise UsageError(f"{device.name}: its CPUs belong to a device before it; each CPU goes to one")
        taken.update(device.cpus)
    return parsed


def open_sessions(
    devices: Sequence[PlanDevice], tracker: TrackerLike, wait_s: float, stack: ExitStack
) -> Iterator[Session | None]:
    """A session with each device, None for CPUs of this machine; ``stack`` closes the sessions that this opened.

    Raises what connecting and leasing raise; see `rpcsys.client.Tracker.request`.
    """
    lender: Tracker | None = None
    for device in devices:
        if device.leased:
            if lender is None:
                lender = tracker if isinstance(tracker, Tracker) else stack.enter_context(connect_tracker(tracker))
            yield stack.enter_context(lender.request(device.key, wait_timeout=wait_s))
        elif device.address:
            yield stack.enter_context(connect(device.address, key=device.key, timeout=wait_s))
        else:
            yield device.session


def without_deployments(devices: Sequence[PlanDevice], sessions: Sequence[Session | None]) -> Iterator[PlanDevice]:
    """The devices whose server runs without ``--deploy``, as far as its HELLO has this."""
    for device, session in zip(devices, sessions, strict=True):
        if session is not None and session.info.get("capabilities", {}).get("deploy") is False:
            yield device


def _shares(count: int) -> list[PlanDevice]:
    here = sorted(available())
    if not 0 < count <= len(here):
        raise UsageError(f"this process has {len(here)} CPU(s), which cannot be divided into {count}; {_FORMS}")
    each = shares(dict.fromkeys(map(str, range(count)), 1), here)
    return [PlanDevice(f"cpu:{_listed(cpus)}", cpus) for cpus in each.values()]


def _parsed(device: DeviceLike) -> PlanDevice:
    if isinstance(device, Session):
        return PlanDevice("{}:{}".format(*device.address), session=device)
    if not isinstance(device, str):
        raise UsageError(f"{device!r} is no device; {_FORMS}")
    device = device.strip()
    kind, _, rest = device.partition(":")
    if kind == "cpu":
        return PlanDevice(device, _cpus(device, rest))
    key, _, address = rest.partition("@") if kind == "key" else ("", "", device)
    try:
        if address or not key:
            parse_address(address)
    except UsageError:
        raise UsageError(f"{device!r} is no device; {_FORMS}") from None
    return PlanDevice(device, key=key, address=address)


def _cpus(device: str, text: str) -> tuple[int, ...]:
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else not last)) or len(text) > 11:
        raise UsageError(f"{device!r} is no device; {_FORMS}")
    cpus = tuple(range(int(first), int(last or first) + 1)) if int(last or first) < 1 << 16 else ()
    if not cpus:
        raise UsageError(f"{device!r} is no range of CPUs")
    return cpus


def _listed(cpus: Sequence[int]) -> str:
    """``0-3`` for a whole range, else ``0,2``."""
    whole = len(cpus) > 1 and cpus[-1] - cpus[0] == len(cpus) - 1
    return f"{cpus[0]}-{cpus[-1]}" if whole else ",".join(map(str, cpus))
