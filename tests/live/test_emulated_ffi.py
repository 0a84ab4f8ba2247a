"""`rpcsys.ffi` with libtvm_ffi on boards with other processors, of 64 and of 32 bits: calls both ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tvm_ffi import libinfo

from rpcsys.ffi import abi
from rpcsys.module import toolchain
from tests.ffi.test_abi import C_NAMES, RENAMED
from tests.live import sdist
from tests.live.emulated import MACHINES
from tests.native import FUNCTIONS, bare, compiled, lay_out

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

BOTH_WAYS = """
import array, gc, weakref
from rpcsys.errors import NativeError
from rpcsys.ffi import calls, library
from rpcsys.ffi.module import Library

library.use(sys.argv[1])
library.api()
native = Library(sys.argv[2])
print(native.function("add")(2, 3), native.function("add")(1 << 40, 1), native.function("add")(0.5, 1.0))

x, seen = array.array("h", range(6)), array.array("q", [0] * 10)
native.function("describe")(memoryview(x).cast("B").cast("h", [2, 3]), seen)
print(seen.tolist(), native.function("type")(x))

def deep():
    raise LookupError("nothing there")

for failing in (lambda: native.function("add")(2, 3.0), calls.wrap(deep)):
    try:
        failing()
    except NativeError as error:
        print(error.kind, error, "deep" in error.backtrace)

echo = calls.wrap(lambda value: value)
sent = [None, True, -1, 1 << 62, 0.25, "", "short", "long " * 999, b"", b"zero" + bytes(99), [1, "x", [2.5]], {"a": 1}]
print([value for value in sent if echo(value) != value and list(echo(value) or ()) != value])

calls.register("test.adder", lambda left: calls.wrap(lambda right: left + right))
print(calls.get_global("test.adder")(10)(5))

class Held:
    def __call__(self):
        return 1

held = Held()
gone = weakref.ref(held)
function = calls.wrap(held)
del held
print(function(), gone() is not None)
del function
gc.collect()
print(gone() is None)
"""


LAYOUT = """
import ctypes, json
from rpcsys.ffi import abi
kinds = {name: getattr(abi, name) for name in sys.argv[1:]}
print(json.dumps({name: [ctypes.sizeof(kind), {field[0]: getattr(kind, field[0]).offset for field in kind._fields_}]
                  for name, kind in kinds.items()}))
"""


@pytest.mark.parametrize("name", ["aarch64", "armhf"])
def test_native_code_and_python_call_each_other(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    (libtvm_ffi,) = sdist.built(machine.triple).rglob("libtvm_ffi.so")
    compiler = toolchain.find(machine.triple).command()
    functions = compiled(FUNCTIONS, tmp_path / "functions.so", compiler=compiler)
    board = lay_out(tmp_path / "board")
    said = bare(board, BOTH_WAYS, libtvm_ffi.parent, functions, python=str(machine.python))
    assert said.splitlines() == [
        "5 1099511627777 1.5",
        "[2, 0, 16, 1, 0, 1, 2, 3, 3, 1] 70",
        "ValueError add takes two numbers of one type False",
        "LookupError nothing there True",
        "[]",
        "15",
        "1 True",
        "True",
    ]


@pytest.mark.parametrize("name", ["aarch64", "armhf", "riscv64"])
def test_field_offsets_are_those_of_the_boards_compiler(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    kinds = {kind.__name__: (kind, c_name) for kind, c_name in C_NAMES.items()}
    layout = json.loads(bare(lay_out(tmp_path / "board"), LAYOUT, *kinds, python=str(machine.python)))
    lines = ["#include <stddef.h>", "#include <tvm/ffi/c_api.h>"]
    for called, (size, offsets) in layout.items():
        kind, c_name = kinds[called]
        lines.append(f'_Static_assert(sizeof({c_name}) == {size}, "{c_name}");')
        lines += [
            f'_Static_assert(offsetof({c_name}, {RENAMED.get((kind, field), field)}) == {offset}, "{c_name}.{field}");'
            for field, offset in offsets.items()
            if (kind, field) != (abi.Header, "deleter")  # without a name in C
        ]
    source = tmp_path / "asserts.c"
    source.write_text("\n".join(lines))
    command = [
        *toolchain.find(machine.triple).command(),
        "-std=c11",
        "-fsyntax-only",
        f"-I{libinfo.find_include_path()}",
    ]
    done = subprocess.run(
        [*command, f"-I{libinfo.find_dlpack_include_path()}", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
