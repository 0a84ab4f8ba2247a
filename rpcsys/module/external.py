"""Finds the files in which a model keeps its weights: those that an ONNX model names, and the one of OpenVINO's models.

It works without the packages onnx and protobuf.

Only those fields of onnx.proto are read that lead to tensors; the others are skipped. So a mapped file of gigabytes is
read as far as its structure. A file that is no model names nothing: whoever loads it reports that.
"""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from rpcsys.errors import UsageError, printable
from rpcsys.module import elf

Bytes = Union[bytes, bytearray, memoryview]
Field = Tuple[int, int, int]  # a field's tag, and where its bytes begin and end

_MODEL, _TRAINING, _GRAPH, _FUNCTION, _NODE, _ATTRIBUTE, _SPARSE, _TENSOR = range(8)


def tag_of(number: int, wire: int = 2) -> int:
    """The tag of the field ``number``; the wire type 2 is that of messages, bytes and texts, 0 that of numbers."""
    return number << 3 | wire


#: What lies in a message: the tags of the fields that lead to tensors, and the message in each.
_INSIDE: Dict[int, Dict[int, int]] = {
    kind: {tag_of(number): inner for number, inner in fields.items()}
    for kind, fields in {
        _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
        _TRAINING: {1: _GRAPH, 2: _GRAPH},
        _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
        _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
        _NODE: {5: _ATTRIBUTE},
        _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
        _SPARSE: {1: _TENSOR, 2: _TENSOR},
    }.items()
}
_DATA, _LOCATED, _EXTERNAL = tag_of(13), tag_of(14, 0), 1  # external_data and data_location, and the latter's value
_KEY, _VALUE = tag_of(1), tag_of(2)  # of an entry of external_data
_MARK = b"location"  # a model without these bytes names no file
_VARINT_BYTES = 10
_NUMBER_DIGITS = 19  # of an offset or a length below 2 ** 63
_ENTRY_BYTES = 1 << 13  # of a key and its value: twice the longest path
_OPENVINO, _WEIGHTS = ".xml", ".bin"  # endings of the two files of a model of OpenVINO
_CONSTANT = b'type="Const"'  # in its structure, of each weight
_DEPTH = 100  # of messages inside each other: protobuf reads no more


class DataFile(NamedTuple):
    """A file that a model names."""

    location: str  # its path from the model's folder, as the model has it
    path: str  # its path here


class Place(NamedTuple):
    """Where a tensor's bytes are."""

    location: str
    offset: int
    length: int  # 0 if the model does not give it


def files_of(path: Union[str, os.PathLike[str]]) -> List[DataFile]:
    """The files that the model at ``path`` (``.onnx``, or ``.xml`` of OpenVINO) needs beside it, each once.

    Raises `UsageError`, in one line, if one is missing, too short, or not in the model's folder.
    """
    text = os.fspath(path)
    if text.endswith(_OPENVINO):
        return _of_openvino(text)
    if not text.endswith(".onnx"):
        return []
    try:
        data = elf.mapped(text)
    except elf.ElfError:  # it is empty
        return []
    except OSError as error:
        raise UsageError(f"cannot read {text}: {error.strerror or error}") from None
    with data:
        if data.find(_MARK) < 0:
            return []
        with memoryview(data) as view:
            places = list(places_in(view))
    folder, name = os.path.split(os.path.abspath(text))
    found = {os.path.normpath(each.location): DataFile(each.location, found_at(folder, each, name)) for each in places}
    return list(found.values())


def _of_openvino(path: str) -> List[DataFile]:
    """The weights of the model at ``path``, which OpenVINO looks for beside it, under its name."""
    weights = path[: -len(_OPENVINO)] + _WEIGHTS
    folder, location = os.path.split(os.path.abspath(weights))
    if os.path.isfile(weights):
        return [DataFile(location, weights)]
    try:
        with open(path, "rb") as file:
            keeps = _CONSTANT in file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    if keeps:
        why = f"keeps its weights in '{printable(location)}', and {folder} has no such file: put it there"
        raise UsageError(f"{os.path.basename(path)} {why}")
    return []


def check_alone(model: Bytes, name: str) -> None:
    """Raise `UsageError` if the model in ``model`` names a file: bytes lie in no folder."""
    if name.endswith(_OPENVINO) and _CONSTANT in bytes(model):
        text = f"{name} keeps its weights in a {_WEIGHTS} file, and bytes lie in no folder"
        raise UsageError(f"{text}: give the path of the model")
    for place in places_in(memoryview(model)) if bytes(model).find(_MARK) >= 0 else ():
        text = f"{name} keeps weights in '{printable(place.location)}', and bytes lie in no folder"
        raise UsageError(f"{text}: give the path of the model")


def found_at(folder: str, place: Place, name: str) -> str:
    """The path of the file of ``place``, for the model ``name`` in ``folder``. Raises as `files_of` does."""
    where = printable(place.location)
    inside = os.path.normpath(place.location)
    if not place.location.isprintable() or os.path.isabs(inside) or inside.split(os.sep)[0] in (os.curdir, os.pardir):
        why = f"keeps weights in '{where}', which is not in the model's folder"
        raise UsageError(f"{name} {why}: save the model again, with its weights beside it")
    path = os.path.join(folder, inside)
    if not os.path.isfile(path):
        why = f"keeps weights in '{where}', and {folder} has no such file"
        raise UsageError(f"{name} {why}: put it there, or save the model again with its weights")
    size, wanted = os.path.getsize(path), place.offset + place.length
    if size < wanted:
        why = f"keeps weights in '{where}', which has {size} bytes, not {wanted}"
        raise UsageError(f"{name} {why}: it was cut off, or belongs to another model; copy it again")
    return path


def places_in(model: memoryview) -> Iterator[Place]:
    """Where the model's tensors are that lie in files; as far as it can be read."""
    try:
        for start, end in _tensors(model, _MODEL, 0, len(model), _DEPTH):
            place = _place(model, start, end)
            if place is not None:
                yield place
    except (IndexError, ValueError):
        return


def _tensors(model: memoryview, kind: int, start: int, end: int, depth: int) -> Iterator[Tuple[int, int]]:
    """Where each tensor of a message begins and ends."""
    if kind == _TENSOR:
        yield start, end
        return
    if not depth:
        raise ValueError
    inside = _INSIDE[kind]
    for tag, first, last in fields(model, start, end):
        if tag in inside:
            yield from _tensors(model, inside[tag], first, last, depth - 1)


def _place(model: memoryview, start: int, end: int) -> Optional[Place]:
    external, said = False, {"location": "", "offset": "0", "length": "0"}
    for tag, first, last in fields(model, start, end):
        if tag == _LOCATED:
            external = first == _EXTERNAL
        elif tag == _DATA and last - first <= _ENTRY_BYTES:
            inner = fields(model, first, last)
            entry = {tag: bytes(model[at:to]).decode() for tag, at, to in inner if tag in (_KEY, _VALUE)}
            if entry.get(_KEY) in said:
                said[entry[_KEY]] = entry.get(_VALUE, "")
    if not external:
        return None
    return Place(said["location"], _number(said["offset"]), _number(said["length"]))


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > _NUMBER_DIGITS:
        raise ValueError
    return int(text)


def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``data[at:end]``; for a number its value, not where it begins.

    Raises IndexError or ValueError where it is broken.
    """
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag, value, at
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(data, at)
        if size is None or at + size > end:
            raise ValueError
        yield tag, at, at + size
        at += size


def _varint(data: memoryview, at: int) -> Tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError
