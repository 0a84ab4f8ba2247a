"""What a model's file declares of its inputs, read without the packages onnx and onnxruntime: to check them early.

A file that cannot be read declares nothing, and a device checks more than this: whoever loads or runs it reports that.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

from rpcsys.errors import RpcsysError, UsageError
from rpcsys.module import elf, inspection
from rpcsys.module.external import fields, tag_of
from rpcsys.module.kinds.onnx_proto import NUMBERS

# Tags of onnx.proto's fields, by their messages.
_GRAPH = tag_of(7)  # of a model
_WEIGHT, _INPUT, _SPARSE = tag_of(5), tag_of(11), tag_of(15)  # of a graph
_TENSOR_NAME, _SPARSE_VALUES = tag_of(8), tag_of(1)
_NAME, _TYPE = tag_of(1), tag_of(2)  # of an input
_TENSOR, _OPTIONAL = tag_of(1), tag_of(9)  # of a type
_ELEMENTS, _SHAPE = tag_of(1, 0), tag_of(2)  # of a tensor's type
_EXTENT, _NUMBER = tag_of(1), tag_of(1, 0)  # of a shape, and of an extent
_STRINGS = 8

#: Element types that are compared: those that numpy has, too.
_DTYPES: Dict[int, str] = {number: name for name, number in NUMBERS.items() if number < 16}
_DTYPES[_STRINGS] = "strings"
_MAX_EXTENT = 1 << 63  # above it, a number is negative


class Input(NamedTuple):
    """An input of a model's ``main``."""

    name: str
    dtype: str = ""  # "" if any is taken, as far as this file knows
    shape: Tuple[Optional[int], ...] = ()  # None for a free extent; () for any shape
    needed: bool = True


def check_inputs(path: Union[str, os.PathLike[str]], given: Mapping[str, Any]) -> None:
    """Raise `UsageError` if ``given`` arrays, by name, are not those that the model at ``path`` declares."""
    inputs = inputs_of(path)
    if inputs is None:
        return
    known = {each.name: each for each in inputs}
    names = ", ".join(map(repr, known)) or "none"
    for name, array in given.items():
        if name not in known:
            raise UsageError(f"the model has no input {name!r}; it has {names}")
        _check(known[name], array)
    for each in inputs:
        if each.needed and each.name not in given:
            raise UsageError(f"input {each.name!r} is missing; the model wants {names}")


def _check(wanted: Input, array: Any) -> None:
    dtype = "strings" if array.dtype.kind == "U" else array.dtype.name
    fits = len(array.shape) == len(wanted.shape) and all(
        want in (None, have) for want, have in zip(wanted.shape, array.shape)
    )
    same = wanted.dtype in ("", dtype)
    if not same or (wanted.shape and not fits):
        shape = ", ".join("?" if extent is None else str(extent) for extent in wanted.shape)
        wants, got = f"{wanted.dtype} [{shape}]", f"{dtype} {list(array.shape)}"
        hint = "" if same else f"; convert it with .astype({'str' if wanted.dtype == 'strings' else wanted.dtype!r})"
        raise UsageError(f"input {wanted.name!r} wants {wants.strip()}, and got {got}{hint}")


def inputs_of(path: Union[str, os.PathLike[str]]) -> Optional[List[Input]]:
    """The inputs of the model at ``path``, an ``.onnx`` file or a library; None where it does not declare them."""
    text = os.fspath(path)
    try:
        if not text.endswith(".onnx"):
            return _of_library(inspection.inspect(text).modules[0].about.get("inputs"))
        with elf.mapped(text) as data, memoryview(data) as view:
            return list(_of_model(view))
    except (RpcsysError, elf.ElfError, OSError, LookupError, ValueError, TypeError):
        return None


def _of_library(listed: Any) -> Optional[List[Input]]:
    """The inputs that a library's root lists. Raises LookupError, TypeError or ValueError for another form."""
    if not isinstance(listed, list):
        return None
    found = []
    for each in listed:
        dtype, shape = str(each.get("dtype", "")), each.get("shape") or ()
        extents = tuple(extent if type(extent) is int and extent >= 0 else None for extent in shape)
        compared = dtype if dtype in _DTYPES.values() else ""
        found.append(Input(str(each["name"]), compared, extents if compared else (), not dtype.startswith("optional")))
    return found


def _of_model(model: memoryview) -> Iterator[Input]:
    """The inputs of an ONNX model. Raises IndexError or ValueError where it is broken."""
    inputs: Dict[str, Input] = {}
    weights: Set[str] = set()
    for tag, first, last in fields(model, 0, len(model)):
        for inner, at, to in fields(model, first, last) if tag == _GRAPH else ():
            if inner == _INPUT:
                each = _input(model, at, to)
                inputs[each.name] = each
            elif inner == _WEIGHT:
                weights.add(_text(model, at, to, _TENSOR_NAME))
            elif inner == _SPARSE:
                weights |= {_text(model, *place, _TENSOR_NAME) for place in _inside(model, at, to, _SPARSE_VALUES)}
    # An input with a weight of its name has that as its default.
    return (each._replace(needed=each.needed and each.name not in weights) for each in inputs.values())


def _input(model: memoryview, start: int, end: int) -> Input:
    name = _text(model, start, end, _NAME)
    for place in _inside(model, start, end, _TYPE):
        for tensor in _inside(model, *place, _TENSOR):
            return Input(name, *_tensor(model, *tensor))
        return Input(name, needed=not list(_inside(model, *place, _OPTIONAL)))
    return Input(name)


def _tensor(model: memoryview, start: int, end: int) -> Tuple[str, Tuple[Optional[int], ...]]:
    """The element type and the shape of a tensor; both empty where the type is not compared."""
    dtype, shape = "", []
    for tag, first, last in fields(model, start, end):
        if tag == _ELEMENTS:
            dtype = _DTYPES.get(first, "")
        elif tag == _SHAPE:
            shape = [_extent(model, *place) for place in _inside(model, first, last, _EXTENT)]
    return dtype, tuple(shape) if dtype else ()


def _extent(model: memoryview, start: int, end: int) -> Optional[int]:
    numbers = [value for tag, value, _ in fields(model, start, end) if tag == _NUMBER]
    return numbers[-1] if numbers and numbers[-1] < _MAX_EXTENT else None


def _inside(model: memoryview, start: int, end: int, wanted: int) -> Iterator[Tuple[int, int]]:
    """Where each field with the tag ``wanted`` of a message begins and ends."""
    return ((first, last) for tag, first, last in fields(model, start, end) if tag == wanted)


def _text(model: memoryview, start: int, end: int, wanted: int) -> str:
    return "".join(bytes(model[first:last]).decode() for first, last in _inside(model, start, end, wanted))
