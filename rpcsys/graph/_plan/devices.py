"""The devices to divide a model over: parses their names and opens sessions with them.

cpu:0        a CPU of this machine          cpu:0-3    several together
key:edge     a device leased by its key     HOST:PORT  a server without a tracker
key:edge@HOST:PORT  the same, of a server that requires its key

Chips, the devices inside a board, have the names of `rpcsys.wire.device_names`:

edge:opencl:0, key:edge/opencl:0  one of a board leased by its key; edge#2:opencl:0 of a second one
HOST:PORT/opencl:0                one of a server without a tracker
opencl:0                          one of this machine; its CPUs are cpu:0, cpu:0-3
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from rpcsys.client import Session, Tracker, connect, connect_tracker
from rpcsys.errors import UsageError
from rpcsys.graph._build.session_device import check_devices, devices_of, toolchain_of
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Tvm
from rpcsys.graph._pipeline.cpu_shares import available, shares
from rpcsys.link.address import parse_address
from rpcsys.wire.device_names import CPU, OPENVINO
from rpcsys.wire.device_names import parse as parse_device

DeviceLike: TypeAlias = str | Session  # a device in a caller's terms: a text for `parse`, or an open session
TrackerLike: TypeAlias = Tracker | str | tuple[str, int] | None

_FORMS = "devices are written cpu:0, cpu:0-3, key:NAME or HOST:PORT; those inside a board NAME:opencl:0"
_CONNECT_S = 1.0  # seconds to wait for a server at least
#: Kinds of devices for which stages stay ONNX models; TVM compiles them for all others.
_RUNTIMES = (CPU.kind, OPENVINO, "npu")
_BOARD = re.compile(r"(?P<key>[^,\s]+?)(?P<number>#[1-9][0-9]{0,3})?", re.ASCII)


@dataclass(frozen=True)
class PlanDevice:
    """A device that a plan can use."""

    name: str  # as the caller wrote it
    cpus: tuple[int, ...] = ()  # of this machine, if the device is these CPUs
    key: str = ""  # to lease it by
    address: str = ""  # to connect to it without a tracker
    session: Session | None = None
    chip: str = ""  # the name of the device inside the board, or this machine; "" for a whole board, and for CPUs
    board: str = ""  # tells boards of chips apart; equal for the chips of one
    compiled: OnnxRuntime | Tvm | None = None  # what a stage is built for, where the board says it

    @property
    def target(self) -> OnnxRuntime | Tvm:
        """The target of a stage that runs on these CPUs, or on this chip."""
        if self.compiled is not None:
            return self.compiled
        return chip_target(self.chip) if self.chip else OnnxRuntime(threads=len(self.cpus), cpus=self.cpus)

    def on_board(self, tracker: TrackerLike = None, **terms: Any) -> Leased:
        """The target of a stage on this chip; ``terms`` are the other fields of `Leased`."""
        lender = OneServer(self.address, self.key) if self.address else tracker or ""
        key = self.key or self.address
        return Leased(key, lender, target=self.target, device=self.chip, board=self.board, **terms)

    @property
    def here(self) -> bool:
        """Whether it is a part of this machine."""
        return not (self.key or self.address or self.session)

    @property
    def leased(self) -> bool:
        """Whether it is leased from a tracker."""
        return bool(self.key) and not self.address

    @property
    def kind(self) -> object:
        """A value that is equal for devices that are alike, as far as their facts are known."""
        return (len(self.cpus), self.key, self.address, self.session, self.chip, self.board)


class OneServer(NamedTuple):
    """Lends a server without a tracker, as `Tracker` lends those of a key."""

    address: str
    key: str

    def request(self, key: str, *, wait_timeout: float, wait_for_key: bool) -> Session:
        """A session with the server; ``key`` names it in messages. Raises what `connect` raises."""
        return connect(self.address, key=self.key, timeout=max(wait_timeout, _CONNECT_S))


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
    chips = [(device.board, device.chip) for device in parsed if device.chip]
    for device in parsed:
        if chips.count((device.board, device.chip)) > 1:
            raise UsageError(
                f"{device.name} is given twice; another board of the same key is written NAME#2:{device.chip}"
            )
    return parsed


def chip_target(chip: str, says: Mapping[str, Any] | None = None, toolchain: str = "") -> OnnxRuntime | Tvm:
    """The target of stages for a device inside a board, of which its server ``says`` this.

    ``toolchain`` : of a board that is unlike this machine
    """
    device = parse_device(chip)
    loaders = (says or {}).get("loaders") or ()
    if device.kind in _RUNTIMES or "onnxruntime" in loaders or "openvino" in loaders:
        return OnnxRuntime()
    host = {"kind": "llvm", **({"mtriple": toolchain} if toolchain else {})}
    cpu = {"device": "cpu"} if device.kind == "opencl" and (says or {}).get("type") == "cpu" else {}
    return Tvm({"kind": device.kind, **cpu, "host": host}, toolchain)


def with_targets(devices: Sequence[PlanDevice], sessions: Sequence[Session | None]) -> list[PlanDevice]:
    """The devices, each chip of a board with the target that suits what its server says of it.

    Raises `NotSupported` for a chip that the board lacks.
    """
    found = []
    for device, session in zip(devices, sessions, strict=True):
        if device.chip and session is not None:
            check_devices(session, [device.chip], device.name)
            says = (devices_of(session) or {}).get(device.chip)
            device = replace(device, compiled=chip_target(device.chip, says, toolchain_of(session) or ""))
        found.append(device)
    return found


def open_sessions(
    devices: Sequence[PlanDevice], tracker: TrackerLike, wait_s: float, stack: ExitStack
) -> Iterator[Session | None]:
    """A session with each device, None for CPUs of this machine; ``stack`` closes the sessions that this opened.

    Raises what connecting and leasing raise; see `rpcsys.client.Tracker.request`.
    """
    lender: Tracker | None = None
    boards: dict[str, Session] = {}
    for device in devices:
        if device.board in boards:
            yield boards[device.board]
            continue
        session = device.session
        if device.leased:
            if lender is None:
                lender = tracker if isinstance(tracker, Tracker) else stack.enter_context(connect_tracker(tracker))
            session = stack.enter_context(lender.request(device.key, wait_timeout=wait_s))
        elif device.address:
            session = stack.enter_context(connect(device.address, key=device.key, timeout=wait_s))
        if device.board and session is not None:
            boards[device.board] = session
        yield session


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
    if device and _chip(device) == device:
        return _chip_here(device)
    where, _, inside = device.rpartition("/")
    if inside and _chip(inside):
        return _with_chip(device, where, _chip(inside))
    board, _, chip = device.rpartition(":")
    board, _, chip_kind = board.rpartition(":")
    inside = _chip(f"{chip_kind}:{chip}")
    if kind != "key" and board and inside:
        return _with_chip(device, f"key:{board}", inside)
    key, _, address = rest.partition("@") if kind == "key" else ("", "", device)
    try:
        if address or not key:
            parse_address(address)
    except UsageError:
        raise UsageError(f"{device!r} is no device; {_FORMS}") from None
    return PlanDevice(device, key=key, address=address)


def _chip(text: str) -> str:
    """The full name of a device inside a board; "" if ``text`` is none."""
    try:
        return str(parse_device(text))
    except UsageError:
        return ""


def _chip_here(chip: str) -> PlanDevice:
    """A chip of this machine. Raises `UsageError` for one that compiled code would not choose by itself."""
    if not isinstance(chip_target(chip), Tvm) or parse_device(chip).number != "0":
        raise UsageError(
            f"stages cannot be planned for {chip} of this machine; name it behind a server: HOST:PORT/{chip}"
        )
    return PlanDevice(chip, chip=chip)


def _with_chip(name: str, where: str, chip: str) -> PlanDevice:
    """A chip of the board at ``where``, which is written as a device; ``#2`` behind a key is a second board of it."""
    board = _BOARD.fullmatch(where)
    plain = _parsed(board["key"] if board else where)
    if plain.here or plain.chip:
        raise UsageError(f"{name!r} is no device; {_FORMS}")
    return replace(plain, name=name, chip=chip, board=where.removeprefix("key:"))


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
