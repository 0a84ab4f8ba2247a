"""Heads that are sent again and again: remembered by what the arrays are, not by what they hold.

A call of one function with arrays of the same types and shapes always has the same head. `HeadTable`
finds it without walking the values: an inference then costs two dictionary look-ups instead of JSON.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple

from rpcsys.wire.frames import REMEMBERED_BYTES, REMEMBERED_HEADS, Buffer
from rpcsys.wire.tensor import Tensor

_SCALARS = (bool, int, type(None))
_PLAIN_KINDS = "biufc"


def signature(values: Sequence[Any], key: List[Hashable], buffers: List[Buffer]) -> bool:
    """Append to ``key`` what decides the head of ``values``, and their memory to ``buffers``.

    False if any of them is more than a plain array in C order or a scalar: then its head depends on
    more than can be seen at a glance, and both lists are to be thrown away.
    """
    numpy = sys.modules.get("numpy")
    ndarray = numpy.ndarray if numpy is not None else None
    for value in values:
        kind = type(value)
        if kind is ndarray:
            dtype = value.dtype
            if not dtype.isnative or dtype.kind not in _PLAIN_KINDS:
                return False
            try:
                buffers.append(value.data.cast("B"))
            except (TypeError, ValueError):  # not C order, or no elements
                return False
            key.append((dtype.num, value.shape))
        elif kind in _SCALARS:
            key.append((kind, value))
        elif kind is memoryview:
            try:
                buffers.append(value.cast("B"))
            except (TypeError, ValueError):
                return False
            key.append((value.format, value.shape))
        elif kind is Tensor and value.dtype != "strings" and value.device == "cpu:0":
            buffers.append(value.data)
            key.append((value.dtype, value.shape, len(value.data)))
        else:
            return False
    return True


class HeadTable:
    """A bounded number of short heads by the signature of what they describe. Holds bytes only.

    Little-endian machines only, since there a native array is what the wire wants; elsewhere `get`
    never finds anything.
    """

    def __init__(self) -> None:
        self._heads: Dict[Tuple[Hashable, ...], bytes] = {}
        self._usable = sys.byteorder == "little"

    def get(self, key: Tuple[Hashable, ...]) -> Optional[bytes]:
        """The head remembered for ``key``, or None."""
        return self._heads.get(key)

    def put(self, key: Tuple[Hashable, ...], head: bytes) -> None:
        """Remember ``head``; all are forgotten when there are too many."""
        if not self._usable or len(head) > REMEMBERED_BYTES or len(repr(key)) > 2 * REMEMBERED_BYTES:
            return
        if len(self._heads) >= REMEMBERED_HEADS:
            self._heads.clear()
        self._heads[key] = head
