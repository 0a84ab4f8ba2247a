"""TVM sessions through the tvm package: what stands in the place of TVM's own functions."""

from __future__ import annotations

import subprocess

import pytest

from tests.live.daemons import Daemons

pytest.importorskip("tvm")
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    daemons = Daemons(tmp_path_factory.mktemp("daemons"))
    yield daemons.server("k", "--slots", "2")
    daemons.stop()


@pytest.fixture
def remote(server):
    from tvm import rpc

    return rpc.connect(*server.address, key="k")


def test_names_stay_in_the_directory(remote, server, tmp_path):
    from tvm.error import RPCError

    secret = tmp_path / "secret"
    secret.write_text("s")
    remote.upload(bytearray(b"abc"), "x.bin")
    assert remote.download("x.bin") == b"abc"
    for name in (str(secret), "../../secret", "/etc/passwd"):
        for act in (remote.download, remote.remove, remote.load_module, remote.listdir):
            with pytest.raises(RPCError, match="directory"):
                act(name)
        with pytest.raises(RPCError, match="directory"):
            remote.upload(bytearray(b"x"), name)
    assert secret.read_text() == "s"


def test_listdir(remote):
    remote.upload(bytearray(b"1"), "b")
    remote.upload(bytearray(b"1"), "a")
    assert remote.listdir(".") == remote.listdir("") == "a,b"


def test_what_tvms_server_has_is_there(remote):
    assert remote.get_function("rpc.test.addone")(1) == 2
    assert remote.get_function("testing.echo")("x") == "x"


def test_objects_are_linked(remote, tmp_path):
    source = tmp_path / "f.c"
    source.write_text("int f(void) { return 1; }")
    subprocess.run(["gcc", "-fPIC", "-c", str(source), "-o", str(tmp_path / "f.o")], check=True)
    remote.upload(str(tmp_path / "f.o"))
    library = remote.get_function("tvm.rpc.server.download_linked_module")("f.o")
    assert bytes(library)[:4] == b"\x7fELF"


def test_a_library_named_by_the_server_is_loaded(tmp_path):
    source = tmp_path / "loud.c"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) void f(void) { fputs("LOADED\\n", stderr); }')
    library = tmp_path / "loud.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    daemons = Daemons(tmp_path)
    try:
        from tvm import rpc

        server = daemons.server("k", "--load-library", str(library))
        rpc.connect(*server.address, key="k").get_function("testing.echo")(1)
        assert "LOADED" in server.stderr()
    finally:
        daemons.stop()
