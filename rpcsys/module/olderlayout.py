"""The layout that TVM's libraries had before tvm-ffi: behind ``__tvm_dev_mblob``.

::

    u64 nbytes | u64 count | for each: str kind, bytes of the kind's own

Kind ``_lib`` is the library itself and has no bytes; ``_import_tree`` is no module: it has the two vectors of
`rpcsys.module.layout`. Where it is missing, the library is the root and every module its import. (Source: TVM 0.6
to 0.20, ``src/runtime/library_module.cc``.)

Known weakness: only a kind's own loader knew where its bytes ended. Most wrote one string, and the kinds of
graphics processors what `_FIELDS` says; after any other the rest is read wrongly, and refused.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from rpcsys.module.layout import LIBRARY, MAX_MODULES, FormatError, Reader, Record, in_order

TREE = "_import_tree"
_ONE_STRING = "s"
#: What a kind wrote: s a string, f its functions. (Sources: ``cuda_module.cc``, ``rocm_module.cc``, ``opencl_module.cc``.)
_FIELDS: Dict[str, str] = {"cuda": "sfs", "hip": "sfs", "opencl": "sfs"}
_DTYPE_BYTES = 4


def decode(blob: memoryview) -> List[Record]:
    """The modules in ``blob``, whose data are views of it, as `layout.decode` gives them. Raises `FormatError`."""
    reader = Reader(blob)
    reader = Reader(reader.take(reader.number(), "the modules"))
    found: List[Tuple[str, Optional[memoryview]]] = []
    imports: Optional[List[Tuple[int, ...]]] = None
    for _ in range(reader.count("modules", MAX_MODULES)):
        kind = reader.kind()
        if kind == TREE:
            imports = reader.imports()
        else:
            found.append((kind, None if kind == LIBRARY else _own(reader, kind)))
    if imports is None:
        found.insert(0, (LIBRARY, None))
        imports = [tuple(range(1, len(found))), *[()] * (len(found) - 1)]
    if len(imports) != len(found):
        raise FormatError("has a broken import tree")
    records = [Record(kind, imported, data) for (kind, data), imported in zip(found, imports)]
    in_order(records)
    return records


def _own(reader: Reader, kind: str) -> memoryview:
    """The bytes of a module, as its kind wrote them; of one string, what is in it."""
    fields = _FIELDS.get(kind, _ONE_STRING)
    if fields == _ONE_STRING:
        return reader.string("a module's bytes")
    start = reader.at
    for field in fields:
        if field == "s":
            reader.string("a module's bytes")
        else:
            _skip_functions(reader)
    return reader.since(start)


def _skip_functions(reader: Reader) -> None:
    """A map from names to what a function takes: name, element types, tags of launch parameters."""
    for _ in range(reader.count("functions")):
        reader.string("a function's name")
        reader.string("a function's name")
        reader.take(_DTYPE_BYTES * reader.count("arguments"), "a function's arguments")
        for _ in range(reader.count("tags")):
            reader.string("a function's tags")
