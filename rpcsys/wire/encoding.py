"""Arrays encoded in fewer bytes, for slow networks: float16, int8 with a scale, zlib, zstd.

An encoding is a word, or two joined by ``+`` (``"int8+zlib"``): at most one that rounds, then at most one that
compresses. The receiver of a message decodes its arrays, so that functions get them decoded.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

from rpcsys.errors import ProtocolError, UsageError, ValueNotSupported
from rpcsys.wire import dtypes
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_tensor

ROUNDING = ("float16", "int8")
COMPRESSING = ("zlib", "zstd")
#: Element types that may be rounded.
FLOATING = ("float16", "float32", "float64")
#: Fast: compression that takes longer than the transfer is no gain.
_ZLIB_LEVEL = 1
_ZSTD_LEVEL = 3
_SCALE = struct.Struct("<d")
#: The smallest peak with a scale: below it, a scale would lose digits, and all elements become 0.
_SMALLEST = 1e-30
#: Bytes that are decompressed at a time.
_PIECE = 1 << 20
_local = threading.local()


@dataclass(eq=False, repr=False)
class Encoded:
    """An encoded array: ``data`` holds the elements of its ``dtype`` and ``shape``, encoded as ``how``."""

    how: str
    dtype: str
    shape: Sequence[int]
    data: Any


def steps(how: Any) -> Tuple[str, str]:
    """The rounding and the compressing word of ``how``, "" for none. Raises `UsageError` for an unknown encoding."""
    words = how.split("+") if isinstance(how, str) else [""]
    rounds = words.pop(0) if words[0] in ROUNDING else ""
    compresses = words.pop(0) if words and words[0] in COMPRESSING else ""
    if words or not (rounds or compresses):
        raise UsageError(
            f"{how!r} is no encoding; there are {', '.join((*ROUNDING, *COMPRESSING))}, and int8+zlib and the like"
        )
    return rounds, compresses


def applies(how: str, dtype: str) -> bool:
    """Whether arrays of ``dtype`` can be encoded as ``how``. Sequences and maps, ``seq(…)``, are no arrays."""
    rounds, _ = steps(how)
    return dtype != "strings" and "(" not in dtype and (not rounds or (dtype in FLOATING and rounds != dtype))


def known(installed: Callable[[str], bool]) -> List[str]:
    """The words that this machine can use. ``installed`` returns whether it has a package."""
    packages = {"float16": ["numpy"], "int8": ["numpy"], "zlib": ["zlib"], "zstd": ["compression.zstd", "zstandard"]}
    return [word for word, any_of in packages.items() if any(map(installed, any_of))]


# ------------------------------------------------------------------ to the wire


def encode(value: Any, how: str, name: str = "the array", always: bool = False) -> Any:
    """``value`` encoded as ``how``, or ``value`` itself where that saves no bytes. Errors contain ``name``.

    ``always``: encoded, even so. Raises `ValueNotSupported` for a value that ``how`` does not apply to, and for
    elements that it has no code for.
    """
    rounds, compresses = steps(how)
    tensor = as_tensor(value)
    if tensor is None or not applies(how, tensor.dtype):
        what = f"a {type(value).__name__}" if tensor is None else f"an array of {tensor.dtype}"
        raise ValueNotSupported(f"{name} is {what}, which {how} does not apply to; leave it out of encode")
    if not len(tensor.data) and not always:
        return value
    data = tensor.data
    if rounds:
        data = _rounded(tensor, rounds, name)
    if compresses:
        shorter = _compress(data, compresses)
        data, compresses = (shorter, compresses) if len(shorter) < len(data) else (data, "")
    if len(data) >= len(tensor.data) and not always:
        return value
    return Encoded("+".join(filter(None, (rounds, compresses))), tensor.dtype, tensor.shape, data)


def encoded(result: Any, wanted: Optional[Mapping[str, str]]) -> Any:
    """A function's result, encoded as ``wanted``, which maps an index among the results to an encoding."""
    if not wanted:
        return result
    if not isinstance(wanted, dict):
        raise ValueNotSupported("encode says how by the places of the results")
    several = isinstance(result, (tuple, list))
    results = list(result) if several else [result]
    for place, how in wanted.items():
        if not place.isdecimal() or int(place) >= len(results):
            raise ValueNotSupported(f"there is no result {place[:20]} to encode: the call has {len(results)}")
        results[int(place)] = encode(results[int(place)], how, f"result {place}")
    return tuple(results) if several else results[0]


def _rounded(tensor: Tensor, word: str, name: str) -> Any:
    np = _numpy_for(word)
    flat = tensor.numpy().reshape(-1)
    if word == "int8":
        return _to_int8(np, flat, name)
    try:
        with np.errstate(over="raise"):
            return flat.astype("<f2").view("u1").data
    except FloatingPointError:
        raise ValueNotSupported(f"{name} has values beyond 65504, the largest float16; encode it as int8") from None


def _to_int8(np: Any, flat: Any, name: str) -> Any:
    peak = max(float(flat.max(initial=0)), -float(flat.min(initial=0)))
    if not math.isfinite(peak):
        raise ValueNotSupported(f"{name} has values that are not finite, and int8 has none for them")
    scale = peak / 127 if peak > _SMALLEST else 1.0
    scaled = np.multiply(flat, 1 / scale, dtype=np.promote_types(flat.dtype, "f4"))
    data = np.empty(_SCALE.size + len(flat), "u1")
    _SCALE.pack_into(data, 0, scale)
    data[_SCALE.size :].view("i1")[:] = np.rint(scaled, out=scaled)
    return data.data


