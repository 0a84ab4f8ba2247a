"""TVM sessions without the tvm package: their functions, and the numbers with which tuners fill arrays."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rpcsys.server.session import tvm_ctypes
from rpcsys.wire.tensor import Tensor
from tests.live.daemons import Daemons
from tests.native import compiled


@pytest.fixture(scope="module", params=["ctypes", "bare"])
def server(request, tmp_path_factory):
    pytest.importorskip("tvm")
    folder = tmp_path_factory.mktemp("daemons")
    library = compiled(Path(__file__).with_name("registers.c"), folder / "registers.so")
    daemons = Daemons(folder)
    yield daemons.server("k", "--slots", "2", "--load-library", str(library), flavour=request.param)
    daemons.stop()


@pytest.fixture
def remote(server, request):
    from tvm import rpc

    yield rpc.connect(*server.address, key="k")
    request.node.funcargs.clear()  # the session ends with the last reference to it


@pytest.mark.live
def test_the_tvm_package_is_not_loaded(server):
    maps = {server.pid: Path(f"/proc/{server.pid}/maps").read_text()}
    for pid in server.tree():
        with contextlib.suppress(OSError):  # the process of an earlier test's session may end meanwhile
            maps[pid] = Path(f"/proc/{pid}/maps").read_text()
    assert len(maps) > 1
    for text in maps.values():
        assert "site-packages/tvm/__init__" not in text
        assert "libtvm_compiler" not in text


@pytest.mark.live
def test_functions_of_a_loaded_library_can_be_called(remote):
    assert remote.get_function("lab.plus_one")(41) == 42
    assert remote.get_function("lab.adder")(10)(5) == 15
    from tvm.error import RPCError

    with pytest.raises(RPCError, match="what went wrong"):
        remote.get_function("lab.fail")()
    assert remote.get_function("lab.plus_one")(1) == 2


@pytest.mark.live
def test_functions_of_tvms_libraries_can_be_called(remote):
    assert remote.get_function("runtime.RuntimeEnabled")("cpu")
    assert remote.get_function("runtime.NumThreads")() >= 1


@pytest.mark.live
def test_listdir_lists_sorted_names(remote):
    remote.upload(bytearray(b"1"), "b")
    remote.upload(bytearray(b"1"), "a")
    assert remote.listdir(".") == remote.listdir("") == "a,b"


@pytest.mark.live
def test_objects_are_linked(remote, tmp_path):
    source = tmp_path / "f.c"
    source.write_text("int __tvm_ffi_f(void *s, void *a, int n, int *r) { r[0] = 1, r[2] = 42; return 0; }")
    subprocess.run(["cc", "-fPIC", "-c", str(source), "-o", str(tmp_path / "f.o")], check=True)
    remote.upload(str(tmp_path / "f.o"))
    library = remote.get_function("tvm.rpc.server.download_linked_module")("f.o")
    assert bytes(library)[:4] == b"\x7fELF"
    assert remote.load_module("f.o")["f"]() == 42


@pytest.mark.live
def test_a_file_that_cannot_be_linked_is_an_error(remote):
    from tvm.error import RPCError

    remote.upload(bytearray(b"text"), "notes.txt")
    with pytest.raises(RPCError, match=r"notes\.txt: only \.o"):
        remote.get_function("tvm.rpc.server.download_linked_module")("notes.txt")
    with pytest.raises(RPCError, match=r"nowhere\.so: there is no such file"):
        remote.load_module("nowhere.so")


@pytest.mark.live
def test_a_broken_library_is_an_error_and_the_session_continues(remote):
    from tvm.error import RPCError

    remote.upload(bytearray(b"no library"), "x.so")
    with pytest.raises(RPCError, match=r"x\.so"):
        remote.load_module("x.so")
    assert remote.get_function("lab.plus_one")(1) == 2


@pytest.mark.live
def test_a_fresh_interpreter_serves_every_session(tmp_path):
    pytest.importorskip("tvm")
    from tvm import rpc

    daemons = Daemons(tmp_path)
    try:
        server = daemons.server("k", "--no-fork", flavour="bare")
        for number in range(2):
            assert rpc.connect(*server.address, key="k").get_function("runtime.NumThreads")() >= 1, number
    finally:
        daemons.stop()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("count", [0, 1, 4096, 10_000])
def test_arrays_are_filled_with_numbers_from_1_to_10(dtype: str, count: int) -> None:
    values = np.zeros(count, dtype)
    tvm_ctypes.fill(Tensor(dtype, (count,), memoryview(values.view("u1"))))
    assert ((values >= 1) & (values <= 10)).all()
    assert count < 100 or len(set(values.tolist())) > 5


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16"])
def test_narrow_types_are_filled_with_0_and_1(dtype: str) -> None:
    values = np.zeros(5000, dtype)
    tvm_ctypes.fill(Tensor(dtype, (5000,), memoryview(values.view("u1"))))
    assert np.isfinite(values.astype("float64")).all()
    assert values.view("u1").max() == 1
