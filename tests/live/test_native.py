"""Native libraries in rpcsys/1 sessions: on a server with TVM's libraries, and on a bare board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import ModelError, RemoteError, SessionLost
from tests.live.artefacts import LENGTH, Artefacts, relax_weights
from tests.live.daemons import Daemon
from tests.native import FUNCTIONS, compiled

pytest.importorskip("tvm")
KEY = "board"


@pytest.fixture(scope="module", params=["ours", "ctypes", "bare"])
def server(request: pytest.FixtureRequest, module_daemons) -> Daemon:
    return module_daemons().server(KEY, flavour=request.param)


@pytest.fixture
def session(server: Daemon) -> Iterator[rpcsys.Session]:
    with rpcsys.connect(*server.address, key=KEY) as session:
        yield session


@pytest.fixture(scope="session")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """functions.c as code that needs aligned memory."""
    return compiled(FUNCTIONS, tmp_path_factory.mktemp("native") / "functions.so", "-mavx")


def at_offset(offset: int, count: int) -> np.ndarray:
    """float32 at an address that is ``offset`` modulo 64."""
    block = np.zeros(4 * count + 128, "uint8")
    array = np.ndarray((count,), "float32", block.data, -block.ctypes.data % 64 + offset)
    assert array.ctypes.data % 64 == offset
    return array


def test_a_function_compiled_by_tvm_runs(session: rpcsys.Session, artefacts: Artefacts) -> None:
    module = session.load_module(artefacts.addone)
    assert module.kind == "_lib"
    x, y = np.arange(LENGTH, dtype="float32"), np.zeros(LENGTH, "float32")
    assert module["addone"](x, y) is None
    assert not y.any(), "a plain argument never comes back"
    assert module["addone"](x, rpcsys.empty(LENGTH)).tolist() == (x + 1).tolist()
    module["addone"](x, rpcsys.inout(y))
    assert y.tolist() == (x + 1).tolist()
    assert module["addone"].time_evaluator(number=5, repeat=2)(x, y).mean > 0


def answering(folder: Path, number: int) -> Path:
    """A library in a folder of its own, always of one name: ``main()`` returns ``number``."""
    (folder / str(number)).mkdir()
    source = folder / str(number) / "f.c"
    signature = "int __tvm_ffi_main(void *self, const void *args, int count, long long *result)"
    source.write_text(f"{signature} {{ result[0] = 1; result[1] = {number}; return 0; }}")
    return compiled(source, source.with_name("f.so"))


def test_a_library_replaces_another_one_of_its_name(session: rpcsys.Session, tmp_path: Path) -> None:
    loaded = []
    for number in range(5):
        path = answering(tmp_path, number)
        if number % 2:
            session.upload(path, path.name)
        loaded.append(session.load_module(path.name if number % 2 else path))
    assert [module["main"]() for module in loaded] == list(range(5))


def test_arrays_on_the_device_are_changed_in_place(session: rpcsys.Session, artefacts: Artefacts) -> None:
    addone = session.load_module(artefacts.addone)["addone"]
    x, y = session.array(np.ones(LENGTH, "float32")), session.array(np.zeros(LENGTH, "float32"))
    addone(x, y)
    addone(y, x)
    assert x.numpy().tolist() == [3.0] * LENGTH


def test_a_relax_program_runs_in_one_call(session: rpcsys.Session, artefacts: Artefacts) -> None:
    model = session.load_module(artefacts.relax)
    x = np.random.default_rng(1).standard_normal((4, 8)).astype("float32")
    wanted = np.maximum(x @ relax_weights(), 0)
    np.testing.assert_allclose(model(x), wanted, rtol=1e-5)
    np.testing.assert_allclose(model.run({"x": x})["output"], wanted, rtol=1e-5)
    assert [future.result().shape for future in [model.submit(x) for _ in range(20)]] == [(4, 8)] * 20


def test_a_relax_program_runs_with_its_parameters(session: rpcsys.Session, artefacts: Artefacts) -> None:
    model = session.load_module(artefacts.dense)
    assert model.inputs[0] == {"name": "x", "dtype": "float32", "shape": ["n", 8]}
    w = session.array(relax_weights())
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
        product, positive = model(x, w)
        np.testing.assert_allclose(product, x @ relax_weights(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(positive, np.maximum(product, 0))
    kept = model(x, w, keep=True)
    assert [array.shape for array in kept] == [(5, 8), (5, 8)]
    np.testing.assert_allclose(model(kept[0], w)[0], product @ relax_weights(), rtol=1e-4, atol=1e-6)


def test_every_offset_reaches_native_code_aligned(session: rpcsys.Session, functions: Path) -> None:
    module = session.load_module(functions)
    double_it, offset_of = module["double_it"], module["offset"]
    for offset in range(64):
        for count in (16, 4096, 1 << 19):  # small, more than a page, its own mapping
            if count > 4096 and offset % 21:
                continue
            x = at_offset(offset, count)
            x[:] = np.arange(count)
            assert offset_of(x) == 0
            assert np.array_equal(double_it(x, rpcsys.empty(count)), 2 * x)
    several = [at_offset(offset, 16) for offset in (1, 7, 13)]
    assert [offset_of(array) for array in several] == [0, 0, 0]


def test_an_error_of_native_code_is_raised(session: rpcsys.Session, functions: Path, artefacts: Artefacts) -> None:
    with pytest.raises(RemoteError, match="double_it takes two arrays") as caught:
        session.load_module(functions)["double_it"](1, 2)
    assert caught.value.type == "ValueError"
    with pytest.raises(RemoteError, match="2 arguments") as caught:
        session.load_module(artefacts.addone)["addone"](1)
    assert caught.value.type == "TypeError"
    assert session.get_function("testing.echo")(1) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"no library", "model.so is not an ELF"),
        (lambda data: data[:1000], "model.so is cut off|model.so has a table"),
        (lambda data: data[:18] + b"\xb7\0" + data[20:], "model.so is built for aarch64"),
    ],
)
def test_a_damaged_library_is_refused(session: rpcsys.Session, functions: Path, damage, words) -> None:
    with pytest.raises(ModelError, match=words):
        session.load_module(damage(functions.read_bytes()), name="model.so")
    assert session.get_function("testing.echo")(1) == 1


def test_native_code_that_crashes_ends_its_session_alone(server: Daemon, artefacts: Artefacts) -> None:
    with rpcsys.connect(*server.address, key=KEY) as session:
        with pytest.raises(SessionLost):
            session.load_module(artefacts.session_faults)["crash"]()
    with rpcsys.connect(*server.address, key=KEY) as session:
        assert session.get_function("testing.echo")(1) == 1
