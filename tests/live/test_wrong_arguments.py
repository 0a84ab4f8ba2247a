"""Deployed and shared modules, called with wrong numbers and types of arguments: each error has one line."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rpcsys
from rpcsys import errors
from rpcsys.client.connection import open_session
from rpcsys.wire import frames
from rpcsys.wire.values import Ref
from tests.live import deployed
from tests.live.daemons import Daemons
from tests.server.session.test_operations import short, values

MANY = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
DEPLOYING = ("deploy.put", "deploy.list", "deploy.remove", "session.listdir", "deploy.", "")
words = st.sampled_from(["scale", "../scale", "a\0b", "\ud800", "x" * 5000, "x.so", "x.onnx", "", ".", "/etc/passwd"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edge")
    daemons = Daemons(folder)
    deployed.put(folder / "deploy", "scale", deployed.library(folder / "scale.so", 2.0))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(folder / "deploy"))
    yield server
    assert "Traceback" not in server.stderr()
    daemons.stop()


@pytest.fixture(scope="module")
def deploying(server):
    with open_session(server.address, serve="") as session:
        yield session


@pytest.fixture(scope="module")
def sharing(server):
    with rpcsys.connect(*server.address, serve="scale") as module:
        yield module._session


def one_line(session, fields):
    """Whether a call has a result or an error of rpcsys with one line; the connection must stay open."""
    problem = None
    with contextlib.suppress(errors.ValueNotSupported):
        template, buffers = frames.template(frames.CALL, fields)
        try:
            session._channel.call(template, buffers)
        except errors.RpcsysError as error:
            problem = error
    session.ping(30)
    if isinstance(problem, errors.RemoteError):
        named = isinstance(getattr(errors, problem.type, None), type)
        return named and problem.remote_traceback == "" and len(str(problem.args[0]).splitlines()) == 1
    return problem is None or len(str(problem).splitlines()) == 1


@MANY
@given(function=st.sampled_from(DEPLOYING), args=st.lists(short | words, max_size=4))
def test_a_deploying_connection_gives_one_line(deploying, function, args):
    if function == "deploy.remove" and repr(args) == "['scale']":  # an array cannot be compared with a text
        args = []
    assert one_line(deploying, {"f": function, "a": args})


@MANY
@given(fields=st.dictionaries(st.sampled_from(["f", "a", "k", "outputs", "keep", "encode"]), values))
def test_calls_of_any_form_give_one_line(deploying, sharing, fields):
    assert one_line(deploying, fields)
    if type(fields.get("f")) is not str:
        assert one_line(sharing, fields)


@MANY
@given(
    function=st.sampled_from(["session.has_function", "session.listdir", "deploy.list", "nothing", ""])
    | st.tuples(st.just(Ref(0)) | st.just(Ref(9)), st.sampled_from(["none", "", "x" * 5000])).map(list),
    args=st.lists(short | words, max_size=4),
)
def test_a_shared_connection_gives_one_line(sharing, function, args):
    assert one_line(sharing, {"f": function, "a": args})


def test_the_module_is_still_served(server):
    with contextlib.closing(rpcsys.connect(*server.address, serve="scale")) as module:
        assert np.array_equal(module(np.ones(3, "float32")), np.full(3, 2, "float32"))
