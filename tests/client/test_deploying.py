"""A connection to a server's deployed modules, with a server that answers as it is told."""

from __future__ import annotations

import pytest

from rpcsys.client.deploying import Deployment
from rpcsys.errors import ConfigError, ModelError, ProtocolError, ServerUnreachable, UsageError
from rpcsys.wire import frames
from tests.client.test_lying_server import frame, session_with

ROW = {"name": "m", "version": "1", "file": "m.so", "state": "serving", "running": 0, "waiting": 1, "clients": 2}


def test_what_is_deployed():
    with session_with(frame(frames.RESULT, {"r": [ROW]}, 1)) as address, Deployment(address) as deployment:
        assert deployment.list() == [ROW]


def test_a_row_that_lacks_something_is_refused():
    with session_with(frame(frames.RESULT, {"r": [{"name": "m"}]}, 1)) as address, Deployment(address) as deployment:
        with pytest.raises(ProtocolError, match=r"deploy\.list makes no sense"):
            deployment.list()


def test_what_cannot_be_deployed_is_said_before_it_is_sent(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model")
    with session_with() as address, Deployment(address) as deployment:
        with pytest.raises(UsageError, match="no such file"):
            deployment.put(tmp_path / "missing.so")
        with pytest.raises(ModelError, match=r"cannot load 'm\.onnx'"):
            deployment.put(model)


def test_nobody_there():
    with pytest.raises(ServerUnreachable):
        Deployment(("127.0.0.1", 1), timeout=2)
    with pytest.raises(ConfigError):
        Deployment("nowhere")
