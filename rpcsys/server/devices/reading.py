"""What the readings of drivers share. They run in the process that asks one driver."""

from __future__ import annotations

import ctypes
from typing import Any

#: The most devices, platforms or heaps that one driver is believed to have.
MAX_FOUND = 64


def load(library: str, *functions: str) -> Any:
    """The driver's library. Raises OSError where it does not load, or lacks one of these functions."""
    api = ctypes.CDLL(library)
    try:
        for name in functions:
            getattr(api, name).restype = ctypes.c_int32
    except AttributeError as error:
        raise OSError(str(error)) from None
    return api


def check(what: str, status: int) -> None:
    """Raises OSError for a status that is no success."""
    if status != 0:
        raise OSError(f"{what} failed with status {status}")


def text(data: bytes) -> str:
    """A text of C."""
    return data.partition(b"\0")[0].decode("utf-8", "replace").strip()


def version(number: int, *units: int) -> str:
    """The parts of a version in one number, each a multiple of a unit: ``12.4`` from 12040 with 1000 and 10."""
    parts = []
    for unit in units:
        parts.append(str(number // unit))
        number %= unit
    return ".".join(parts)
