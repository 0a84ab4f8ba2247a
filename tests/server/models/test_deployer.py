"""A client that deploys, frame by frame, and a supervisor that accepts or refuses."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time

import pytest

from rpcsys import stream
from rpcsys.server.models import deployer
from rpcsys.server.models.store import Store
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import DEPLOYER, Job
from rpcsys.wire import frames
from tests.device import WAIT_S


class Supervisor:
    """Answers a deployer's questions; ``why``: the reason for refusing a module, or empty."""

    def __init__(self) -> None:
        self.end, self._control = messages.pair()
        self.why = ""
        self.asked: list[dict] = []
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while data := messages.receive(self._control)[0]:
            question = json.loads(data)
            self.asked.append(question)
            answers = {"try": {"tried": self.why}, "changed": {"seen": True}, "states": {"states": self.states()}}
            messages.send_json(self._control, **answers[next(iter(question))])

    def states(self) -> dict:
        return {"head": ["serving", 1, 2, 3]}


class Client:
    def __init__(self, sock: socket.socket) -> None:
        self.stream = stream.open(sock)
        self.stream.tick(WAIT_S)

    def receive(self) -> frames.Frame:
        frame = self.stream.receive()
        assert frame is not None, f"nothing came for {WAIT_S} s"
        return frame

    def call(self, function, *args):
        """Return the result of a call, or the type and text of its error."""
        self.stream.send(frames.encode(frames.CALL, 5, {"f": function, "a": list(args)}))
        return self.answer()

    def answer(self):
        frame = self.receive()
        assert frame.call_id == 5
        return frame.get("r") if frame.kind == frames.RESULT else (frame.get("type"), frame.get("message"))

    def upload(self, name: str, data: bytes) -> None:
        self.stream.send(frames.encode(frames.CALL, 5, {"f": "session.upload", "a": [name, len(data)]}))
        head, _ = frames.encode_head({"sha256": hashlib.sha256(data).hexdigest()})
        self.stream.send(frames.pack(frames.CHUNK, 5, head, (data,), flags=frames.LAST))
        assert self.answer() == name


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path / "deploy"))
    lock = store.open()
    yield store
    os.close(lock)


@pytest.fixture
def supervisor():
    return Supervisor()


@pytest.fixture
def modules():
    """Patterns of the modules that the client may replace."""
    return ("*",)


@pytest.fixture
def served(store, supervisor, monkeypatch, modules):
    """A client after both HELLOs, the list to which the outcome is added, and the deployer's thread."""
    ours, theirs = socket.socketpair()
    incoming = os.path.join(store.root, "incoming")
    job = Job(DEPLOYER, b"", incoming, "rpi4", "peer", options={"deploy": store.root, "allow_pickle": False})
    job.options["modules"] = modules
    outcomes: list[str] = []
    serving = threading.Thread(target=lambda: outcomes.append(deployer.serve(ours, job, supervisor.end)), daemon=True)
    serving.start()
    client = Client(theirs)
    hello = client.receive()
    assert (hello.kind, hello.get("key"), hello.get("window")["calls"]) == (frames.HELLO, "rpi4", 1)
    client.stream.send(frames.encode(frames.HELLO, 0, {}))
    yield client, outcomes, serving
    theirs.close()
    serving.join(WAIT_S)
    ours.close()
    assert os.listdir(incoming) == []


def test_a_module_is_served_after_its_trial(served, store, supervisor):
    client, _, _ = served
    client.upload("model.so", b"one")
    put = client.call("deploy.put", "head", "model.so")
    (current,) = store.current()
    assert put == current._asdict()
    assert current.sha256 == hashlib.sha256(b"one").hexdigest()
    assert [next(iter(question)) for question in supervisor.asked] == ["try", "changed"]
    (listed,) = client.call("deploy.list")
    assert listed == {**put, "state": "serving", "running": 1, "waiting": 2, "clients": 3}
    assert client.call("deploy.remove", "head") is None
    assert (store.current(), client.call("deploy.list")) == ([], [])
    assert sorted(os.listdir(store.root)) == ["incoming", "lock"]
    assert "it has nothing" in client.call("deploy.remove", "head")[1]


@pytest.mark.parametrize("modules", [("head", "tail-*")])
def test_other_modules_than_the_rules_name_are_neither_changed_nor_shown(served, store):
    client, _, _ = served
    client.upload("model.so", b"one")
    assert client.call("deploy.put", "tail-1", "model.so")["name"] == "tail-1"
    source = os.path.join(store.root, "incoming", "source")
    with open(source, "wb") as file:
        file.write(b"two")
    with store.replacing("other"):
        store.switch(store.stage("other", source, "other.so", hashlib.sha256(b"two").hexdigest()))
    for call in (("deploy.put", "other", "model.so"), ("deploy.remove", "other"), ("deploy.rollback", "other")):
        assert "the rules of the lab do not let you deploy 'other'; they allow: head, tail-*" in client.call(*call)[1]
    assert [row["name"] for row in client.call("deploy.list")] == ["tail-1"]
    assert client.call("deploy.remove", "head")[1].endswith("it has tail-1")
    assert [version.name for version in store.current()] == ["other", "tail-1"]