def _compress(data: Any, word: str) -> bytes:
    if word == "zlib":
        import zlib

        return zlib.compress(data, _ZLIB_LEVEL)
    compressed: bytes = _zstd().compress(data, _ZSTD_LEVEL)
    return compressed


# ------------------------------------------------------------------ from the wire


def decode(value: Encoded) -> Tensor:
    """The array. Takes no more memory than its type and shape require.

    Raises `ProtocolError` for bytes that are no such array, `ValueNotSupported` where a package is missing.
    """
    rounds, compresses = checked(value.how, value.dtype)
    count = dtypes.count(value.shape)
    size = count * dtypes.item_bytes(value.dtype)
    inner = {"float16": 2 * count, "int8": _SCALE.size + count}.get(rounds, size)
    data = memoryview(value.data).cast("B")
    if compresses:
        data = _decompressed(data, inner, compresses)
    if len(data) != inner:
        raise ProtocolError(f"an array in {value.how} of {len(data)} bytes, where its shape wants {inner}")
    if rounds:
        data = _widened(data, rounds, value.dtype, size)
    return Tensor(value.dtype, value.shape, data)


def checked(how: Any, dtype: str) -> Tuple[str, str]:
    """`steps` of a peer's ``how``. Raises `ProtocolError` where it does not apply to ``dtype``."""
    try:
        if applies(how, dtype):
            return steps(how)
    except UsageError:
        pass
    raise ProtocolError(f"an array of {dtype} is not encoded as {how!r}"[:200])


def _widened(data: memoryview, rounds: str, dtype: str, size: int) -> memoryview:
    np = _numpy_for(rounds)
    place = _take(size)
    array = np.frombuffer(place, np.dtype(dtype).newbyteorder("<"))
    if rounds == "float16":
        array[:] = np.frombuffer(data, "<f2")
        return place
    (scale,) = _SCALE.unpack_from(data)
    if not 0 < scale < math.inf:
        raise ProtocolError("an array in int8 whose scale is no number above 0")
    np.multiply(np.frombuffer(data, "i1", offset=_SCALE.size), array.dtype.type(scale), out=array, casting="unsafe")
    return place


def _decompressed(data: memoryview, size: int, word: str) -> memoryview:
    """``data``, decompressed to ``size`` bytes in their final memory. Raises `ProtocolError` for more or fewer."""
    place = _take(size)
    have = 0
    for piece in _inflated(data) if word == "zlib" else _zstd().pieces(data):
        if len(piece) > size - have:
            have = -1
            break
        place[have : have + len(piece)] = piece
        have += len(piece)
    if have != size:
        raise ProtocolError(f"a compressed array of other bytes than the {size} that its shape wants")
    return place


def _inflated(data: memoryview) -> Iterator[bytes]:
    import zlib

    stream = zlib.decompressobj()
    try:
        for start in range(0, len(data), _PIECE):
            piece = stream.decompress(data[start : start + _PIECE], _PIECE)
            while piece:
                yield piece
                piece = stream.decompress(stream.unconsumed_tail, _PIECE)
    except zlib.error as error:
        raise ProtocolError(f"an array whose bytes are no zlib stream ({error})") from None
    if not stream.eof:
        raise ProtocolError("an array whose zlib stream is cut off")


def _take(size: int) -> memoryview:
    """Memory for an array; each thread reuses its own."""
    pool: Optional[Pool] = getattr(_local, "pool", None)
    if pool is None:
        pool = _local.pool = Pool()
    return pool.take(size)


# ------------------------------------------------------------------ packages


class _Zstd:
    """zstd, from the standard library (since Python 3.14) or from the package ``zstandard``."""

    def __init__(self, library: Any, standard: bool) -> None:
        self._library = library
        self._standard = standard

    def compress(self, data: Any, level: int) -> Any:
        if self._standard:
            return self._library.compress(data, level)
        return self._library.ZstdCompressor(level=level).compress(data)

    def pieces(self, data: Any) -> Iterator[Any]:
        """What ``data`` decompresses to, `_PIECE` bytes at a time. Raises `ProtocolError`."""
        stream = self._library.ZstdDecompressor()
        try:
            if not self._standard:
                reader = stream.stream_reader(data)
                yield from iter(lambda: reader.read(_PIECE), b"")
                return
            piece = stream.decompress(data, _PIECE)
            while piece:
                yield piece
                piece = b"" if stream.eof else stream.decompress(b"", _PIECE)
        except self._library.ZstdError as error:
            raise ProtocolError(f"an array whose bytes are no zstd stream ({error})") from None


@functools.lru_cache(maxsize=None)
def _zstd() -> Any:
    """The zstd library. Raises `ValueNotSupported` where none is installed."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # novm - checked above

        return _Zstd(zstd, True)
    try:
        import zstandard
    except ImportError:
        raise ValueNotSupported("zstd needs Python 3.14 or a package; there: pip install 'rpcsys[zstd]'") from None
    return _Zstd(zstandard, False)


def _numpy_for(rounds: str) -> Any:
    np = dtypes.import_numpy()
    if np is None:
        raise ValueNotSupported(f"arrays in {rounds} need numpy at both ends; there: python3 -m pip install numpy")
    return np
