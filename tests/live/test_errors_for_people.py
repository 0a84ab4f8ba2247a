"""A user's mistake gives one clear line and the right exit status, and no traceback.

From Python it raises the right class of rpcsys.errors, with the same line.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys import errors
from tests.live.daemons import ROOT, Daemon, Daemons, free_port

KEY = "board"
ENDS_S = 60.0
FAILED, USAGE, NO_PORT = 1, 2, 3
PROGRESS = "  "  # `rpcsys run` indents its progress lines


@dataclass
class Lab:
    """A lab; ``names()`` are the values of the ``{names}`` in the commands below."""

    tracker: Daemon
    server: Daemon
    folder: Path

    def names(self) -> dict[str, object]:
        return {
            "tracker": self.tracker.where,
            "taken": self.tracker.address[1],
            "after": self.tracker.address[1] + 1,
            "dead": f"127.0.0.1:{free_port()}",
            "deadport": free_port(),
            "folder": self.folder,
        }


@pytest.fixture(scope="module")
def lab(module_daemons: Callable[[], Daemons]) -> Lab:
    daemons = module_daemons()
    tracker = daemons.tracker()
    server = daemons.server(KEY, "--preload", "none", tracker=tracker)
    make_files(daemons.folder)
    return Lab(tracker, server, daemons.folder)


def make_files(folder: Path) -> None:
    """Write a model that adds one to x (1, 4) float32, inputs that fit it and inputs that do not."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    one = numpy_helper.from_array(np.ones((1, 4), "float32"), "one")
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "g", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "fits.npz", x=np.zeros((1, 4), "float32"))
    np.savez(folder / "shape.npz", x=np.zeros((1, 5), "float32"))
    np.savez(folder / "dtype.npz", x=np.zeros((1, 4), "int64"))
    np.savez(folder / "name.npz", z=np.zeros((1, 4), "float32"))
    (folder / "text.onnx").write_text("this is not a model\n")
    (folder / "text.npz").write_text("these are not arrays\n")


# --- commands ----------------------------------------------------------------------------------

TRACKER = "-m rpcsys.tracker --host 127.0.0.1"
SERVER = "-m rpcsys.server --host 127.0.0.1"
RUN = "-m rpcsys run --tracker {tracker} --key board"

MISTAKES = [
    # the command, the exit status, and a pattern of the line
    (f"{TRACKER} --port many", USAGE, "many"),
    (f"{TRACKER} --port 70000", USAGE, "70000"),
    (f"{TRACKER} --port -1", USAGE, "-1"),
    (f"{TRACKER} --prot 9190", USAGE, "--prot"),
    (f"{TRACKER} --port 9190 --port-end 9190", USAGE, "9190"),
    (f"{TRACKER} --port {{taken}} --port-end {{after}}", NO_PORT, "{taken}"),
    ("-m rpcsys.tracker --host no.such.host.invalid --port 0", USAGE, "no.such.host.invalid"),
    (f"{SERVER} --tracker {{tracker}}", USAGE, "--key"),
    (f"{SERVER} --key board --tracker nonsense", USAGE, "nonsense"),
    (f"{SERVER} --key board --tracker 127.0.0.1:http", USAGE, "http"),
    (f"{SERVER} --key a,b --port 0", USAGE, "a,b"),
    (f"{SERVER} --key board --slots 0", USAGE, "slots"),
    (f"{SERVER} --key board --tvm maybe", USAGE, "maybe"),
    (f"{SERVER} --key board --nonsense", USAGE, "--nonsense"),
    (f"{SERVER} --key board --port {{taken}} --port-end {{after}}", NO_PORT, "{taken}"),
    (f"{SERVER} --key board --port 0 --import no_such_module", USAGE, "no_such_module"),
    (f"{SERVER} --key board --port 0 --load-library nowhere.so", USAGE, "nowhere.so"),
    ("-m rpcsys.query --host 127.0.0.1 --port {deadport}", FAILED, "{deadport}"),
    ("-m rpcsys.query --host 127.0.0.1 --port many", USAGE, "many"),
    ("-m rpcsys.query --jason", USAGE, "--jason"),
    ("-m rpcsys nonsense", USAGE, "nonsense"),
    ("-m rpcsys tracker --prot 1", USAGE, "--prot"),
    ("-m rpcsys run --tracker {tracker} {folder}/model.onnx", USAGE, "--key"),
    ("-m rpcsys run --tracker {dead} --key board {folder}/model.onnx", FAILED, "{dead}"),
    (f"{RUN} {{folder}}/nowhere.onnx", USAGE, "nowhere.onnx"),
    (f"{RUN} {{folder}}/text.onnx", FAILED, "text.onnx"),
    (f"{RUN} {{folder}}/model.onnx {{folder}}/nowhere.npz", USAGE, "nowhere.npz"),
    (f"{RUN} {{folder}}/model.onnx {{folder}}/text.npz", USAGE, "text.npz"),
    (f"{RUN} {{folder}}/model.onnx {{folder}}/shape.npz", USAGE, "5"),
    (f"{RUN} {{folder}}/model.onnx {{folder}}/dtype.npz", USAGE, "int64"),
    (f"{RUN} {{folder}}/model.onnx {{folder}}/name.npz", USAGE, "'?z'?"),
    (f"{RUN} {{folder}}/model.onnx --repeat none", USAGE, "none"),
]


