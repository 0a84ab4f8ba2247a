"""A compiled Relax program, and modules of ours that its library imports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from rpcsys.ffi.tvm import EXECUTABLE
from rpcsys.graph._ir.stage import Signature
from rpcsys.module import Module, export_library, layout, load_module
from rpcsys.module.layout import LIBRARY, Record
from rpcsys.module.module import Function
from rpcsys.module.sources import Sources
from rpcsys.module.tree import CarriedModule


class RelaxProgram(CarriedModule):
    """A program that TVM's virtual machine runs. Called before it is exported, it is linked and loaded here."""

    def __init__(self, executable: Any, functions: Mapping[str, Signature], imports: Sequence[Module]):
        """``functions`` are the program's own; ``imports`` have those that it calls. Raises any of TVM's errors."""
        self._folder = tempfile.TemporaryDirectory(prefix="rpcsys-")  # of the object files, as long as the program
        tree = _tree(executable, self._folder.name)
        super().__init__(EXECUTABLE, tree.data, [*tree.imports, *imports])
        self.inputs, self.outputs = functions.get("main", ([], []))
        self._names = list(functions)
        self._loaded: Module | None = None

    def names(self) -> list[str]:
        return self._names

    def own(self, name: str) -> Function | None:
        return self._here().own(name) if name in self._names else None

    def release(self) -> None:
        super().release()
        if self._loaded is not None:
            self._loaded.close()

    def _here(self) -> Module:
        if self._loaded is None:
            path = os.path.join(self._folder.name, "program.so")
            export_library(self, path)
            self._loaded = load_module(path, allow_pickle=True)  # its functions are this process's own
        return self._loaded


def _tree(executable: Any, folder: str) -> CarriedModule:
    """The program and its imports as TVM would save them; the object files of its code are in ``folder``."""
    objects: list[str] = []
    executable.export_library(
        os.path.join(folder, "none.so"),
        workspace_dir=folder,
        fcompile=lambda path, files, **options: objects.extend(file for file in files if file),
        fpack_imports=lambda *args: "",
    )
    blob = tvm.get_global_func("runtime.ModulePackImportsToTensor")(executable.mod).numpy()
    records = layout.decode(memoryview(blob).cast("B"))
    modules = [_module(record, objects) for record in records]
    for module, record in zip(modules, records, strict=True):
        module.attach(modules[number] for number in record.imports)
    root = modules[0]
    assert isinstance(root, CarriedModule)
    return root


def _module(record: Record, objects: Sequence[str]) -> Module:
    if record.kind == LIBRARY:
        return Sources(objects) if objects else Module(LIBRARY)
    return CarriedModule(record.kind, bytes(record.data or b""))
