"""Trees of modules of a test kind: it saves bytes and loads the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from rpcsys.errors import NativeError
from rpcsys.module import layout, registry, tree
from rpcsys.module.module import Module, walk
from rpcsys.module.registry import Context

KIND = "testing.bytes"


class BytesKind:
    """Saves and loads modules that hold bytes."""

    def save_to_bytes(self, module: Module, offset: int) -> Sequence[layout.Buffer]:
        assert isinstance(module, Holder)
        return [module.data]

    def load_from_bytes(self, data: memoryview, context: Context) -> Module:
        return Holder(data)


@pytest.fixture
def bytes_kind(monkeypatch):
    """The kind is registered for one test."""
    monkeypatch.setattr(registry, "_registered", {**registry._registered, KIND: BytesKind()})


class Holder(Module):
    """A module that holds bytes; its function ``size`` counts them."""

    def __init__(self, data: layout.Buffer, imports: Sequence[Module] = (), name: str = "size") -> None:
        super().__init__(KIND, {name: lambda: len(data)}, imports)
        self.data = data
        self.linked: list[bool] = []
        self.released = 0

    def link(self) -> None:
        self.linked.append(all(child.linked for child in self.imports if isinstance(child, Holder)))

    def release(self) -> None:
        super().release()
        self.released += 1


def of_shape(shape: Sequence[tuple[bytes, Sequence[int]]]) -> Module:
    """A tree in which module ``i`` has those bytes and imports later modules, given by their distance."""
    made: dict[int, Module] = {}
    for number in reversed(range(len(shape))):
        data, steps = shape[number]
        made[number] = Holder(
            data, [made[number + 1 + step % (len(shape) - number - 1)] for step in steps if number + 1 < len(shape)]
        )
    return made[0]


#: Shapes with shared, repeated and no imports, deep and wide.
shapes = st.lists(st.tuples(st.binary(max_size=80), st.lists(st.integers(0, 40), max_size=4)), min_size=1, max_size=40)


def blob_of(root: Module) -> bytes:
    return b"".join(tree.save(root))


def loaded(blob: bytes | memoryview, name: str = "model.so") -> Module:
    return loaded_records(layout.decode(memoryview(blob)), name)


def loaded_records(records: Sequence[layout.Record], name: str = "model.so") -> Module:
    return tree.load(records, Context(name, _no_library))


def _no_library() -> Module:
    raise NativeError("this tree came without a library")


def outline(root: Module) -> list[tuple[str, bytes, tuple[int, ...]]]:
    """Kind, bytes and imports of every module, in the order of a walk."""
    modules = list(walk(root))
    numbers = {id(module): number for number, module in enumerate(modules)}
    return [
        (module.kind, bytes(getattr(module, "data", b"")), tuple(numbers[id(child)] for child in module.imports))
        for module in modules
    ]
