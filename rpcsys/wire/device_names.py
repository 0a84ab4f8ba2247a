"""Names of the devices of one board: ``cpu:0``, ``opencl:1``, ``openvino:GPU.0``; and how many threads a call has."""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional

from rpcsys.errors import UsageError
from rpcsys.wire import checks

#: The kinds of devices, and DLPack's number of each; None where DLPack has none.
KINDS: Mapping[str, Optional[int]] = {
    "cpu": 1, "cuda": 2, "opencl": 4, "vulkan": 7, "metal": 8, "rocm": 10, "webgpu": 15, "hexagon": 16,
    "npu": None, "openvino": None,
}  # fmt: skip
#: The kind whose devices have OpenVINO's own names behind the colon.
OPENVINO = "openvino"

_DLPACK = {number: kind for kind, number in KINDS.items() if number is not None}
#: The most devices that a board announces, and the characters of a name.
MAX_DEVICES = 32
MAX_NAME = 64
#: Threads of one call: no board has more cores.
MAX_THREADS = 1024

_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)
_OPENVINO = re.compile(r"[A-Z][A-Z0-9_]{0,15}(\.[A-Z0-9_]{1,15}){0,2}", re.ASCII)
_FORMS = "devices of a board are written KIND:NUMBER such as opencl:0 (KIND: {}), or openvino:NAME such as openvino:CPU"


class DeviceName(NamedTuple):
    """A device of one board: its kind, and its number as a text; OpenVINO's own name of it for OpenVINO's."""

    kind: str
    number: str = "0"

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def dlpack(self) -> Optional[int]:
        """DLPack's number of this kind, None if it has none."""
        return KINDS[self.kind]


#: The device that every board has.
CPU = DeviceName("cpu")


def parse(text: object) -> DeviceName:
    """Parse a name; a kind alone means number 0, except for OpenVINO's. Raises `UsageError`."""
    kind, colon, number = text.partition(":") if isinstance(text, str) else ("", "", "")
    form = _OPENVINO if kind == OPENVINO else _NUMBER
    if not colon and kind != OPENVINO:
        number = "0"
    if kind not in KINDS or not form.fullmatch(number):
        kinds = ", ".join(each for each in KINDS if each != OPENVINO)
        raise UsageError(f"{checks.shown(text)} is no name of a device; {_FORMS.format(kinds)}")
    return DeviceName(kind, number)


def of_dlpack(kind: int, number: int) -> str:
    """The name of a device by DLPack's number of its kind; a kind without a name stays a number: ``"13:0"``."""
    return f"{_DLPACK.get(kind, kind)}:{number}"


def check_threads(threads: object) -> None:
    """Raise `UsageError` unless a call can have so many ``threads``; 0 is the default of what runs it."""
    if type(threads) is not int or not 0 <= threads <= MAX_THREADS:
        raise UsageError(f"threads={threads!r}: a call has 1 to {MAX_THREADS} threads; 0 means the model's own number")
