"""Encodes a tree of modules as bytes, and decodes them: TVM's library layouts, since tvm-ffi and before.

Pure functions. Nothing large is copied: `encode` returns pieces, `decode` returns views. Every count and length is
checked against the bytes that remain before it is used.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

Buffer = Union[bytes, bytearray, memoryview]

LIBRARY = "_lib"  # the kind of the library itself
#: The most modules and imports in one tree: real trees have tens; the limits protect a board's memory.
MAX_MODULES = 1 << 20
MAX_IMPORTS = 1 << 22
MAX_KIND = 1 << 10  # bytes of a kind's name; the longest known one has 18
_SMALL = 1 << 16  # pieces below this are joined, so that a file is written in few, large pieces
_WORD = struct.Struct("<Q")

#: ``save(index, offset)``: the bytes of a module, in pieces; ``offset`` is their distance from the blob's first byte.
Save = Callable[[int, int], Sequence[Buffer]]


class FormatError(ValueError):
    """The bytes are not a tree of modules; the message is to follow the name of their source."""


class Record(NamedTuple):
    """One module of a tree."""

    kind: str
    imports: Tuple[int, ...]  # the numbers of the modules it imports
    data: Optional[memoryview] = None  # its bytes; None for ``_lib``


# ------------------------------------------------------------------ since tvm-ffi

# u64 nbytes | vec indptr | vec children | for each module: str kind [str bytes]
#
# It follows the symbol ``__tvm_ffi__library_bin``. Little-endian; a vec is a u64 count and that many u64; a str a u64
# length and that many bytes; ``nbytes`` counts the bytes after it. ``indptr`` and ``children`` are the imports as
# compressed rows: module ``i`` imports ``children[indptr[i]:indptr[i + 1]]``, in that order. Module 0 is the root. Kind
# ``_lib`` has no bytes: it is the library itself. (Source: tvm-ffi, ``src/ffi/extra/library_module.cc``.)


def encode(nodes: Sequence[Tuple[str, Sequence[int]]], save: Save) -> List[Buffer]:
    """The blob for modules given as (kind, imports), the first one being the root; in pieces, end to end.

    ``save`` is called once for each module but ``_lib``, in order. The blob begins on a page, so that ``save`` can
    use the offset to align weights that are to be mapped.
    """
    indptr: List[int] = [0]
    children: List[int] = []
    for _, imports in nodes:
        children += imports
        indptr.append(len(children))
    pieces = _Pieces()
    pieces.add(_vector(indptr) + _vector(children))
    for index, (kind, _) in enumerate(nodes):
        name = kind.encode()
        pieces.add(_WORD.pack(len(name)) + name)
        if kind != LIBRARY:
            saved = [memoryview(piece).cast("B") for piece in save(index, pieces.end + _WORD.size)]
            pieces.add(_WORD.pack(sum(piece.nbytes for piece in saved)))
            for piece in saved:
                pieces.add(piece)
    return pieces.done()


class _Pieces:
    """Collects a blob; ``end`` is the offset behind the pieces so far."""

    def __init__(self) -> None:
        self._large: List[Buffer] = []
        self._small = bytearray(_WORD.size)
        self._first = self._small
        self.end = _WORD.size

    def add(self, piece: Buffer) -> None:
        size = len(piece)
        self.end += size
        if size < _SMALL:
            self._small += piece
            return
        self._large += [self._small, piece]
        self._small = bytearray()

    def done(self) -> List[Buffer]:
        _WORD.pack_into(self._first, 0, self.end - _WORD.size)
        return [piece for piece in [*self._large, self._small] if len(piece)]


def _vector(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers)


def decode(blob: memoryview) -> List[Record]:
    """The modules in ``blob``, their data views of it. Raises `FormatError`, also if imports form a circle."""
    reader = _Cursor(_Cursor(blob).string("the modules"))
    records = []
    for imports in reader.imports():
        kind = reader.kind()
        records.append(Record(kind, imports, None if kind == LIBRARY else reader.string("a module's bytes")))
    in_order(records)
    return records


def in_order(records: Sequence[Record]) -> List[int]:
    """The numbers of the modules, each behind all that it imports. Raises `FormatError` if imports form a circle."""
    importers: List[List[int]] = [[] for _ in records]
    waiting = [len(record.imports) for record in records]
    for number, record in enumerate(records):
        for child in record.imports:
            importers[child].append(number)
    order = [number for number, left in enumerate(waiting) if not left]
    for number in order:  # grows during the loop
        for importer in importers[number]:
            waiting[importer] -= 1
            if not waiting[importer]:
                order.append(importer)
    if len(order) < len(records):
        raise FormatError("is broken (its modules import each other in a circle)")
    return order


# ------------------------------------------------------------------ before tvm-ffi

# u64 nbytes | u64 count | for each: str kind, bytes of the kind's own
#
# It follows the symbol ``__tvm_dev_mblob``. Kind ``_lib`` is the library itself and has no bytes. ``_import_tree`` is
# not a module: it holds the two vectors from above. Without it, the library is the root and imports all others.
# (Source: TVM 0.6 to 0.20, ``src/runtime/library_module.cc``.)
#
# Limitation: only a kind's own loader knew where its bytes end. Most kinds wrote one string, those in `_FORMS` more.
# Behind a module of any other kind the rest cannot be decoded, and is refused.
_TREE = "_import_tree"
_DTYPE_BYTES = 4
_WEIGHT = 0xDD5E40F096B4A13F  # the number that precedes a weight (``ndarray.h``)


def decode_older(blob: memoryview) -> List[Record]:
    """`decode` for the older layout: the modules in ``blob``, their data views of it. Raises `FormatError`."""
    reader = _Cursor(_Cursor(blob).string("the modules"))
    found: List[Tuple[str, Optional[memoryview]]] = []
    imports: Optional[List[Tuple[int, ...]]] = None
    for _ in range(reader.count("modules", MAX_MODULES)):
        with _unsure_behind(found):
            kind = reader.kind()
            if not kind.isprintable():  # these are bytes of the module before it
                raise FormatError("is broken (a kind's name is no name)")
            if kind == _TREE:
                imports = reader.imports()
                continue
        found.append((kind, None))
        with _unsure_behind(found):
            found[-1] = (kind, None if kind == LIBRARY else _own(reader, kind))
    if imports is None:
        found.insert(0, (LIBRARY, None))
        imports = [tuple(range(1, len(found))), *[()] * (len(found) - 1)]
    if len(imports) != len(found):
        raise FormatError("has a broken import tree")
    records = [Record(kind, imported, data) for (kind, data), imported in zip(found, imports)]
    in_order(records)
    return records


@contextlib.contextmanager
def _unsure_behind(found: Sequence[Tuple[str, object]]) -> Iterator[None]:
    """Name the last module in an error: its kind may have another form than the one that was read."""
    try:
        yield
    except FormatError as error:
        kind = next((kind for kind, _ in reversed(found) if kind != LIBRARY), "")
        hint = f", or its module of kind {kind[:200]!r} has a form that is not known here" if kind else ""
        raise FormatError(f"{error}{hint}") from None


def _own(reader: _Cursor, kind: str) -> memoryview:
    """A module's bytes as its kind wrote them; for a kind that wrote one string, the bytes of that string."""
    skips = _FORMS.get(kind)
    if skips is None:
        return reader.string("a module's bytes")
    start = reader.at
    for skip in skips:
        skip(reader)
    return reader.since(start)


