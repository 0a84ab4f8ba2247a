"""Heads that are sent again and again: remembered by what the arrays are, not by what they hold.

A call of one function with arrays of the same types and shapes always has the same head. `HeadCache`
finds it without walking the values: an inference then costs two dictionary look-ups instead of JSON.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple

from rpcsys.wire.frames import REMEMBERED_BYTES, REMEMBERED_HEADS, Buffer, FrameTemplate
from rpcsys.wire.tensor import Tensor

_SCALARS = (bool, int, type(None))
_PLAIN_KINDS = "biufc"
_ndarray: Any = None

Key = Tuple[Any, ...]


def signature(about: Hashable, values: Sequence[Any]) -> Tuple[Optional[Key], Sequence[Buffer]]:
    """What decides the head of ``values``, ``about`` being what else does; and their memory, in order.

    The key is None if any of them is more than an array in C order or a scalar: then its head depends on
    more than can be seen at a glance. Else the memory is what belongs to a head that `HeadCache` knows by
    that key; of others it may be more than that: the table remembers plain element types only.
    """
    ndarray = _ndarray or _find_ndarray()
    try:
        if len(values) == 1:
            value = values[0]
            kind = type(value)
            if kind is ndarray and value.flags.c_contiguous:
                return (about, value.dtype, value.shape), values
            if kind in _SCALARS:
                return (about, kind, value), ()
        key: List[Any] = [about]
        buffers: List[Buffer] = []
        for value in values:
            kind = type(value)
            if kind is ndarray:
                buffers.append(value.data.cast("B"))
                key.append(value.dtype)
                key.append(value.shape)
            elif kind in _SCALARS:
                key.append(kind)
                key.append(value)
            elif kind is memoryview:
                buffers.append(value.cast("B"))
                key.append(value.format)
                key.append(value.shape)
            elif kind is Tensor and value.dtype != "strings" and value.device == "cpu:0":
                buffers.append(value.data)
                key.append(Tensor)
                key.append((value.dtype, value.shape, len(value.data)))
            else:
                return None, ()
    except (TypeError, ValueError):  # not C order, no elements, or no plain element type
        return None, ()
    return tuple(key), buffers


def _find_ndarray() -> Any:
    """The array type of numpy once somebody has imported numpy, which this file never does."""
    global _ndarray
    _ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    return _ndarray


def _plain(part: Any) -> bool:
    """Whether a part of a key decides the bytes of a head: every one but element types of a kind of their own."""
    return not hasattr(part, "isnative") or bool(part.isnative and part.kind in _PLAIN_KINDS)


class HeadCache(Dict[Optional[Key], FrameTemplate]):
    """Templates of a bounded number of short heads, by the signature of what they describe. Holds bytes only.

    Little-endian machines only, since there a native array is what the wire wants; elsewhere nothing is
    ever remembered.
    """

    def put(self, key: Optional[Key], template: FrameTemplate) -> None:
        """Remember ``template`` if its head is short and follows from ``key`` (None: never). Too many: all are forgotten."""
        if key is None or sys.byteorder != "little" or not all(map(_plain, key)):
            return
        if len(template.head) > REMEMBERED_BYTES or len(repr(key)) > 2 * REMEMBERED_BYTES:
            return
        if len(self) >= REMEMBERED_HEADS:
            self.clear()
        self[key] = template
