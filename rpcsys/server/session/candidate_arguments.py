"""The arrays that candidates of an auto-tuner are called with: of random values, kept for later candidates.

Arrays in the host's memory are filled again for each candidate, so that no candidate sees what another one wrote.
Known weakness: those in a device's memory are filled once, because a copy there may take longer than the measurement.
"""

from __future__ import annotations

import collections
import random
import struct
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from rpcsys.errors import ProtocolError, RemoteArgumentError
from rpcsys.module.placement import HOST
from rpcsys.wire import dtypes
from rpcsys.wire.checks import shown
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor

#: Bytes of arrays that are kept beside those of the current candidate.
KEPT_BYTES = 256 << 20
MAX_ARRAYS = 4096  # of one candidate, in all its sets of arguments
MAX_EXTENTS = 32
#: Values in a pattern, which is repeated; a prime, so that no two rows of a usual matrix are the same.
_PATTERN = 4093
_SEED = 1
#: Random values are from 1 to 10, as those with which TVM's runners measure: no zeros, no denormal numbers.
_LOW, _HIGH = 1, 10


class Spec(NamedTuple):
    """An array by its type and shape."""

    dtype: str
    shape: Tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return dtypes.item_bytes(self.dtype) * dtypes.count(self.shape)


class Arguments:
    """The arrays of one session."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: collections.OrderedDict[Tuple[str, Spec, int], Any] = collections.OrderedDict()
        self._kept_bytes = kept_bytes

    def sets(self, specs: Sequence[Spec], device: str, copies: int) -> List[List[Any]]:
        """So many lists of arrays, no array twice, in the memory of ``device``. Raises `NativeError`."""
        numbers: Dict[Spec, int] = collections.Counter()
        wanted = []
        for spec in list(specs) * copies:
            wanted.append((device, spec, numbers[spec]))
            numbers[spec] += 1
        self._make_room(wanted)
        arrays = [self._array(key) for key in wanted]
        return [arrays[start : start + len(specs)] for start in range(0, len(arrays), len(specs) or 1)] or [[]] * copies

    def _array(self, key: Tuple[str, Spec, int]) -> Any:
        device, spec, _ = key
        array = self._kept.get(key)
        if array is None or device == HOST:
            filled = Tensor(spec.dtype, spec.shape, Pool().take(spec.nbytes)) if array is None else array
            _fill(filled.data, pattern(spec.dtype))
            array = filled if device == HOST else _copied(filled, device)
        self._kept[key] = array
        self._kept.move_to_end(key)
        return array

    def _make_room(self, wanted: Sequence[Tuple[str, Spec, int]]) -> None:
        """Drop the arrays that were used least lately, until those that are not ``wanted`` have few bytes."""
        others = [key for key in self._kept if key not in set(wanted)]
        size = sum(key[1].nbytes for key in others)
        for key in others:
            if size <= self._kept_bytes:
                return
            size -= key[1].nbytes
            del self._kept[key]


def _copied(tensor: Tensor, device: str) -> Any:
    from rpcsys.ffi import device_arrays  # few sessions pay for it

    return device_arrays.copied(tensor, device)


def specs_of(arguments: Sequence[Any], copies: int) -> List[Spec]:
    """The arrays that a client asks for, as ``[dtype, shape]``. Raises `RemoteArgumentError`."""
    if len(arguments) * copies > MAX_ARRAYS:
        raise RemoteArgumentError(f"a candidate takes at most {MAX_ARRAYS} arrays")
    return [_spec(argument) for argument in arguments]


def _spec(given: Any) -> Spec:
    try:
        dtype, shape = given
        spec = Spec(dtype, tuple(shape))
        fits = len(spec.shape) <= MAX_EXTENTS and all(type(n) is int and 0 <= n < 1 << 48 for n in spec.shape)
        if fits and spec.nbytes < 1 << 48:
            pattern(dtype)
            return spec
    except (TypeError, ValueError, ProtocolError):
        pass
    raise RemoteArgumentError(f"an argument of a candidate is an array, [dtype, shape], not {shown(given)}")


def pattern(dtype: str) -> bytes:
    """Random values of an element type, the same each time. Raises `RemoteArgumentError` for a type without values."""
    found = _patterns.get(dtype)
    if found is None:
        found = _patterns[dtype] = _made(dtype, random.Random(_SEED))
    return found


_patterns: Dict[str, bytes] = {}


def _made(dtype: str, source: random.Random) -> bytes:
    size, code = dtypes.item_bytes(dtype), dtypes.format_of_name(dtype)
    real = [source.uniform(_LOW, _HIGH) for _ in range(_PATTERN)]
    if dtype == "bool":
        return bytes(value > (_LOW + _HIGH) / 2 for value in real)
    if dtype.startswith("float") and code is not None:
        return struct.pack(f"<{_PATTERN}{code}", *real)
    if dtype == "bfloat16":  # the upper half of a float32
        whole = struct.pack(f"<{_PATTERN}f", *real)
        return b"".join(whole[start + 2 : start + 4] for start in range(0, len(whole), 4))
    if dtype in ("complex64", "complex128"):
        return struct.pack("<{}{}".format(_PATTERN, "f" if size == 8 else "d"), *real)
    if "int" in dtype or size == 1:  # the types of eight bits have small numbers of both signs among these codes
        return b"".join(int(value).to_bytes(size, "little") for value in real)
    raise RemoteArgumentError(f"there are no random values of type {shown(dtype)}")


def _fill(memory: Any, values: bytes) -> None:
    """Fill ``memory`` with ``values``, repeated: what is filled is copied behind itself."""
    view = memoryview(memory).cast("B")
    done = min(len(values), len(view))
    view[:done] = values[:done]
    while done < len(view):
        more = min(done, len(view) - done)
        view[done : done + more] = view[:more]
        done += more
