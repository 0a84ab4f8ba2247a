"""The devices that a model is to be divided over: how they are written, and opened to be tried.

cpu:0        a CPU of this machine          cpu:0-3    several together
key:edge     a device leased by its key     HOST:PORT  a server without a tracker
key:edge@HOST:PORT  the same, of a server that wants its key to be known
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rpcsys.client import Session, Tracker, connect, connect_tracker
from rpcsys.errors import ModelError, UsageError, one_line
from rpcsys.graph import models
from rpcsys.graph.building import build
from rpcsys.graph.crossing import check, coded
from rpcsys.graph.planning import Link
from rpcsys.graph.profiling import link_of
from rpcsys.graph.sharing import available, shares
from rpcsys.graph.shipping import export_for
from rpcsys.graph.stage import Stage
from rpcsys.graph.targets import OnnxRuntime
from rpcsys.link import parse_address

#: A device as a caller names it: as `parse` reads it, or a session that is open.
DeviceLike: TypeAlias = str | Session
TrackerLike: TypeAlias = Tracker | str | tuple[str, int] | None

_FORMS = "devices are written cpu:0, cpu:0-3, key:NAME or HOST:PORT"


@dataclass(frozen=True)
class Device:
    """One of the devices that a plan is made for.

    Attributes
    ----------
    name : as it was written
    cpus : of this machine, if that is what it is
    key, address : by which it is leased or found, else
    """

    name: str
    cpus: tuple[int, ...] = ()
    key: str = ""
    address: str = ""
    session: Session | None = None

    @property
    def target(self) -> OnnxRuntime:
        """What a stage is built for that runs on its CPUs."""
        return OnnxRuntime(threads=len(self.cpus), cpus=self.cpus)

    @property
    def leased(self) -> bool:
        """Whether a tracker is asked for it."""
        return bool(self.key) and not self.address

    @property
    def kind(self) -> object:
        """Equal for devices that are alike, as far as their names tell."""
        return (len(self.cpus), self.key, self.address, self.session)


def parse(devices: int | Sequence[DeviceLike]) -> list[Device]:
    """The devices meant; a number n is the CPUs that this process may use, in n shares.

    Raises `UsageError` for what is none, and for CPUs that this process does not have or that are given twice.
    """
    if isinstance(devices, int):
        return _shares(devices)
    if isinstance(devices, str):
        devices = devices.split(",")
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


def _shares(count: int) -> list[Device]:
    here = sorted(available())
    if not 0 < count <= len(here):
        raise UsageError(
            f"this process has {len(here)} CPU(s), which cannot be divided into {count}; {_FORMS}"
        )
    each = shares(dict.fromkeys(map(str, range(count)), 1), here)
    return [Device(f"cpu:{_listed(cpus)}", cpus) for cpus in each.values()]


def _parsed(device: DeviceLike) -> Device:
    if isinstance(device, Session):
        return Device("{}:{}".format(*device.address), session=device)
    device = device.strip()
    kind, _, rest = device.partition(":")
    if kind == "cpu":
        return Device(device, _cpus(device, rest))
    key, _, address = rest.partition("@") if kind == "key" else ("", "", device)
    try:
        if address:
            parse_address(address)
    except UsageError:
        raise UsageError(f"{device!r} is no device; {_FORMS}") from None
    if not (key or address):
        raise UsageError(f"{device!r} is no device; {_FORMS}")
    return Device(device, key=key, address=address)


def _cpus(device: str, text: str) -> tuple[int, ...]:
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else not last)) or len(text) > 11:
        raise UsageError(f"{device!r} is no device; {_FORMS}")
    cpus = tuple(range(int(first), int(last or first) + 1)) if int(last or first) < 1 << 16 else ()
    if not cpus:
        raise UsageError(f"{device!r} is no range of CPUs")
    return cpus


def _listed(cpus: Sequence[int]) -> str:
    """``0-3``; ``0,2`` where some between are missing."""
    whole = len(cpus) > 1 and cpus[-1] - cpus[0] == len(cpus) - 1
    return f"{cpus[0]}-{cpus[-1]}" if whole else ",".join(map(str, cpus))


# ------------------------------------------------------------------ opened, to be tried


@dataclass(frozen=True)
class Trial:
    """A stage that is loaded on a device.

    Attributes
    ----------
    call : runs it there, with tensors of this machine, and brings its results here
    work_s : its own seconds there for these arguments, if that is less than a call takes; else None
    """

    call: Callable[..., Any]
    work_s: Callable[[Sequence[Any]], float] | None = None


class Here:
    """CPUs of this machine."""

    link: Link | None = None

    def __init__(self, device: Device) -> None:
        self._device = device

    def load(self, stage: Stage) -> Trial:
        module = build(stage, self._device.target)
        module.link()
        return Trial(module)


class There:
    """A device that a session is open with."""

    def __init__(self, device: Device, session: Session, calls: int, encode: str) -> None:
        check(session, encode, device.name)
        self._device = device
        self._encode = encode
        self._session = session
        self.link: Link | None = link_of(session, calls)

    def load(self, stage: Stage) -> Trial:
        try:
            module = load_on(self._session, stage)
        except ModelError as error:
            raise ModelError(
                f"{self._device.name} cannot take {stage.name}: {one_line(error)}", type="ModelError"
            ) from None

        def work_s(args: Sequence[Any]) -> float:
            return float(module.time_evaluator("main", number=1, repeat=5)(*args).median)

        return Trial(coded(module, self._encode), work_s)


def load_on(session: Session, stage: Stage) -> Any:
    """A stage on a device, through a file that is gone there when it is loaded."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        path = Path(folder, f"{stage.name}.so")
        if fits_a_file(stage):
            path = path.with_suffix(".onnx")
            stage.save(path)
        else:
            export_for(session, build(stage), path)
        return session.load_module(path)


def fits_a_file(stage: Stage) -> bool:
    """Whether one ONNX file is all of it: an exact stage is a library, which says at which level it runs; so is a large one."""
    return not stage.exact and stage.weight_bytes <= models.EMBEDDED_BYTES


def sessions(
    devices: Sequence[Device], tracker: TrackerLike, wait_s: float, stack: ExitStack
) -> Iterator[Session | None]:
    """A session with each device, None for CPUs of this machine; ``stack`` gives back those that it opened.

    Raises what connecting and leasing does; see `rpcsys.client.Tracker.request`.
    """
    lender: Tracker | None = None
    for device in devices:
        if device.leased:
            lender = lender or _lender(tracker, stack)
            yield stack.enter_context(lender.request(device.key, wait_timeout=wait_s))
        elif device.address:
            yield stack.enter_context(connect(device.address, key=device.key, timeout=wait_s))
        else:
            yield device.session


def _lender(tracker: TrackerLike, stack: ExitStack) -> Tracker:
    return tracker if isinstance(tracker, Tracker) else stack.enter_context(connect_tracker(tracker))


def bench(device: Device, session: Session | None, calls: int, encode: str) -> Here | There:
    """A device ready to be tried; a remote one with so many ``calls`` under way at once, their arrays encoded.

    Raises `SessionError` where it is lost meanwhile, `NotSupported` where it cannot decode them.
    """
    return Here(device) if session is None else There(device, session, calls, encode)
