"""TVM's package without its Python and its compiler: what it has, in a process of its own; what a client sees of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.daemons import Daemons
from tests.native import ROOT

pytest.importorskip("tvm")

WITH_PYTHON = """
import json, tvm.rpc.server, tvm_ffi
print(json.dumps(sorted(tvm_ffi.registry.list_global_func_names())))
"""
PROGRAM = """
import json, os, sys
from rpcsys.errors import NativeError
from rpcsys.ffi import calls, library
from rpcsys.server.session import tvm_package
"""


def run(program: str, **variables: str) -> object:
    command = [sys.executable, "-c", PROGRAM + program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=ROOT, env={"PATH": "/usr/bin:/bin", **variables}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_all_functions_of_the_package_are_there_without_its_python_and_its_compiler() -> None:
    names, loaded, ready = run("""
ready = [tvm_package.ready(), tvm_package.load(), tvm_package.ready()]
names = calls.get_global("ffi.FunctionListGlobalNamesFunctor")()
loaded = ["tvm" in sys.modules, "libtvm_compiler" in open("/proc/self/maps").read()]
print(json.dumps([sorted(names(index) for index in range(names(-1))), loaded, ready]))
""")
    assert names == run(WITH_PYTHON)
    assert loaded == [False, False]
    assert ready == [False, True, True]


def test_the_first_call_of_a_function_of_python_imports_it_or_says_why_not() -> None:
    assert run("""
tvm_package.load()
tvm_package.MODULE = "not_there"
said = []
for _ in range(2):
    try:
        calls.get_global("rpc.test.addone")(41)
    except NativeError as error:
        said.append([error.kind, str(error)])
tvm_package.MODULE = "tvm.rpc.server"
before = "tvm" in sys.modules
found = [calls.get_global("rpc.test.strcat")("a", 3), calls.get_global("rpc.test.addone")(41)]
found.append("-" in calls.get_global("tvm.codegen.llvm.GetDefaultTargetTriple")())  # the compiler's
try:
    calls.get_global("rpc.test.except")("what went wrong")
except NativeError as error:
    found.append([error.kind, "what went wrong" in str(error)])
print(json.dumps([said, before, found, "tvm" in sys.modules]))
""") == [
        [["ModuleNotFoundError", "No module named 'not_there'"]] * 2,
        False,
        ["a:3", 42, True, ["ValueError", True]],
        True,
    ]


@pytest.mark.parametrize("code", ["1 / 0", "import os; os._exit(3)", ""])
def test_a_package_that_does_not_bring_its_libraries_needs_its_python(tmp_path: Path, code: str) -> None:
    module = f"tvm_{abs(hash(code))}"
    (tmp_path / f"{module}.py").write_text(code)
    found = run(f"""
tvm_package.MODULE = {module!r}
print(json.dumps([tvm_package.load(), tvm_package.ready()]))
""", PYTHONPATH=f"{ROOT}:{tmp_path}")  # fmt: skip
    assert found == [False, False]


@pytest.mark.live
def test_a_session_of_tvms_client_imports_the_package_when_it_calls_a_function_of_it(tmp_path: Path) -> None:
    from tvm import rpc

    daemons = Daemons(tmp_path)
    server = daemons.server("k", "--tvm", "python")
    remote = rpc.connect(*server.address, key="k")
    assert remote.get_function("tvm.codegen.llvm.GetDefaultTargetTriple")()
    del remote
    remote = rpc.connect(*server.address, key="k")
    assert remote.get_function("rpc.test.strcat")("abc", 11) == "abc:11"
    assert remote.get_function("rpc.test.addone")(10) == 11
    del remote
    daemons.stop()
