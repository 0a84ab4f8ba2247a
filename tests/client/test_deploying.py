"""A connection to a server's deployed modules, with scripted answers."""

from __future__ import annotations

import pytest

from rpcsys.client import capabilities
from rpcsys.client.deploying import Deployment
from rpcsys.errors import ConfigError, Interrupted, ModelError, ProtocolError, ServerUnreachable, UsageError
from rpcsys.wire import frames
from tests.client.test_false_server import frame, session_with

ROW = {"name": "m", "version": "1", "file": "m.so", "state": "serving", "running": 0, "waiting": 1, "clients": 2}


def test_list_returns_the_deployments():
    with session_with(frame(frames.RESULT, {"r": [ROW]}, 1)) as address, Deployment(address) as deployment:
        assert deployment.list() == [ROW]


def test_rollback_returns_the_version():
    version = {"name": "m", "version": "0001-ab", "file": "m.so", "sha256": "ab"}
    with session_with(frame(frames.RESULT, {"r": version}, 1)) as address, Deployment(address) as deployment:
        assert deployment.rollback("m") == version


def test_an_incomplete_row_is_refused():
    with session_with(frame(frames.RESULT, {"r": [{"name": "m"}]}, 1)) as address, Deployment(address) as deployment:
        with pytest.raises(ProtocolError, match=r"deploy\.list makes no sense"):
            deployment.list()


def test_a_file_that_cannot_be_deployed_is_refused_before_the_upload(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model")
    with session_with() as address, Deployment(address) as deployment:
        with pytest.raises(UsageError, match="no such file"):
            deployment.put(tmp_path / "missing.so")
        with pytest.raises(ModelError, match=r"cannot load 'm\.onnx'"):
            deployment.put(model)


@pytest.mark.parametrize(("act", "effect"), [("rollback", "go back"), ("remove", "be withdrawn"), ("put", "go live")])
def test_an_interrupted_change_names_what_shows_it(monkeypatch, tmp_path, act, effect):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    model = tmp_path / "m.so"
    model.write_bytes(b"model")
    monkeypatch.setattr(capabilities, "check_loadable", lambda *_: None)
    with session_with() as address, Deployment(address) as deployment:
        session = deployment._session
        monkeypatch.setattr(session, "_builtin", interrupt)
        where = "{}:{}".format(*address)
        monkeypatch.setattr(session, "upload", lambda *_, **__: "m.so")
        text = f"^m may still {effect} at {where}; this shows it: rpcsys deploy --list --to {where}$"
        with pytest.raises(Interrupted, match=text):
            getattr(deployment, act)(model if act == "put" else "m")
        monkeypatch.setattr(session, "upload", interrupt)
        with pytest.raises(KeyboardInterrupt) as plain:
            deployment.put(model)
        assert type(plain.value) is KeyboardInterrupt


def test_an_address_without_a_server_is_unreachable():
    with pytest.raises(ServerUnreachable):
        Deployment(("127.0.0.1", 1), timeout=2)
    with pytest.raises(ConfigError):
        Deployment("nowhere")
