"""Native functions as source."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from rpcsys.errors import RemoteFunctionError, UsageError
from rpcsys.module.sources import Sources
from tests.native import FUNCTIONS


def test_sources_are_compiled_at_the_first_call() -> None:
    with Sources([FUNCTIONS]) as module:
        y = np.zeros(32, "float32")
        module["double_it"](np.ones(32, "float32"), y)
    assert y.tolist() == [2.0] * 32


def test_names_without_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.c").write_text("int __tvm_ffi_one(void); int __tvm_ffi__metadata_one(void);")
    (tmp_path / "b.cc").write_text("TVM_FFI_DLL_EXPORT_TYPED_FUNC(\n  two, impl);")
    (tmp_path / "c.c").write_text("int __tvm_ffi_three(void) { return 0; }")
    subprocess.run(["cc", "-c", "-o", tmp_path / "c.o", tmp_path / "c.c"], check=True)
    monkeypatch.setenv("PATH", "")
    assert Sources([tmp_path / name for name in ("a.c", "b.cc", "c.o")]).names() == ["one", "three", "two"]


def test_an_unknown_function_is_an_error() -> None:
    with pytest.raises(RemoteFunctionError, match=r"no function 'nothing'; it has .*double_it"):
        Sources([FUNCTIONS])["nothing"]


def test_code_that_does_not_compile_is_an_error_at_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int __tvm_ffi_f(void) { return undeclared; }")
    with pytest.raises(UsageError, match=r"could not compile bad\.c"):
        Sources([tmp_path / "bad.c"])["f"]


@pytest.mark.parametrize(
    ("files", "words"), [([], "at least one"), (["f.py"], "neither source"), (["none.c"], "no such file")]
)
def test_invalid_files_are_refused(files: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sources(files)
