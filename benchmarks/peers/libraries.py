"""Models as one library: written, linked and loaded in this process, compared with plain files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import written_resnet50
from benchmarks.peers.subject import Subject, Trial
from rpcsys import module

CODE = "int __tvm_ffi_nothing(void *self, const void *args, int count, void *result) { return 0; }\n"


class Libraries(Subject):
    """Trees of a group with weights of a given size, with or without native code."""

    @contextmanager
    def load(self, size: int) -> Iterator[Trial]:
        """Load the tree from its file, ready to run."""
        library = self._library(size)
        yield Trial(lambda: module.load_module(library).close())

    @contextmanager
    def export(self, size: int) -> Iterator[Trial]:
        """Write the tree to a file without a linker."""
        tree, target = self._tree(size), self._target()
        yield Trial(lambda: module.export_library(tree, target), target.unlink)

    @contextmanager
    def link(self, size: int) -> Iterator[Trial]:
        """Write the tree to a file, with code that is compiled and linked."""
        source, target = self.place.folder / "nothing.c", self._target()
        source.write_text(CODE)
        tree = module.group([self._tree(size), module.Sources([source])])
        yield Trial(lambda: module.export_library(tree, target), target.unlink)

    @contextmanager
    def copy(self, size: int) -> Iterator[Trial]:
        """Copy the same file in the kernel."""
        library, target = self._library(size), self._target()
        yield Trial(lambda: shutil.copyfile(library, target), target.unlink)

    @contextmanager
    def load_network(self, path: str) -> Iterator[Trial]:
        """Load an ONNX network from a library, ready to run."""
        library = Path(path).with_suffix(".so")
        if not library.exists():
            module.export_library(module.onnx_module(written_resnet50(path), threads=1), library)
        yield Trial(lambda: module.load_module(library).close())

    def _tree(self, size: int) -> module.Module:
        weights: dict[str, Any] = {"w": np.ones(size, "uint8"), "bias": np.zeros(8, "float32")}
        return module.group([module.params(weights)])

    def _library(self, size: int) -> Path:
        path = self.place.folder / f"weights-{size}.so"
        if not path.exists():
            module.export_library(self._tree(size), path)
        return path

    def _target(self) -> Path:
        return self.place.folder / f"{type(self).__name__}-written"