def _skip_string(reader: _Cursor) -> None:
    reader.string("a module's bytes")


def _skip_strings(reader: _Cursor) -> None:
    for _ in range(reader.count("names")):
        reader.string("a module's names")


def _skip_lists(reader: _Cursor) -> None:
    for _ in range(reader.count("lists of names")):
        _skip_strings(reader)


def _skip_functions(reader: _Cursor) -> None:
    """Skip a map from names to a function's parameters: name, element types, tags of launch parameters."""
    for _ in range(reader.count("functions")):
        reader.string("a function's name")
        reader.string("a function's name")
        reader.take(_DTYPE_BYTES * reader.count("arguments"), "a function's arguments")
        _skip_strings(reader)


def _skip_weights(reader: _Cursor) -> None:
    for _ in range(reader.count("weights")):
        _skip_weight(reader)


def _skip_named_weights(reader: _Cursor) -> None:
    """Skip a count, as many names (with a count of their own), and as many weights."""
    count = reader.count("weights")
    _skip_strings(reader)
    for _ in range(count):
        _skip_weight(reader)


def _skip_weight(reader: _Cursor) -> None:
    """Skip an array: two numbers of 64 bits, device, rank and element type, extents, length and bytes."""
    if reader.number() != _WEIGHT:
        raise FormatError("is broken (a weight does not begin as weights do)")
    reader.take(_WORD.size + 2 * 4, "a weight's device")
    rank = struct.unpack("<I", reader.take(4, "a weight's rank"))[0]
    reader.take(_DTYPE_BYTES + rank * _WORD.size, "a weight's extents")
    reader.string("a weight's bytes")


