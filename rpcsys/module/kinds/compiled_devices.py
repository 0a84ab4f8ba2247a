"""Which device compiled code runs on: by the kinds of the modules inside its library, and the drivers it links."""

from __future__ import annotations

import re
from typing import Dict, Iterable, Sequence

from rpcsys.errors import ModelError
from rpcsys.ffi.device_arrays import TITLES
from rpcsys.wire.device_names import CPU, DeviceName, parse

#: Kinds of TVM's modules that hold kernels -> the kind of device that runs them.
DEVICES: Dict[str, str] = {**{kind: kind for kind in TITLES}, "hip": "rocm"}
#: Functions of a device's driver, by which a library without such modules drives the device itself.
_DRIVERS = {"cuda": "cu(da)?[A-Z]", "rocm": "hip[A-Z]", "opencl": "cl[A-Z]", "vulkan": "vk[A-Z]", "metal": "MTL[A-Z]"}


def default(kinds: Iterable[str]) -> str:
    """The device of a library with modules of these ``kinds`` inside; "" for the CPU."""
    own = _compiled_for(kinds)
    return str(DeviceName(own)) if own else ""


def chosen(device: str, kinds: Sequence[str], undefined: Iterable[str], name: str) -> str:
    """Where the library ``name`` runs that is to run on ``device`` ("" for its `default`); "" for the CPU.

    ``undefined``: symbols that it needs of other libraries. Raises `ModelError`, in one line, for another device than
    it is compiled for: its code would take the device's addresses for the CPU's.
    """
    if not device:
        return default(kinds)
    wanted, own = parse(device), _compiled_for(kinds) or CPU.kind
    driver = _DRIVERS.get(wanted.kind)
    drives = driver is not None and not kinds and any(re.match(driver, symbol) for symbol in undefined)
    if wanted.kind != own and not drives:
        how = f"compile it for the target {wanted.kind}, or load it without a device"
        raise ModelError(f"{name} is compiled for {'the CPU' if own == CPU.kind else own}, not for {wanted}; {how}")
    return "" if wanted.kind == CPU.kind else str(wanted)


def _compiled_for(kinds: Iterable[str]) -> str:
    return next((DEVICES[kind] for kind in kinds if kind in DEVICES), "")
