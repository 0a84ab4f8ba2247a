"""Element types: DLPack's codes and the names that the rest of rpcsys uses (numpy's, and ml_dtypes')."""

from __future__ import annotations

from typing import Dict, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi

#: DLDataTypeCode of dlpack.h -> the kind's name, to which the bits are added.
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
#: Names that do not follow that rule -> (code, bits).
_SPECIAL: Dict[str, Tuple[int, int]] = {
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "handle": (3, 64),
}
_CODES: Dict[str, Tuple[int, int]] = {
    **{f"{kind}{bits}": (code, bits) for code, kind in ((0, "int"), (1, "uint")) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64, 128)},
    **{f"complex{bits}": (5, bits) for bits in (64, 128, 256)},
    "bfloat16": (4, 16),
    **_SPECIAL,
}
_NAMES = {codes: name for name, codes in _CODES.items()}
_NAMES[(1, 1)] = "bool"  # TVM's until 0.19


class DType(str):
    """The name of an element type as a value: native code gets it as a type, not as a string."""

    __slots__ = ()


def codes(name: str) -> Tuple[int, int]:
    """DLPack's code and bits of an element type. Raises `NativeError` for one that native code cannot take.

    Types under eight bits cannot be taken: DLPack packs them, and arrays here have one value a byte.
    """
    try:
        return _CODES[name]
    except KeyError:
        raise NativeError(
            f"an array of {name} cannot be given to native code; convert it to a plain element type first",
            kind="TypeError",
        ) from None


def structure(name: str) -> abi.DataType:
    """The structure for the name, which may end in ``x`` and a number of lanes. Raises `NativeError`."""
    if name in _CODES:
        return abi.DataType(*_CODES[name], 1)
    base, _, lanes = name.rpartition("x")
    if not (base and lanes.isdigit() and int(lanes) < 1 << 16):
        base, lanes = name, "1"
    return abi.DataType(*codes(base), int(lanes))


def name_of(dtype: abi.DataType) -> str:
    """The name of a structure's element type, such as ``float32`` or ``float32x4``."""
    code, bits, lanes = dtype.code, dtype.bits, dtype.lanes
    name = _NAMES.get((code, bits)) or "{}{}".format(_KINDS.get(code, f"custom[{code}]"), bits)
    return name if lanes == 1 else f"{name}x{lanes}"
