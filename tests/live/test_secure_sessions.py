"""Encrypted sessions of a server with a standing key."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import rpcsys
from rpcsys.errors import MemoryLimit, ServerRefused, SessionLost, SessionTimeout, UsageError
from rpcsys.link import standing_key
from rpcsys.wire import handshake, pinned_keys
from tests.live.daemons import START_S, Daemon, Daemons, wait_until
from tests.live.recording_relay import recording

FLAGS = ("--allow-pickle", "--session-memory", "400M", "--slots", "4", "--grace", "0.2")
OURS = handshake.Options(session=handshake.SESSION)


class Edge:
    """A server with a standing key."""

    def __init__(self, daemon: Daemon, path: Path) -> None:
        self.daemon = daemon
        self.path = path
        self.key = standing_key.match_key(str(path))
        parts = pinned_keys.parse(self.key)
        assert parts is not None
        self.parts = parts

    def connect(self, **more: Any) -> Any:
        return rpcsys.connect(*self.daemon.address, key=self.key, **more)

    def dial(self, key: str, **options: Any) -> socket.socket:
        """A connection that has said ``client:KEY``."""
        sock = socket.create_connection(self.daemon.address, 20)
        given = handshake.Options(session=handshake.SESSION, **options)
        sock.sendall(handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, key, given)))
        return sock


def edge(daemons: Daemons, folder: Path, *flags: str) -> Edge:
    path = folder / "edge.key"
    return Edge(daemons.server("edge", "--standing-key", str(path), *FLAGS, *flags), path)


@pytest.fixture(scope="module", params=[(), ("--no-fork",), ("--no-isolation",)], ids=str)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("daemons")
    daemons = Daemons(folder)
    yield edge(daemons, folder, *request.param)
    daemons.stop()


@pytest.fixture
def session(server: Edge) -> Iterator[Any]:
    with server.connect() as session:
        yield session


# ---------------------------------------------------------------- what sessions do


@pytest.mark.parametrize("size", [0, 1, 16 << 10, (16 << 10) + 1, 1 << 20, 64 << 20])
def test_arrays(session: Any, size: int) -> None:
    sent = np.frombuffer(random.Random(size).randbytes(size), "u1")
    assert (session.get_function("testing.echo")(sent) == sent).all()


def test_many_calls_under_way(session: Any) -> None:
    echo = session.get_function("testing.echo")
    arrays = [np.full(number * 37, number % 251, "u1") for number in range(300)]
    futures = [(echo.submit(number), echo.submit(array)) for number, array in enumerate(arrays)]
    for number, (plain, array) in enumerate(futures):
        assert plain.result() == number
        assert (array.result() == arrays[number]).all()


def test_threads_share_a_session(session: Any) -> None:
    echo, failed = session.get_function("testing.echo"), []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            sent = np.frombuffer(chance.randbytes(chance.choice((0, 10, 70_000, 2_000_000))), "u1")
            if not (echo(sent) == sent).all():
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_files(session: Any, tmp_path: Path) -> None:
    data = os.urandom(9_000_000)
    session.upload(data, "large")
    session.download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == data


def test_ctrl_c_in_the_middle_of_arrays_leaves_the_session(session: Any) -> None:
    echo, sent = session.get_function("testing.echo"), np.arange(16 << 20, dtype="u1")
    main, interrupted = threading.main_thread().ident or 0, 0
    for attempt in range(12):
        timer = threading.Timer(0.004 * attempt, signal.pthread_kill, (main, signal.SIGINT))
        said = ""
        try:
            timer.start()
            echo(sent)
            timer.join()
        except KeyboardInterrupt as error:
            interrupted, said = interrupted + 1, str(error)
        assert said == ""
        assert echo(attempt) == attempt
    assert interrupted
    assert (echo(sent) == sent).all()


# ---------------------------------------------------------------- how sessions end


def take_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x" * (16 << 20)))


def hold_the_interpreter() -> None:
    import ctypes

    ctypes.PyDLL(None).sleep(600)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_session_beyond_its_memory_says_so(session: Any) -> None:
    with pytest.raises((MemoryLimit, rpcsys.errors.RemoteError), match="memory limit of 400 MB"):
        session.run(take_memory)


def test_a_killed_session_says_why(session: Any) -> None:
    with pytest.raises(SessionLost, match="the session is over: its process was ended by SIGKILL, probably through"):
        session.run(die)


@pytest.mark.parametrize("work", [hold_the_interpreter, lambda: time.sleep(600)], ids=["held", "free"])
def test_a_session_at_its_limit_says_so(server: Edge, work: Callable[[], None]) -> None:
    """The session's own process says it or, where native code holds the interpreter, the supervisor at last."""
    with server.connect(session_timeout=1.0) as session:
        with pytest.raises(SessionTimeout, match="time limit of 1 s is over"):
            session.run(work)


def test_a_server_that_stops_says_so(daemons: Daemons, tmp_path: Path) -> None:
    server = edge(daemons, tmp_path)
    with server.connect() as session:
        running = session.get_function("testing.sleep").submit(600)
        assert session.ping() is None
        server.daemon.process.terminate()
        with pytest.raises(SessionLost, match="its server was stopped"):
            running.result(timeout=START_S)