def run(command: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command.split()],
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def is_one_clear_line(done: subprocess.CompletedProcess, status: int, pattern: str) -> None:
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
    assert len(lines) == 1, done.stderr
    assert re.search(pattern, lines[0])
    assert done.returncode == status
    if status != FAILED:  # the command had done nothing
        assert done.stdout == ""


@pytest.mark.parametrize(("command", "status", "pattern"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_gives_one_line(lab: Lab, command: str, status: int, pattern: str):
    names = lab.names()
    is_one_clear_line(run(command.format(**names)), status, pattern.format(**names))


def test_an_unknown_key_gives_one_line_with_the_known_keys(lab: Lab):
    command = f"-m rpcsys run --tracker {lab.tracker.where} --key bored {lab.folder}/model.onnx"
    is_one_clear_line(run(command), FAILED, r"bored.*board")


@pytest.mark.parametrize("variable", ["RPCSYS_TRACKER_PORT", "TVM_TRACKER_PORT"])
def test_a_bad_environment_variable_gives_one_line(variable: str):
    is_one_clear_line(run("-m rpcsys.query", **{variable: "many"}), USAGE, variable)


def test_commands_without_mistakes_succeed(lab: Lab):
    done = run(f"{RUN} {{folder}}/model.onnx {{folder}}/fits.npz".format(**lab.names()))
    assert done.returncode == 0, done.stderr
    host, port = lab.tracker.address
    done = run(f"-m rpcsys.query --host {host} --port {port}")
    assert done.returncode == 0, done.stderr
    assert f"server:{KEY}" in done.stdout


# --- peers that are not trackers ---------------------------------------------------------------


@pytest.fixture(params=["silent", "closes at once", "speaks http"])
def foreign_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a peer that is neither a tracker nor a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def answer() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            if request.param == "speaks http":
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            if request.param == "closes at once":
                peer.close()
            held.append(peer)

    thread = threading.Thread(target=answer)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for peer in held:
        peer.close()


def test_a_peer_that_is_not_a_tracker_gives_one_line(foreign_port: int):
    command = f"-m rpcsys.query --host 127.0.0.1 --port {foreign_port}"
    is_one_clear_line(run(command), FAILED, str(foreign_port))


def test_a_peer_that_is_not_a_tracker_raises(foreign_port: int):
    raises(errors.ConnectError, lambda: rpcsys.connect_tracker(("127.0.0.1", foreign_port)).summary())


def test_a_peer_that_is_not_a_server_raises(foreign_port: int):
    raises(
        (errors.ConnectError, errors.ProtocolError),
        lambda: rpcsys.connect("127.0.0.1", foreign_port, key=KEY, timeout=3),
    )


# --- from Python -------------------------------------------------------------------------------


def raises(kind: type | tuple[type, ...], act: Callable[[], object], pattern: str = "") -> None:
    """Check that ``act`` raises the class, with one line that matches ``pattern``."""
    with pytest.raises(kind) as caught:
        act()
    message = str(caught.value.args[0])
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    assert re.search(pattern, message)


@pytest.fixture
def session(lab: Lab) -> Iterator[rpcsys.client.Session]:
    with rpcsys.connect_tracker(lab.tracker.address).request(KEY, wait_timeout=ENDS_S) as session:
        yield session


@pytest.fixture
def model(lab: Lab, session):
    return session.load_module(str(lab.folder / "model.onnx"))


def test_errors_of_trackers(lab: Lab):
    port = free_port()
    raises(errors.TrackerUnreachable, lambda: rpcsys.connect_tracker(("127.0.0.1", port)), str(port))
    raises(errors.ConfigError, lambda: rpcsys.connect_tracker("10.0.0.1:http"), "http")
    tracker = rpcsys.connect_tracker(lab.tracker.address)
    raises(errors.UnknownKey, lambda: tracker.request("bored"), "bored.*board")
    with tracker.request(KEY):
        raises(errors.WaitTimeout, lambda: tracker.request(KEY, wait_timeout=0.5), KEY)


def test_errors_of_servers(lab: Lab, daemons: Daemons):
    pytest.importorskip("tvm")
    port = free_port()
    raises(errors.ServerUnreachable, lambda: rpcsys.connect("127.0.0.1", port, key=KEY), str(port))
    raises(errors.ServerRefused, lambda: rpcsys.connect(*lab.server.address, key="wrong"), "wrong")
    theirs = daemons.server(KEY, flavour="tvm")
    raises(errors.NotSupported, lambda: rpcsys.connect(*theirs.address, key=KEY), "rpcsys/1")


def test_errors_of_files(lab: Lab, session):
    raises(errors.RemoteFileError, lambda: session.download("nowhere.txt"), "nowhere.txt")
    raises(errors.RemoteFileError, lambda: session.remove("nowhere.txt"), "nowhere.txt")
    raises(errors.UsageError, lambda: session.upload("nowhere.bin"), "nowhere.bin")
    for path in ("../x", "/etc/hostname", "a/../../x"):
        raises(errors.PathError, lambda path=path: session.download(path), re.escape(path))
        raises(errors.PathError, lambda path=path: session.upload(b"x", path), re.escape(path))
        raises(errors.PathError, lambda path=path: session.remove(path), re.escape(path))
    session.upload(b"still fine", "x")
    assert bytes(session.download("x")) == b"still fine"


def test_errors_of_models(lab: Lab, session):
    raises(errors.RemoteFileError, lambda: session.load_module("nowhere.onnx"), "nowhere.onnx")
    text = str(lab.folder / "text.onnx")
    raises(errors.ModelError, lambda: session.load_module(text), "text.onnx")
    session.upload(b"no model", "x.docx")
    raises((errors.ModelError, errors.UsageError), lambda: session.load_module("x.docx"), "docx")


def test_errors_of_arguments(model):
    fits = np.zeros((1, 4), "float32")
    raises(errors.RemoteArgumentError, lambda: model(np.zeros((1, 5), "float32")), "5")
    raises(errors.RemoteArgumentError, lambda: model(np.zeros((1, 4), "int64")), "int64")
    raises(errors.RemoteArgumentError, lambda: model(fits, fits), "2")
    raises(errors.RemoteArgumentError, model, "x|1")
    raises(errors.RemoteArgumentError, lambda: model.run({"z": fits}), "z")
    raises(errors.RemoteArgumentError, lambda: model.run({"x": fits}, outputs=["q"]), "q")
    raises(errors.ValueNotSupported, lambda: model(np.array([None])), "object")
    np.testing.assert_array_equal(model(fits), fits + 1)


def test_errors_of_functions(session):
    raises(errors.RemoteFunctionError, lambda: session.get_function("no.such"), r"no\.such")
    echo = session.get_function("testing.echo")
    raises(errors.ValueNotSupported, lambda: echo(object()), "object")
    assert echo(1) == 1


def test_a_closed_session_raises(lab: Lab):
    session = rpcsys.connect_tracker(lab.tracker.address).request(KEY)
    session.close()
    raises(errors.SessionClosed, lambda: session.get_function("testing.echo"))
