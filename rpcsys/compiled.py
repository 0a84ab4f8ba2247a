"""Loads the optional C library ``rpcsys.speedups``, or says why it is not used."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

import rpcsys
from rpcsys.module import elf

#: What the library and its callers in Python expect of each other; a change of either gets the next number.
INTERFACE = 4
#: Why the library is not used; empty if it is.
WITHOUT = ""


def _check() -> None:
    """Raise ImportError if the library is not there or not wanted, or if loading it would crash."""
    # Other interpreters and free-threaded builds cannot load it, and types of Python 3.8 cannot export buffers.
    if sys.implementation.name != "cpython" or sys.version_info < (3, 9) or "t" in sys.abiflags:
        raise ImportError("they are for CPython from 3.9 on, with its interpreter lock")
    if os.environ.get("RPCSYS_SPEEDUPS") == "0":
        raise ImportError("RPCSYS_SPEEDUPS=0")
    found = PathFinder.find_spec("rpcsys.speedups", rpcsys.__path__)
    if found is None or not found.origin:
        raise ImportError("they are not compiled")
    try:
        elf.read(found.origin)  # the system's loader ends the process where a file is cut off
    except elf.ElfError as error:
        raise ImportError(f"{found.origin} {error}") from None
    except OSError as error:
        raise ImportError(f"{found.origin}: {error.strerror}") from None


def _reason(error: ImportError) -> str:
    """Why the library is not used. Of one for another processor, the system's loader says that there is no file."""
    if error.path and not elf.read(error.path).fits():
        return f"{error.path} is for another processor"
    return str(error)


try:
    _check()
    from rpcsys import speedups as speedups  # noqa: PLC0414 - it is exported

    if getattr(speedups, "INTERFACE", 0) != INTERFACE:
        raise ImportError(f"{speedups.__file__} is of another version of rpcsys (in a checkout, type: make native)")
except ImportError as error:  # one of the system's loader, too
    speedups = None  # type: ignore[assignment]
    WITHOUT = _reason(error)
