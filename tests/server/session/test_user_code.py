"""Functions that clients bring along: what a server refuses, whatever the client has looked at."""

from __future__ import annotations

import cloudpickle
import pytest

from rpcsys.server.session import user_code
from rpcsys.wire import frames
from tests.device import Device


def answer(raw, *args):
    raw.call(1, "session.run", *args)
    frame = raw.receive()
    return frame.get("r") if frame.kind == frames.RESULT else (frame.get("type"), frame.get("message"))


def test_nothing_is_unpickled_that_was_not_allowed(tmp_path):
    def leave_a_trace():
        (tmp_path / "trace").touch()

    class Trap:
        def __reduce__(self):
            return leave_a_trace, ()

    with Device() as device:
        kind, message = answer(device.raw(), user_code.VERSION, cloudpickle.dumps(Trap()))
        assert (kind, message.partition(";")[2]) == ("RemoteFunctionError", " start it with --allow-pickle if they may")
    assert not (tmp_path / "trace").exists()


def test_another_python():
    with Device(allow_pickle=True) as device:
        assert answer(device.raw(), "2.7", b"")[1] == (
            f"a function of Python 2.7 cannot run in Python {user_code.VERSION}, which this device has"
        )


def test_a_device_without_cloudpickle():
    with Device(allow_pickle=True, hide=("cloudpickle",)) as device:
        raw = device.raw()
        assert "no cloudpickle; there: python3 -m pip install" in answer(raw, user_code.VERSION, b"x")[1]


def test_what_is_no_function():
    with Device(allow_pickle=True) as device:
        raw = device.raw()
        assert "takes a function, not a list" in answer(raw, user_code.VERSION, cloudpickle.dumps([1]))[1]
        assert "cannot be loaded (UnpicklingError" in answer(raw, user_code.VERSION, b"no pickle")[1]
        assert answer(raw, user_code.VERSION, cloudpickle.dumps(lambda: 5)) == 5


def test_a_module_of_the_clients_own(monkeypatch):
    import sys
    import types

    mine = types.ModuleType("mine_alone")
    exec("def f(): return 1", mine.__dict__)
    monkeypatch.setitem(sys.modules, "mine_alone", mine)
    with Device(allow_pickle=True) as device:
        kind, message = answer(device.raw(), user_code.VERSION, cloudpickle.dumps(mine.f))
    assert kind == "RemoteFunctionError"
    assert "needs the module 'mine_alone'" in message
    assert "register_pickle_by_value" in message


@pytest.mark.parametrize("allowed", [True, False])
def test_hello_says_so(allowed):
    with Device(allow_pickle=allowed) as device, device.session() as session:
        assert session.info["capabilities"]["pickle"] is allowed
        assert session.info["capabilities"]["python"] == user_code.VERSION
