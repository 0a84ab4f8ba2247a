"""The element types an array may have on the wire, and how many bytes one element takes there.

Names are numpy's (``float32``) and, for the types numpy lacks, those of ``ml_dtypes`` (``bfloat16``). Types under eight
bits travel one value a byte. Object and structured types have no name here, hence no form on the wire.
"""

from __future__ import annotations

import math
import re
import sys
from functools import lru_cache
from typing import Any, Callable, Dict, Iterable, Optional

from rpcsys.errors import ProtocolError, ValueNotSupported

_NAMES = {
    1: "bool int8 uint8 int4 uint4 int2 uint2 float6_e2m3fn float6_e3m2fn float4_e2m1fn float8_e3m4 float8_e4m3 "
    "float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
    2: "int16 uint16 float16 bfloat16",
    4: "int32 uint32 float32",
    8: "int64 uint64 float64 complex64",
    16: "float128 complex128",
    32: "complex256",
}
#: Bytes of one element, by the name of its type.
ITEM_BYTES: Dict[str, int] = {name: size for size, names in _NAMES.items() for name in names.split()}

#: struct format characters of the same size on every platform -> names. ``l`` and ``L`` are
#: missing: they have 4 or 8 bytes, see `name_of_format`.
_FORMAT_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 S1"
_FORMATS = dict(zip("?bhiqBHIQefdc", _FORMAT_NAMES.split()))
_FORMAT_OF = {name: code for code, name in _FORMATS.items() if code != "c"}

# The largest fixed width of a string in an array. It bounds the arithmetic below.
MAX_WIDTH = 1 << 24
#: numpy after the first attempt to import it; False where it is not installed.
_numpy: Any = None
_WIDE = re.compile(r"(?:([SUV])([1-9][0-9]{0,7}|0)|(?:datetime64|timedelta64)(?:\[[0-9]{0,9}[A-Za-zμ]{1,8}\])?)\Z")


def item_bytes(name: Any) -> int:
    """Bytes one element of dtype ``name`` takes on the wire. Raises `ProtocolError` for an unknown name."""
    size = ITEM_BYTES.get(name) if type(name) is str else None
    if size is not None:
        return size
    match = _WIDE.match(name) if type(name) is str else None
    if match is None:
        raise ProtocolError(f"{name!r} is not an element type of the wire"[:200])
    kind, digits = match.groups()
    width = int(digits) if kind else 8
    if width > MAX_WIDTH:
        raise ProtocolError(f"element type {name} is wider than {MAX_WIDTH} characters")
    return width * 4 if kind == "U" else width


def name_of_format(code: str, size: int) -> str:
    """The wire's name for an element of struct format ``code`` and ``size`` bytes (memoryview, array).

    Raises `ValueNotSupported` for formats without a name, including big-endian ones.
    """
    plain = code.lstrip("@=<") if code[:1] in "@=<" else code
    if plain in ("l", "L", "n", "N"):
        return "{}int{}".format("u" if plain in "LN" else "", size * 8)
    try:
        return _FORMATS[plain]
    except KeyError:
        why = f"a buffer of format {code!r} has no form on the wire; cast it to a plain type first"
        raise ValueNotSupported(why) from None


def format_of_name(name: str) -> Optional[str]:
    """The struct format of dtype ``name``, or None where struct has none (bfloat16, U5, …)."""
    return _FORMAT_OF.get(name)


@lru_cache(maxsize=256)
def name_of_numpy(dtype: Any) -> str:
    """The wire's name for a little-endian ``numpy.dtype``.

    Raises `ValueNotSupported` for object, structured and other types without a name.
    """
    kind = dtype.kind
    if kind in "SUV" and dtype.names is None and dtype.subdtype is None and dtype.type.__module__ == "numpy":
        return "{}{}".format(kind, dtype.itemsize // 4 if kind == "U" else dtype.itemsize)
    name = str(dtype.name)
    if dtype.names is not None or dtype.hasobject or (name not in ITEM_BYTES and kind not in "mM"):
        raise ValueNotSupported(f"an array of dtype {dtype} has no form on the wire; only plain element types cross")
    return name


def import_numpy() -> Any:
    """numpy, imported at the first use. None where it is not installed, or only its stub for bare boards is."""
    global _numpy
    if _numpy is None:
        try:
            import numpy as np
        except ImportError:
            _numpy = False
        else:
            _numpy = not hasattr(np, "__rpcsys_stub__") and np
    return _numpy or None


def loaded_numpy() -> Any:
    """numpy, if this process has imported it; else None."""
    return _numpy or (import_numpy() if "numpy" in sys.modules else None)


def need_numpy() -> Any:
    """The numpy module. Raises ImportError where it is not installed."""
    np = import_numpy()
    if np is None:
        raise ImportError("there is no numpy here; type: python3 -m pip install numpy")
    return np


@lru_cache(maxsize=256)
def numpy_dtype(name: str) -> Any:
    """The ``numpy.dtype`` of a wire name, or None where this machine's numpy cannot express it."""
    np = need_numpy()
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError, TypeError):
        return None


#: Number of elements in an array of a shape; 1 for an empty shape.
count: Callable[[Iterable[int]], int] = math.prod
