"""What native code counts references to, held by Python."""

from __future__ import annotations

import ctypes

from rpcsys.ffi import abi, library


class Object:
    """One reference to a native object; given back when this goes.

    ``handle`` is the object's address; whoever makes an `Object` hands its own reference over.
    """

    __slots__ = ("__weakref__", "_release", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        # Kept at hand: at the interpreter's end the module may be gone before its objects.
        self._release = library.api().TVMFFIObjectDecRef

    def __del__(self) -> None:
        if self.handle:
            self._release(self.handle)

    def __repr__(self) -> str:
        return f"<native {type(self).__name__.lower()} of type {self.type_index} at {self.handle:#x}>"

    @property
    def type_index(self) -> int:
        """What kind of object it is: one of `abi`'s, or a number that this process gave out."""
        return int(abi.Header.from_address(self.handle).type)

    @property
    def references(self) -> int:
        """How many strong references there are, in Python and native code together."""
        return int(abi.Header.from_address(self.handle).counts) & 0xFFFFFFFF


class Strings:
    """A few strings as borrowed ByteArrays, for the time of one call."""

    def __init__(self, *texts: str) -> None:
        self._kept = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._arrays = [
            abi.ByteArray(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data)) for data in self._kept
        ]
        self.pointers = [ctypes.byref(array) for array in self._arrays]
