"""Functions of the user's own on the device, and when they are refused before anything is sent."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rpcsys.client import usercode
from rpcsys.errors import RemoteError, RemoteFunctionError, SessionError, UsageError, ValueNotSupported
from tests.device import Device

WILLING = {"pickle": True, "cloudpickle": True, "python": usercode.VERSION}


@pytest.fixture(scope="module")
def session():
    with Device(allow_pickle=True) as device, device.session() as session:
        yield session


def test_a_function_runs_there_with_what_it_refers_to(session):
    import os

    scale = np.arange(3)

    def scaled(x, *, plus=1):
        from rpcsys.server.sandbox import processes

        return x * scale + plus, processes.number()

    values, pid = session.run(scaled, np.full(3, 2.0))
    assert (values == [1, 3, 5]).all()
    assert pid == session.info["pid"] != os.getpid()


def test_arguments_and_results_are_those_of_any_call(session):
    kept = session.array(np.ones(4))
    assert session.run(lambda *args: args, kept, 1, {"a": [b"x"]})[1:] == (1, {"a": [b"x"]})
    adder = session.run(lambda n: lambda m: n + m, 40)
    assert adder(2) == 42


def test_what_it_raises_shows_its_own_lines(session):
    def divide():
        return 1 / 0  # here

    with pytest.raises(RemoteError, match=r"ZeroDivisionError(.|\n)*in divide"):
        session.run(divide)


def test_a_result_that_has_no_form_is_an_error_and_not_the_end(session):
    with pytest.raises(ValueNotSupported, match="has no form on the wire"):
        session.run(object)
    assert session.run(lambda: 1) == 1


def test_a_module_that_is_only_here(session):
    def use():
        import a_module_that_nobody_has

        return a_module_that_nobody_has

    with pytest.raises(RemoteError, match="ModuleNotFoundError"):
        session.run(use)


def test_a_deadline():
    def sleep():
        import time

        time.sleep(300)

    with Device(allow_pickle=True) as device, device.session() as session:
        with pytest.raises(SessionError):
            session.run(sleep, deadline_s=0.2)
        with pytest.raises(SessionError):
            session.ping()


def test_what_cannot_be_pickled(session):
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent: .*lock"):
        session.run(lambda: lock)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pickle": False}, "start it with --allow-pickle"),
        ({"pickle": None}, "start it with --allow-pickle"),
        ({"python": "2.7"}, rf"the device has Python 2\.7 and this is Python {usercode.VERSION}"),
        ({"cloudpickle": False}, "the device has no cloudpickle; there: python3 -m pip install cloudpickle"),
    ],
)
def test_what_the_device_cannot_run_is_not_even_pickled(changed, message):
    with pytest.raises(RemoteFunctionError, match=message):
        usercode.pickled(threading.Lock(), {**WILLING, **changed})


def test_cloudpickle_missing_here(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(UsageError, match="needs cloudpickle here, too"):
        usercode.pickled(len, WILLING)


def test_a_server_that_was_not_told_to_take_functions():
    with Device() as device, device.session() as session:
        with pytest.raises(RemoteFunctionError, match="start it with --allow-pickle"):
            session.run(len, [1])
        assert session.get_function("testing.echo")(1) == 1
