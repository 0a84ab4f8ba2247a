"""Toolchains and libraries for the devices of sessions: what a device is, is known when it is leased."""

from __future__ import annotations

from pathlib import Path

from rpcsys.client import Session
from rpcsys.module import Module, elf, export_library
from rpcsys.module import toolchain as toolchains


def export_for(session: Session, module: Module, path: Path) -> None:
    """Write ``module``, without native code, as a library for a session's device. Raises as `export_library`."""
    export_library(module, path, toolchain_of(session))


def toolchain_of(session: Session) -> str | None:
    """The target that a session's device is; None for one like this machine, or if no toolchain file is for it."""
    told = session.info.get("capabilities", {}).get("target")
    if not isinstance(told, list) or told == list(elf.here()):
        return None
    for name in toolchains.names():
        target = toolchains.target(name)
        if [target.machine, target.bits] == told:
            return name
    return None