# ---------------------------------------------------------------- who gets none


def test_everything_in_the_clear_is_refused(server: Edge, session: Any) -> None:
    echo = session.get_function("testing.echo")
    for key in ("edge", "", server.key, f"edge:t1-{'0' * 64}", server.parts.name + "-"):
        with server.dial(key) as sock:
            assert sock.recv(100, socket.MSG_WAITALL) == handshake.encode_mismatch()
    with server.dial(server.parts.name, serve="net") as sock:
        assert b"this server serves encrypted connections only" in sock.recv(10_000, socket.MSG_WAITALL)
    tvm = socket.create_connection(server.daemon.address, 20)
    with tvm:
        said = handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, server.parts.name))
        tvm.sendall(said * 2)  # the second where TLS belongs
        answer = handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "edge"))
        assert tvm.recv(len(answer), socket.MSG_WAITALL) == answer
        assert tvm.recv(100, socket.MSG_WAITALL)[:1] in (b"", b"\x15")  # TLS's alert
    assert echo("right") == "right"


def test_a_wrong_secret_and_silence_end_as_unused(server: Edge, session: Any) -> None:
    with pytest.raises(ServerRefused, match="does not take this match key's secret"):
        rpcsys.connect(*server.daemon.address, key=server.parts._replace(secret="0" * 32).text)
    with server.dial(server.parts.name) as silent:
        assert session.get_function("testing.echo")("right") == "right"
        while silent.recv(10_000):
            pass
    ended = "ended after .* s: unused$"
    wait_until(lambda: len(lines(server.daemon, ended)) >= 2, START_S, "both attempts to end")
    with server.connect() as other:
        assert other.get_function("testing.echo")(1) == 1


def lines(daemon: Daemon, pattern: str) -> list[str]:
    return re.findall(pattern, daemon.stderr(), re.MULTILINE)


def test_older_versions_of_tls_are_refused(server: Edge) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.VerifyMode(0)
    for version, fails in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, False)):
        context.maximum_version = version
        with server.dial(server.parts.name) as sock:
            reader = handshake.AnswerReader()
            while reader.needed:
                reader.receive(sock.recv(reader.needed))
            with pytest.raises(ssl.SSLError) if fails else contextlib.nullcontext():
                assert context.wrap_socket(sock).version() == "TLSv1.3"


# ---------------------------------------------------------------- what is seen


def test_recorded_bytes_hold_nothing(server: Edge) -> None:
    marker = b"nobody may read this"
    with recording(server.daemon.address) as recorded:
        with rpcsys.connect(*recorded.address, key=server.key) as session:
            array = np.frombuffer(marker * 100_000, "u1")
            assert (session.get_function("testing.echo")(array) == array).all()
            session.upload(marker, "file")
            assert session.get_function("testing.echo")(marker.decode()) == marker.decode()
        said = bytes(recorded.said)
    assert len(said) > 2 * len(array)
    for secret in (marker, b"testing.echo", server.parts.secret.encode(), b"window"):
        assert secret not in said
    assert server.parts.name.encode() in said


def test_no_secret_is_in_a_log_an_argument_or_an_environment(server: Edge, session: Any) -> None:
    secret = server.parts.secret
    assert secret not in server.daemon.stderr()
    assert str(server.path) in server.daemon.stderr()
    for pid in server.daemon.tree():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            assert secret not in " ".join(process.cmdline())
            assert secret not in str(process.environ())


WITHOUT_TLS = """
import sys, rpcsys

def loaded():
    import sys
    return sorted({"ssl", "_ssl", "hmac", "rpcsys.secure_stream", "rpcsys.link.identity"} & set(sys.modules))

loaded.__module__ = "__main__"
with rpcsys.connect(sys.argv[1], key="k") as session:
    print(session.run(loaded), loaded())
"""


def test_without_a_key_nobody_loads_openssls_part(daemons: Daemons) -> None:
    """It takes 5 MB of a board."""
    server = daemons.server("k", "--allow-pickle", "--preload", "none")
    done = subprocess.run([sys.executable, "-c", WITHOUT_TLS, server.where], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[] []\n", done.stderr


# ---------------------------------------------------------------- deployed modules


def test_modules_are_deployed_and_called_with_a_standing_key(daemons: Daemons, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "graph", info[:1], info[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "head.onnx")
    server = edge(daemons, tmp_path, "--deploy", str(tmp_path / "deployed"))
    deploy = [sys.executable, "-m", "rpcsys", "deploy", str(tmp_path / "head.onnx"), "--to", server.daemon.where]
    done = subprocess.run([*deploy, "--key-file", str(server.path)], capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, done.stderr
    values = np.array([-1, 2, -3, 4], "float32")
    with server.connect(serve="head") as first, server.connect(serve="head") as second, server.connect() as session:
        for module in (first, second):
            assert module(values).tolist() == [0, 2, 0, 4]
        assert session.ping() is None
    for key in ("", server.parts.name, server.parts._replace(secret="0" * 32).text):
        with pytest.raises((ServerRefused, UsageError)):
            rpcsys.connect(*server.daemon.address, key=key, serve="head")
