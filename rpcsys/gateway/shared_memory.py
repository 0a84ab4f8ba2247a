"""Shared memory of clients on this machine: named regions below ``/dev/shm``, where arrays are read and written.

It is read and written as a file, not mapped: a client that shortens a mapped file ends the process that touches it.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any

from rpcsys.wire.inference import InferenceError
from rpcsys.wire.inference_requests import Region
from rpcsys.wire.memory import Pool

_FOLDER = "/dev/shm/"
_KEY = re.compile(r"/?(?!\.\.?\Z)[^/\0]{1,250}")
#: Regions at the same time: each keeps a descriptor.
MAX_REGIONS = 1024
_OFF = "shared memory is off at this gateway: it is for clients on its own machine, by --shared-memory"


class SharedRegion:
    """A registered region: ``size`` bytes from ``offset`` on of the file that clients know as ``key``."""

    def __init__(self, key: str, offset: int, size: int) -> None:
        self.key = key
        self.offset = offset
        self.size = size
        self.descriptor = _opened(key, offset + size)

    def close(self) -> None:
        os.close(self.descriptor)


class SharedMemory:
    """The regions that clients have registered. ``allowed``: whether they may."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._regions: dict[str, SharedRegion] = {}

    def register(self, name: Any, key: Any, offset: Any, size: Any) -> None:
        """Map a region. Raises `InferenceError`: 501 if this is off, 400 for what cannot be mapped."""
        if not self.allowed:
            raise InferenceError(_OFF, 501)
        if type(name) is not str or not name or type(key) is not str or not _KEY.fullmatch(key):
            raise InferenceError("a region needs a name, and a key that names shared memory, such as /input")
        if any(type(number) is not int or not 0 <= number < 1 << 48 for number in (offset, size)) or not size:
            raise InferenceError(f"region '{name}' needs an offset and a byte_size, as whole numbers"[:300])
        if name in self._regions:
            raise InferenceError(f"region '{name}' is registered already; unregister it first"[:300])
        if len(self._regions) >= MAX_REGIONS:
            raise InferenceError(f"{MAX_REGIONS} regions are registered already; unregister some", 503)
        self._regions[name] = SharedRegion(key, offset, size)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them ("")."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                region.close()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """What is known of a region, or of all ("") by name. Raises `InferenceError` (404) for an unknown one."""
        if name and name not in self._regions:
            raise InferenceError(f"region '{name}' is not registered"[:300], 404)
        return [
            {"name": each, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for each, region in sorted(self._regions.items())
            if not name or each == name
        ]

    def read(self, place: Region, pool: Pool, what: str) -> memoryview:
        """What is at a place in a region, in memory of ``pool``. Raises `InferenceError` (400) about ``what``."""
        region, start = self._find(place, what)
        memory = pool.take(place.size)
        if os.preadv(region.descriptor, [memory], start) != place.size:
            raise InferenceError(f"{what}: region '{place.name}' has become shorter"[:300])
        return memory

    def write(self, place: Region, data: Any, what: str) -> None:
        """Write ``data`` at a place in a region. Raises `InferenceError` (400) about ``what``, if it has no room."""
        region, start = self._find(place, what)
        if len(data) > place.size:
            raise InferenceError(f"{what} takes {len(data)} bytes, and its shared memory has {place.size}"[:300])
        if os.fstat(region.descriptor).st_size < start + len(data):
            raise InferenceError(f"{what}: region '{place.name}' has become shorter"[:300])
        os.pwrite(region.descriptor, data, start)

    def _find(self, place: Region, what: str) -> tuple[SharedRegion, int]:
        """The region of a place, and where in its file the place begins."""
        region = self._regions.get(place.name)
        if region is None:
            raise InferenceError(f"{what}: region '{place.name}' is not registered"[:300])
        end = place.offset + place.size
        if end > region.size:
            beyond = f"{what} ends at {end} of region '{place.name}', which has {region.size} bytes"
            raise InferenceError(beyond[:300])
        return region, region.offset + place.offset


def _opened(key: str, size: int) -> int:
    try:
        number = os.open(_FOLDER + key.lstrip("/"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InferenceError(f"shared memory '{key}' cannot be used: {error.strerror}"[:300]) from None
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_size < size:
        os.close(number)
        raise InferenceError(f"shared memory '{key}' has {found.st_size} bytes, and {size} are asked for"[:300])
    return number