def test_the_earlier_version_is_put_back_after_its_trial(served, store, supervisor):
    client, _, _ = served
    client.upload("model.so", b"one")
    first = client.call("deploy.put", "head", "model.so")
    assert "no earlier version of 'head' is kept" in client.call("deploy.rollback", "head")[1]
    client.upload("model.so", b"two")
    second = client.call("deploy.put", "head", "model.so")
    for expected in (first, second, first):
        supervisor.asked.clear()
        assert client.call("deploy.rollback", "head") == expected
        assert [next(iter(question)) for question in supervisor.asked] == ["try", "changed"]
        assert [version._asdict() for version in store.current()] == [expected]
    supervisor.why = "it is no library"
    assert client.call("deploy.rollback", "head") == ("ModelError", "it is no library")
    assert [version._asdict() for version in store.current()] == [first]


def test_a_module_that_cannot_be_loaded_is_not_served(served, store, supervisor):
    client, _, _ = served
    client.upload("model.so", b"one")
    client.call("deploy.put", "head", "model.so")
    before, supervisor.why = store.current(), "it is no library"
    client.upload("model.so", b"two")
    assert client.call("deploy.put", "head", "model.so") == ("ModelError", "it is no library")
    assert store.current() == before
    assert sorted(os.listdir(os.path.join(store.root, "head"))) == [before[0].version, "current", "lock"]


def naming(location: str, size: int) -> bytes:
    """A serialised ModelProto with one weight, in a file."""

    def field(tag: int, value: bytes) -> bytes:
        return bytes([tag, len(value)]) + value

    said = {"location": location, "length": str(size)}
    entries = b"".join(
        field(0x6A, field(0x0A, key.encode()) + field(0x12, value.encode())) for key, value in said.items()
    )
    return field(0x3A, field(0x2A, entries + bytes([0x70, 1])))


def test_files_that_a_model_names_go_with_it(served, store, supervisor):
    client, _, _ = served
    client.upload("in/weights", b"heavy")
    client.upload("m.onnx", naming("in/weights", 5))
    client.call("deploy.put", "head", "m.onnx")
    (current,) = store.current()
    with open(os.path.join(os.path.dirname(store.path(current)), "in/weights"), "rb") as file:
        assert file.read() == b"heavy"


@pytest.mark.parametrize(("location", "size"), [("weights", 5), ("sent", 6), ("../sent", 1), ("/etc/passwd", 1)])
def test_a_model_whose_files_did_not_come_is_not_served(served, store, supervisor, location, size):
    client, _, _ = served
    client.upload("sent", b"heavy")
    client.upload("m.onnx", naming(location, size))
    kind, message = client.call("deploy.put", "head", "m.onnx")
    assert (kind, store.current(), supervisor.asked) == ("ModelError", [], [])
    assert message.startswith("m.onnx keeps weights in files that did not come with it; deploy it with a client that")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (("deploy.put", "../head", "model.so"), "RemoteFileError", "is no name for a module"),
        (("deploy.put", "head", "model.txt"), "ModelError", "what is deployed is one of .onnx, .tflite"),
        (("deploy.put", "head", "a\nb.so"), "RemoteFileError", "a name that can be printed"),
        (("deploy.put", "head", "none.so"), "RemoteFileError", "there is no file"),
        (("deploy.put", "head", "../x.so"), "PathError", "leads out"),
        (("deploy.put", "head"), "RemoteArgumentError", "deploy.put takes"),
        (("deploy.remove", "head"), "RemoteFileError", "it has nothing"),
        (("deploy.rollback", "head"), "RemoteFileError", "it has nothing"),
        (("session.listdir",), "RemoteFunctionError", "deploy.put, deploy.list, deploy.remove, deploy.rollback"),
        ((["deploy.put"],), "RemoteFunctionError", "a connection that deploys has"),
        (("session.upload",), "ProtocolError", "an upload names one file"),
    ],
)
def test_a_refused_call_leaves_the_connection_open(served, call, error, words):
    client, _, _ = served
    kind, message = client.call(*call)
    assert kind == error
    assert words in message
    client.stream.send(frames.pack(frames.PING, 7))
    assert client.receive().kind == frames.PONG


def test_a_module_that_another_client_replaces_is_refused(served, store):
    client, _, _ = served
    client.upload("model.so", b"one")
    with store.replacing("head"):
        assert "is being replaced" in client.call("deploy.put", "head", "model.so")[1]


@pytest.mark.parametrize(("kind", "outcome"), [(frames.GOODBYE, "closed"), (frames.FREE, "lost")])
def test_the_last_frame_decides_the_outcome(served, kind, outcome):
    client, outcomes, serving = served
    client.stream.send(frames.pack(kind, 0))
    serving.join(WAIT_S)
    assert outcomes == [outcome]


def test_a_client_that_disconnects_during_the_trial_deploys_nothing(served, store, supervisor, monkeypatch):
    client, outcomes, serving = served
    tried = threading.Event()
    monkeypatch.setattr(supervisor, "states", lambda: tried.wait(WAIT_S) and {})
    client.upload("model.so", b"one")
    client.stream.send(frames.encode(frames.CALL, 5, {"f": "deploy.put", "a": ["head", "model.so"]}))
    client.stream.close()
    serving.join(WAIT_S)
    tried.set()
    assert outcomes == ["lost"]
    assert store.current() == []
    assert not os.path.exists(os.path.join(store.root, "head"))


def test_folders_of_killed_deployers_are_removed(tmp_path):
    for name, age in (("killed", 60), ("just made", 0)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / "at work").mkdir()
    lock = os.open(tmp_path / "at work", os.O_RDONLY)
    deployer.fcntl.flock(lock, deployer.fcntl.LOCK_EX)
    os.utime(tmp_path / "at work", (time.time() - 60,) * 2)
    deployer._sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["at work", "just made"]
    os.close(lock)