#: Kinds that wrote more than one string -> what skips the parts of it, in order.
#: (Sources: ``cuda_module.cc``, ``graph_executor_factory.cc``, ``const_loader_module.cc``, ``static_library.cc``, …)
_FORMS: Dict[str, Tuple[Callable[[_Cursor], None], ...]] = {
    **dict.fromkeys(("cuda", "hip", "opencl"), (_skip_string, _skip_functions, _skip_string)),
    **dict.fromkeys(("metadata", "const_loader"), (_skip_strings, _skip_weights, _skip_strings, _skip_lists)),
    **dict.fromkeys(("GraphExecutorFactory", "GraphRuntimeFactory"), (_skip_string, _skip_named_weights, _skip_string)),
    "AotExecutorFactory": (_skip_named_weights, _skip_string),
    "static_library": (_skip_string, _skip_strings),
}


# ------------------------------------------------------------------ both


class _Cursor:
    """Reads numbers and bytes from the front of a view. Raises `FormatError` if too few are left."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def since(self, start: int) -> memoryview:
        """The bytes that were read since ``at`` was ``start``."""
        return self._data[start : self.at]

    def number(self) -> int:
        value: int = _WORD.unpack(self.take(_WORD.size, "a length"))[0]
        return value

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self._data) - self.at:
            raise FormatError(f"is cut off or broken ({what} reach beyond its end)")
        start, self.at = self.at, self.at + size
        return self._data[start : self.at]

    def count(self, what: str, most: int = MAX_IMPORTS) -> int:
        count = self.number()
        if count > most:
            raise FormatError(f"is broken (it claims {count} {what})")
        return count

    def vector(self, most: int, what: str) -> Tuple[int, ...]:
        count = self.count(what, most)
        return struct.unpack(f"<{count}Q", self.take(count * _WORD.size, "its " + what))

    def string(self, what: str) -> memoryview:
        return self.take(self.number(), what)

    def imports(self) -> List[Tuple[int, ...]]:
        """The imports of each module; there is at least one module."""
        indptr = self.vector(MAX_MODULES + 1, "modules")
        children = self.vector(MAX_IMPORTS, "imports")
        count = len(indptr) - 1
        if count < 1 or indptr[0] != 0 or indptr[-1] != len(children) or max(children, default=0) >= count:
            raise FormatError("has a broken import tree")
        if sorted(indptr) != list(indptr):
            raise FormatError("has a broken import tree")
        return [children[start:end] for start, end in zip(indptr, indptr[1:])]

    def kind(self) -> str:
        size = self.number()
        if not 0 < size <= MAX_KIND:
            raise FormatError("is broken (a kind's name is no name)")
        try:
            return str(self.take(size, "a kind's name"), "utf-8")
        except UnicodeDecodeError:
            raise FormatError("is broken (a kind's name is no text)") from None
