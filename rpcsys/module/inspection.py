"""Describes a library without loading it: the tree, with kinds, sizes, functions, targets and hashes.

Reads the file only, for any architecture. Only the hashes read all of it; each is computed at its first use.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from rpcsys.errors import ModelError, UsageError
from rpcsys.module import container, elf, packed
from rpcsys.module.container import functions_of
from rpcsys.module.elf import Elf, ElfError
from rpcsys.module.layout import FormatError, Record

_HASH_DIGITS, _NAMED = 16, 12  # the most digits of a hash, and the most functions, in the printed text


class Inspected(NamedTuple):
    """One module of a library."""

    number: int  # its index in the file; 0 is the root
    kind: str  # selects its loader
    imports: Tuple[int, ...]  # the numbers of the modules it imports
    size: int  # bytes of its own; 0 for ``_lib``, whose code is the library's
    functions: List[str]  # its own functions, as far as the file lists them
    target: str  # the machine its code is for, ``x86_64 (64 bits)``; empty where it has none
    about: Dict[str, Any]  # other facts in the file: inputs and outputs, weights, a remote function's server
    data: Optional[memoryview]  # its bytes, a view of the mapped file

    @property
    def sha256(self) -> Optional[str]:
        """The SHA-256 of its bytes, in hex; None for ``_lib``. Reads all of its bytes."""
        return None if self.data is None else hashlib.sha256(self.data).hexdigest()


class Inspection(NamedTuple):
    """A library and the modules in it, the root first."""

    path: str
    size: int  # of the file, in bytes
    target: str  # the machine it is for
    layout: str  # ``"tvm-ffi"``, ``"tvm"`` (the one before it), or ``"functions"`` if it holds no modules
    needed: List[str]  # libraries that it needs
    modules: List[Inspected]

    def to_json(self) -> Dict[str, Any]:
        """All facts, with the hashes, as JSON values."""
        rows = [{**each._asdict(), "imports": list(each.imports), "sha256": each.sha256} for each in self.modules]
        for row in rows:
            del row["data"]
        return {**self._asdict(), "modules": rows}

    def __str__(self) -> str:
        """The tree, indented; a module that several import is printed once, and referred to after that."""
        return "\n".join([f"{self.path}: {_bytes(self.size)}, {self.target}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        shown = set()
        todo = [(0, 0)]
        while todo:
            number, depth = todo.pop()
            module = self.modules[number]
            name = "  " * depth + f"[{number}] {module.kind}"
            if number in shown:
                yield name + " (see above)"
                continue
            shown.add(number)
            yield "  ".join([name, *_words(module)])
            todo.extend((child, depth + 1) for child in reversed(module.imports))


def inspect(path: Union[str, os.PathLike[str]]) -> Inspection:
    """Describe the library at ``path``, whatever machine it is for.

    Raises `UsageError` for a file that cannot be read, `ModelError` for a file that is not a library or is broken.
    """
    text = os.fspath(path)
    try:
        found = container.read(text)
    except (ElfError, FormatError) as error:
        raise ModelError(f"{os.path.basename(text)} {error}; copy or build it again") from None
    except OSError as error:
        raise UsageError(f"{text} cannot be read: {error.strerror or error}") from None
    layout = "functions" if found.is_plain else "tvm" if found.older else "tvm-ffi"
    modules = [_inspected(number, record, found.elf) for number, record in enumerate(found.records)]
    return Inspection(text, os.path.getsize(text), target_of(found.elf), layout, found.elf.needed, modules)


def target_of(file: Elf) -> str:
    """The machine a library is for, with its word size, and its byte order if that is not the usual one."""
    return f"{file.machine} ({file.bits} bits{', big-endian' if file.order == '>' else ''})"


#: Kinds whose functions are always the same.
_FUNCTIONS = {kind: ["main"] for kind in ("rpcsys.onnx", "rpcsys.graph", "rpcsys.remote")}
_FUNCTIONS["rpcsys.params"] = ["get_param", "param_names"]


def _inspected(number: int, record: Record, file: Elf) -> Inspected:
    if record.data is None:
        return Inspected(number, record.kind, record.imports, 0, functions_of(file), target_of(file), {}, None)
    about: Dict[str, Any] = {}
    buffers: Sequence[memoryview] = ()
    with contextlib.suppress(FormatError):  # bytes in another form, or broken ones, add no facts
        about, buffers = packed.unpack(record.data)
    functions, target = _FUNCTIONS.get(record.kind, []), ""
    if record.kind == "rpcsys.library":
        functions, target = _carried(buffers)
    if isinstance(about.get("writes"), str):  # a graph's function for native code
        functions = [*functions, about["writes"]]
    listed = about.pop("functions", None)
    if isinstance(listed, list):
        functions = [str(name) for name in listed]
    counted = [name for name in ("weights", "shared") if isinstance(about.get(name), list)]  # thousands in a network
    about.update({name: len(about[name]) for name in counted})
    size = len(record.data)
    return Inspected(number, record.kind, record.imports, size, functions, target, about, record.data)


def _carried(buffers: Sequence[memoryview]) -> Tuple[List[str], str]:
    try:
        file = elf.parse(buffers[0])
    except (ElfError, IndexError):
        return [], "no library"
    return functions_of(file), target_of(file)


def _words(module: Inspected) -> Iterator[str]:
    if module.data is not None:
        yield _bytes(module.size)
        yield f"sha256 {str(module.sha256)[:_HASH_DIGITS]}"
    if module.target:
        yield module.target
    if module.functions:
        more = len(module.functions) - _NAMED
        yield ", ".join(module.functions[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    for name in ("inputs", "outputs"):
        values = module.about.get(name)
        if isinstance(values, list) and values:
            yield f"{name}: " + ", ".join(map(_value, values))
    if isinstance(module.about.get("stages"), list):
        stages = (stage.get("name") if isinstance(stage, dict) else "?" for stage in module.about["stages"])
        yield "stages: " + ", ".join(map(str, stages))
    if module.kind == "rpcsys.remote":
        yield from _endpoint(module.about)
    for what in ("weights", "shared"):
        count = module.about.get(what)
        if count:
            yield f"{count} {'weight' if (what, count) == ('weights', 1) else what}"


def _endpoint(about: Dict[str, Any]) -> Iterator[str]:
    name = [str(about[part]) for part in ("serve", "function") if about.get(part)]
    where = [str(about[part]) for part in ("key", "tracker", "address") if about.get(part)]
    if name and where:
        yield f"{'.'.join(name)} at {' '.join(where)}"
    encode = about.get("encode")
    if isinstance(encode, dict) and encode:
        yield "encoded: " + ", ".join(f"{tensor} {how}" for tensor, how in encode.items())


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    shape = ", ".join("?" if extent is None else str(extent) for extent in value.get("shape") or ())
    return "{} {}[{}]".format(value.get("name"), value.get("dtype"), shape)


def _bytes(count: int) -> str:
    """A size as bytes, kB or MB (10^6), with few digits."""
    if count < 10_000:
        return f"{count} bytes"
    return f"{count / 1e3:.1f} kB" if count < 10_000_000 else f"{count / 1e6:.1f} MB"
