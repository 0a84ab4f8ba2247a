"""A session with a server that sends false values: one sentence for each, in bounded time and memory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import threading
import time
import warnings
import zlib

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.cli.commands import run_group
from rpcsys.client import connect
from rpcsys.client.connection import MAX_MADE
from rpcsys.client.deploying import Deployment
from rpcsys.client.log import KEPT_LETTERS, MOST_LETTERS, MOST_LINES, REFILL_S, SessionLog
from rpcsys.errors import DeadlineExceeded, ProtocolError, RpcsysError, SessionLost
from rpcsys.module.kinds.remote import remote
from rpcsys.wire import frames, handshake
from tests.device import WAIT_S, scripted_server
from tests.query.test_false_tracker import printed
from tests.scripted_peers import mutated, one_shot_server

OURS = handshake.encode_greeting(
    handshake.Greeting(handshake.SERVER, "key", handshake.Options(session=handshake.SESSION))
)
SPEC = {"name": "x", "dtype": "float32", "shape": [1, "n", None]}
MODULE = {"is": "module", "kind": "rpcsys.onnx", "functions": ["main"], "inputs": [SPEC], "outputs": [SPEC]}
HELLO = {
    "version": 1, "key": "k", "pid": 5, "limit_s": 3.5, "devices": ["cpu:0"], "window": {"calls": 5, "bytes": 1 << 20},
    "capabilities": {"loads": [".so"], "kinds": ["_lib"], "encodings": ["zlib"],
                     "target": ["x86_64", 64], "cache": True},
    "machine": {"arch": "x", "cores": 2, "memory": 5, "system": "Linux", "host": "h"},
    "serve": {"name": "m", "version": "1", **MODULE},
}  # fmt: skip
FAST = settings(deadline=None, max_examples=120)


def frame(kind, head, call_id=0, body=b"", flags=0):
    buffers = [body] if body else []
    return b"".join(frames.pack(kind, call_id, json.dumps(head).encode() if head else b"", buffers, flags=flags))


def session_with(*replies, hello=HELLO):
    return one_shot_server(OURS + frame(frames.HELLO, hello) + b"".join(replies))


def ref(about):
    return {"@": "ref", "id": 7, **about}


def check(error):
    assert str(error)
    assert str(error).replace("\n", "").replace("\t", "").isprintable()


def told(act, *replies, hello=HELLO):
    """The result of ``act`` with a session; None for an error of ours, which must be printable."""
    with session_with(*replies, hello=hello) as address:
        try:
            with connect(*address) as session, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return act(session)
        except RpcsysError as error:
            check(error)


def use_module(session):
    module = session.load_module("m.onnx")
    repr(module), module.functions, [value["name"] for value in module.inputs]
    return module


@FAST
@given(hello=mutated(HELLO))
def test_a_false_hello_is_one_error(hello):
    told(lambda session: (repr(session), session.info["key"], session.listdir()), hello=hello)
    with session_with(hello=hello) as address:
        try:
            connect(*address, serve="m").close()
        except RpcsysError as error:
            check(error)


@FAST
@given(about=mutated(ref(MODULE)))
def test_a_false_module_is_one_error(about):
    about["@"], about["id"] = "ref", 7
    told(use_module, frame(frames.RESULT, {"r": about}, 1))


RESULTS = {
    "listdir": (lambda session: [name.lower() for name in session.listdir()], ["a"]),
    "memory": (
        lambda session: [row.get("id") for row in session.memory()["kept"]],
        {"objects": 1, "bytes": 2, "kept": [{"id": 1}]},
    ),
    "array": (lambda session: session.array(b"").shape, ref({"is": "array", "dtype": "float32", "shape": [2]})),
    "upload": (lambda session: session.upload(b"abc", "x").lower(), {"here": False, "offset": 0}),
    "timing": (
        lambda session: str(session.get_function("f").time_evaluator()()),
        {"results": [1.5, 2.5], "board": {"before": {}, "after": {}}, "warnings": []},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
@FAST
@given(said=mutated({name: truth for name, (_, truth) in RESULTS.items()}))
def test_a_false_result_is_one_error(name, said):
    act, truth = RESULTS[name]
    result = said.get(name, truth)
    if isinstance(result, dict) and result.get("@", "") != "":
        result = {**result, "@": "ref", "id": 7}
    replies = [frame(frames.RESULT, {"r": result}, call_id) for call_id in (1, 2)]
    told(act, *replies)


@FAST
@given(said=mutated({"type": "ValueError", "message": "m", "traceback": "t", "retryable": True, "fault": "user"}))
def test_a_false_error_is_one_error(said):
    told(lambda session: session.listdir(), frame(frames.ERROR, said, 1))
    told(lambda session: session.listdir(), frame(frames.ERROR, said, 0))


@FAST
@given(rows=mutated({"r": [{"name": "m", "version": "1", "file": "f", "sha256": "s", "state": "serving"}
                         | {"running": 0, "waiting": 0, "clients": 0}]}))  # fmt: skip
def test_false_deployments_are_one_error(rows):
    with session_with(frame(frames.RESULT, rows, 1)) as address:
        try:
            with Deployment(address) as deployment:
                assert all(row["clients"] >= 0 for row in deployment.list())
        except RpcsysError as error:
            check(error)


@FAST
@given(rows=mutated({"r": [{"name": "m", "version": "1", "file": "f", "sha256": "s", "state": "serving"}
                         | {"running": 0, "waiting": 0, "clients": 0}]}))  # fmt: skip
def test_false_deployments_are_a_short_error_of_the_command(rows):
    with session_with(frame(frames.RESULT, rows, 1)) as address:
        where = "{}:{}".format(*address)
        status, _, err = printed(lambda: run_group(["deploy", "--to", where, "--list"]), one_line=False)
    assert status in (0, 1)
    assert err.count("\n") <= 2
    assert "Traceback" not in err


@FAST
@given(hello=mutated(HELLO), there=mutated({"r": True}), result=mutated({"r": 5}), serve=st.booleans())
def test_a_remote_module_with_false_answers_is_one_error(hello, there, result, serve):
    """Its connection is a session or a shared one."""
    replies = [frame(frames.RESULT, there, 1), frame(frames.RESULT, result, 1 if serve else 2)]
    with session_with(*replies[serve:], hello=hello) as address:
        options = {"serve": "m"} if serve else {"function": "f"}
        with contextlib.closing(remote(address=address, wait_s=0.1, **options)) as module:
            try:
                module(1)
            except RpcsysError as error:
                check(error)


def chunk(size, data):
    return frame(frames.CHUNK, {"size": size}, 1, data)


@pytest.mark.parametrize("size", [10, -5, None, "10", 1.5])
def test_a_download_that_is_longer_than_announced(tmp_path, size):
    flood = [chunk(size, bytes(1 << 20))] * 64
    with scripted_server(OURS + frame(frames.HELLO, {}), *flood) as address, connect(*address) as session:
        for target in (None, tmp_path / "x"):
            with pytest.raises(SessionLost, match="announced"):
                session.download("x", target)
    assert list(tmp_path.iterdir()) == []


def test_a_download_with_a_growing_size_is_session_lost():
    pieces = [chunk(100 + 50 * number, bytes(100)) for number in range(64)]
    with session_with(*pieces) as address, connect(*address) as session, pytest.raises(SessionLost, match="announced"):
        session.download("x")


def test_a_compressed_bomb_is_refused():
    """2 MB of zlib that would make 400 MB."""
    size = 400 << 20
    stream = zlib.compressobj(1)
    data = b"".join(stream.compress(bytes(1 << 20)) for _ in range(size >> 20)) + stream.flush()
    form = {"@": "encoded", "how": "zlib", "dtype": "uint8", "shape": [size], "buffer": 0, "size": len(data)}
    before = psutil.Process().memory_info().rss
    for kind, head in (
        (frames.RESULT, {"r": form}),
        (frames.LOG, {"message": form}),
        (frames.ERROR, {"message": form}),
    ):
        with session_with(frame(kind, head, 1, data)) as address, connect(*address) as session:
            with pytest.raises(RpcsysError, match="bytes of values"):
                session.listdir()
    assert psutil.Process().memory_info().rss - before < 200 << 20
    assert size > MAX_MADE


def test_lines_do_not_delay_a_reply():
    """Most of them are dropped unparsed."""
    lines = b"".join(frame(frames.LOG, {"message": f"line {number}", "level": 20}) for number in range(300_000))
    reply = frame(frames.RESULT, {"r": ["a"]}, 1)
    with session_with(lines, reply) as address, connect(*address) as session:
        called, stuck = [], threading.Event()
        session.log(lambda line: (called.append(line), stuck.wait(WAIT_S)))
        before = psutil.Process().memory_info().rss
        began, cpu = time.monotonic(), time.thread_time()
        assert session.listdir() == ["a"]
        took, cpu = time.monotonic() - began, time.thread_time() - cpu
        assert psutil.Process().memory_info().rss - before < 64 << 20
        session.close()
        assert len(called) == 1
        stuck.set()
        printed = list(session.log())
    assert cpu < 2  # 6 s where each is understood
    assert len(printed) <= 1 + 2 * MOST_LINES * (1 + took / REFILL_S)
    missing = sum(int(line[1:].split()[0]) for line in printed if line.endswith("read)"))
    assert 0 < missing <= 300_000


@pytest.mark.slow
def test_endless_lines_block_no_call():
    """Neither `done`, nor a wait with a timeout, nor a call with a deadline."""
    lines = frame(frames.LOG, {"message": "x"}) * 1000
    named = frame(frames.RESULT, {"r": True}, 1)
    with scripted_server(OURS + frame(frames.HELLO, HELLO), named, *[lines] * 100_000) as address:
        with connect(*address) as session:
            function = session.get_function("f")
            future = function.submit()
            assert not future.done()
            with pytest.raises(concurrent.futures.TimeoutError):
                future.result(0.5)
            with pytest.raises(DeadlineExceeded):
                session.ping(0.5)
    with scripted_server(OURS + frame(frames.HELLO, HELLO), named, *[lines] * 100_000) as address:
        with connect(*address) as session:
            function = session.get_function("f")
            with pytest.raises(DeadlineExceeded):
                function(deadline_s=0.5)


def test_one_frame_of_many_lines():
    for message in ("\n" * (1 << 20), "x" * (MOST_LETTERS + 1)):
        flood = frame(frames.LOG, {"message": message})
        after = frame(frames.LOG, {"message": "after"})
        reply = frame(frames.RESULT, {"r": []}, 1)
        with session_with(flood, after, reply) as address, connect(*address) as session:
            assert session.listdir() == []
            session.close()
            assert len(list(session.log())) <= 2


def test_kept_lines_are_bounded_in_characters():
    log = SessionLog(None)
    for _ in range(40):
        log._add("x" * (1 << 20))
    assert sum(map(len, log._lines)) <= KEPT_LETTERS


def test_logged_lines_are_printable(caplog):
    said = frame(frames.LOG, {"message": "a\x1b[2J\u202eb\tc", "level": 10**30})
    with session_with(said, frame(frames.RESULT, {"r": []}, 1)) as address, connect(*address) as session:
        with caplog.at_level(logging.INFO, "rpcsys.session"):
            session.listdir()
    assert [record.getMessage() for record in caplog.records] == ["a\\x1b[2J\\u202eb\tc"]


def test_an_offset_beyond_the_file_is_refused():
    reply = frame(frames.RESULT, {"r": {"here": False, "offset": 1 << 70}}, 1)
    with session_with(reply) as address, connect(*address) as session, pytest.raises(ProtocolError):
        session.upload(b"abc", "x")
