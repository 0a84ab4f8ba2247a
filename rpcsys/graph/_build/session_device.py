"""A session's device: the target to build for, and calls of a stage on it with encoded arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rpcsys.client import RemoteModule, Session
from rpcsys.errors import NotSupported
from rpcsys.module import elf
from rpcsys.module import toolchain as toolchains
from rpcsys.wire import dtypes, encoding
from rpcsys.wire.device_names import CPU


def toolchain_of(session: Session) -> str | None:
    """The target of a session's device; None if it is like this machine, or if no toolchain file exists for it."""
    machine = session.info.get("capabilities", {}).get("target")
    if not isinstance(machine, list) or machine == list(elf.here()):
        return None
    targets = ((name, toolchains.target(name)) for name in toolchains.names())
    return next((name for name, target in targets if [target.machine, target.bits] == machine), None)


def check_encoding(session: Session, how: str, name: str) -> None:
    """Raise `NotSupported` if device ``name`` lacks the encoding ``how``; `UsageError` if ``how`` is no encoding."""
    wanted = set(filter(None, encoding.steps(how))) if how else set()
    missing = wanted.difference(session.info.get("capabilities", {}).get("encodings") or ())
    if missing:
        how = "there: pip install 'rpcsys[zstd]' (with numpy), or encode otherwise"
        raise NotSupported(f"{name} cannot decode {', '.join(sorted(missing))}; {how}")


def devices_of(session: Session) -> Mapping[str, Mapping[str, Any]] | None:
    """What the server says of each device of its board, by its name; None for a server of an earlier version."""
    listed = session.info.get("capabilities", {}).get("devices")
    if not isinstance(listed, (list, tuple)):
        return None
    return {str(each["name"]): each for each in listed if isinstance(each, Mapping) and "name" in each}


def check_devices(session: Session, wanted: Iterable[str], name: str) -> None:
    """Raise `NotSupported` if the board ``name`` lacks one of the devices."""
    known = devices_of(session)
    for device in sorted(set(wanted) - {str(CPU)} - (known or {}).keys()):
        if known is None:
            why = "its server is of a version that knows the CPU alone; update rpcsys there"
            raise NotSupported(f"{name} cannot run a stage on {device}: {why}")
        raise NotSupported(f"{name} has no device {device}; it has {', '.join(known) or str(CPU)}")


def encoded_call(module: RemoteModule, how: str, **options: Any) -> Callable[..., Any]:
    """A function that calls ``module`` with these options; ``how`` encodes the arrays it applies to ("": none)."""
    if not how:
        return functools.partial(module, **options) if options else module
    sent = [_applies(how, value) for value in module.inputs]
    returned = {str(place): how for place, value in enumerate(module.outputs) if _applies(how, value)}
    function = module["main"].encoding(returned)

    def call(*args: Any) -> Any:
        pairs = zip(args, sent, strict=True)
        return function(*[encoding.encode(arg, how) if applies else arg for arg, applies in pairs], **options)

    return call


def _applies(how: str, value: Mapping[str, Any]) -> bool:
    dtype = str(value.get("dtype"))
    return dtype in dtypes.ITEM_BYTES and encoding.applies(how, dtype)
