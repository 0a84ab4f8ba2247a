"""Functions by their symbols, and libraries that TVM built, without any TVM library."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.errors import NativeError
from rpcsys.ffi.module import Library, check_symbols
from tests.native import FUNCTIONS, bare, compiled
from tests.pythons import pythons

ALONE = """
import array
from rpcsys.errors import NativeError, ModelError
from rpcsys.module import loading
try:
    module = loading.load_file(sys.argv[1], "model.so")
except ModelError as error:
    print(error.args[0])
    sys.exit()
print(*module.functions)
x, y = (array.array("f", [value]) * 64 for value in (2.0, 0.0))
module.function("double_it")(x, y)
print(y[0], y[63], module.function("type")(x), module.function("add")(40, 2), module.function("type")("small"))
out = array.array("q", bytes(128))
module.function("describe")(memoryview(bytearray(48)).cast("B").cast("d", [2, 3]), out)
print(*out[:10])
for name, args in (("add", (1, 2.0)), ("double_it", (x,)), ("silent", ())):
    try:
        module.function(name)(*args)
    except NativeError as error:
        print(error.kind, error)
print([name for name in sys.modules if name.startswith("numpy")])
"""


TWO_NEEDS = """
void TVMFFIErrorSetRaisedFromCStr(void *, void *); void elsewhere(void);
void f(void) { TVMFFIErrorSetRaisedFromCStr(0, 0); elsewhere(); }
"""


@pytest.mark.parametrize("version", pythons())
def test_without_any_tvm_library(version: str, board: Path, functions_so: Path) -> None:
    lines = bare(board, ALONE, functions_so, python=pythons()[version]).splitlines()
    assert lines == [
        "add describe double_it offset silent type",
        "4.0 4.0 7 42 11",
        "2 2 64 1 0 1 2 3 3 1",
        "ValueError add takes two numbers of one type",
        "ValueError double_it takes two arrays",
        "RuntimeError the native function silent failed with status -1 and did not say why",
        "[]",
    ]


def test_a_bare_name_is_a_file_of_the_working_folder(functions_so: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(functions_so.parent)
    assert Library(functions_so.name).function("add")(1, 2) == 3


def test_a_library_that_binds_all_functions_at_loading_is_refused(board: Path, tmp_path: Path) -> None:
    path = compiled(FUNCTIONS, tmp_path / "now.so", "-Wl,-z,now")
    output = bare(board, ALONE, path)
    assert output.startswith("model.so needs TVMFFIErrorSetRaisedFromCStr")
    assert "--tvm-library" in output


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("void TVMFFIObjectIncRef(void *); void f(void) { TVMFFIObjectIncRef(0); }", "needs TVMFFIObjectIncRef"),
        (TWO_NEEDS, "needs elsewhere"),
        ("void *__TVMBackendParallelLaunch;", "uses TVMBackendParallelLaunch"),
        ("long long __tvm_ffi__library_bin[] = {64, 2, 0, 0, 0, 8, 0x6867666564636261, 8, 0};", "has modules inside"),
    ],
)
def test_a_library_that_needs_tvm_is_an_error(code: str, words: str, board: Path, tmp_path: Path) -> None:
    source = tmp_path / "f.c"
    source.write_text(code + "\nint __tvm_ffi_main(void) { return 0; }")
    output = bare(board, ALONE, compiled(source, tmp_path / "f.so"))
    assert words in output
    assert output.startswith("model.so ")
    assert output.count("\n") == 1


def test_a_symbol_that_nothing_has_is_found_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "needs.c").write_text("void elsewhere(void); void f(void) { elsewhere(); }")
    path = compiled(tmp_path / "needs.c", tmp_path / "needs.so")
    with pytest.raises(OSError, match="undefined symbol: elsewhere"):
        check_symbols(str(path))
    assert "needs.so" not in Path("/proc/self/maps").read_text()


def test_a_checked_library_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "checked.c").write_text("int f(void) { return 1; }")
    check_symbols(str(compiled(tmp_path / "checked.c", tmp_path / "checked.so")))
    assert "checked.so" not in Path("/proc/self/maps").read_text()


def test_timed_calls_have_arguments_that_are_converted_once(native: Library) -> None:
    ticks = iter(range(100))
    run = native.function("add").timed((40, 2), lambda: float(next(ticks)))
    assert run(5) == 1.0
    with pytest.raises(NativeError, match="add takes two numbers"):
        native.function("add").timed((1, 2.0), float)(1)


def test_an_unknown_function_is_an_error(native: Library) -> None:
    with pytest.raises(NativeError, match="'nowhere'"):
        native.function("nowhere")
