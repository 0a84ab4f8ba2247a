"""JSON with arrays in it: by orjson where it is installed, and by numpy. Large arrays belong in binary data.

4 MB of FP32 take 84 ms to read and 23 ms to write with orjson, 270 and 694 ms without.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, NoReturn

import numpy as np

from rpcsys.errors import one_line
from rpcsys.wire.inference import DATATYPES, InferenceError, from_values, to_values

_orjson: Any = None
with contextlib.suppress(ImportError):
    import orjson as _orjson

#: Kinds of numpy's arrays whose values are cast to a datatype without a doubt; others are converted one by one.
_PLAIN = {"B": "b", "F": "fiu", "I": "iu", "U": "iu"}


def loads(data: Any) -> Any:
    """The value that JSON says. Raises `InferenceError` (400) for bytes that are none."""
    try:
        return json.loads(bytes(data), parse_constant=_no_constant) if _orjson is None else _orjson.loads(data)
    except RecursionError:
        raise InferenceError("the request is JSON that is nested too deeply") from None
    except ValueError as error:
        raise InferenceError(f"the request is not JSON: {one_line(error, 200)}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def dumps(value: Any) -> bytes:
    """``value`` as JSON, with the arrays of `to_json_data`."""
    if _orjson is None:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    made: bytes = _orjson.dumps(value, option=_orjson.OPT_SERIALIZE_NUMPY)
    return made


def to_bytes(datatype: str, values: list[Any], what: str) -> Any:
    """The data of a tensor with these JSON values, flat or nested.

    Raises `InferenceError` (400) about ``what`` for values that are none of ``datatype``.
    """
    wanted = np.dtype(DATATYPES[datatype]) if datatype not in ("BYTES", "BF16") else None
    if wanted is None or not values:
        return from_values(datatype, values, what)
    try:
        given = np.array(values)
    except (ValueError, OverflowError):
        return from_values(datatype, values, what)
    if given.dtype.kind not in _PLAIN[datatype[0]] or not given.size or not _fits(given, wanted):
        return from_values(datatype, values, what)
    with np.errstate(over="ignore"):
        made = given.astype(wanted.newbyteorder("<"), copy=False)
    if wanted.kind == "f" and not np.isfinite(made).all():
        raise InferenceError(f"the data of {what} has a number beyond those of {datatype}")
    return made.tobytes()


def _fits(given: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> bool:
    if wanted.kind not in "iu":
        return True
    limits = np.iinfo(wanted)
    return int(given.min()) >= limits.min and int(given.max()) <= limits.max


def numbers(datatype: str, data: Any) -> np.ndarray[Any, Any]:
    """The elements of a tensor, flat; those of BF16 as float32."""
    if datatype == "BF16":
        wide: np.ndarray[Any, Any] = np.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4")
    return np.frombuffer(data, np.dtype(DATATYPES[datatype]).newbyteorder("<"))


def to_json_data(datatype: str, data: Any, what: str) -> Any:
    """The JSON values of a tensor's data, flat, for `dumps`.

    Raises `InferenceError` (400) about ``what``: JSON has no NaN and no infinity, and no text that is not UTF-8.
    """
    if datatype == "BYTES":
        return to_values(datatype, data, what)
    made = numbers(datatype, data)
    if made.dtype.kind == "f" and not np.isfinite(made).all():
        raise InferenceError(
            f"{what} has values that JSON has no numbers for (NaN, infinity): ask for it as binary data"
        )
    return made if _orjson is not None else made.tolist()


def top_classes(
    datatype: str, shape: tuple[int, ...], data: Any, most: int, what: str
) -> tuple[tuple[int, ...], list[bytes]]:
    """The ``most`` highest values of each row, as ``VALUE:INDEX``: their shape and they themselves, the highest first.

    Raises `InferenceError` (400) about ``what``, if it is text.
    """
    if datatype == "BYTES":
        raise InferenceError(f"{what} is text, and numbers alone are classified")
    rows = shape[0] if len(shape) > 1 else 1
    table = numbers(datatype, data).reshape(rows, -1) if rows else numbers(datatype, data).reshape(0, 0)
    count = min(most, table.shape[1])
    order = np.argsort(-table.astype("f8"), axis=1, kind="stable")[:, :count]
    texts = [f"{table[row, index]:f}:{index}".encode() for row in range(rows) for index in order[row]]
    return ((rows, count) if len(shape) > 1 else (count,)), texts
