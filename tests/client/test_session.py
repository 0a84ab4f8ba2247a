"""Sessions: values, errors, files, arrays, threads, and every kind of end."""

from __future__ import annotations

import _thread
import gc
import json
import os
import signal
import subprocess
import threading
import weakref

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import (
    Cancelled,
    ModelError,
    RemoteArgumentError,
    RemoteError,
    RemoteFileError,
    RemoteFunctionError,
    RpcsysError,
    SessionClosed,
    SessionError,
    SessionLost,
    SessionTimeout,
    UsageError,
)
from rpcsys.wire.tensor import Tensor
from tests.device import ROOT, Device, in_call, until
from tests.pythons import pythons
from tests.wire import strategies


def test_a_session_has_the_devices_hello(shared):
    assert shared.info["version"] == 1
    assert shared.info["key"] == "key"
    assert shared.info["capabilities"]["numpy"]
    assert repr(shared) == "<session key at {}:{}, open>".format(*shared.address)
    assert shared.closed is None


# ---------------------------------------------------------------- errors


def test_an_exception_has_the_devices_traceback(shared):
    with pytest.raises(RemoteError) as caught:
        shared.get_function("testing.fail")("of the user")
    error = caught.value
    assert (error.type, error.fault, error.retryable) == ("RuntimeError", "user", False)
    assert str(error).startswith("RuntimeError: of the user\n\nTraceback on the device:\n")
    assert "in _fail" in str(error)  # of a function of ours, too


def test_the_devices_traceback_begins_with_the_users_function(shared):
    with pytest.raises(RemoteError) as caught:
        shared.get_function("test.divide")(1, 0)
    first, frame, *_, last = caught.value.remote_traceback.splitlines()
    assert first == "Traceback (most recent call last):"
    assert frame.endswith("in divide")
    assert last == "ZeroDivisionError: division by zero"


def test_an_unknown_name_is_an_error(shared):
    with pytest.raises(RemoteFunctionError, match=r"the device has no function 'none'; it has .*testing.echo"):
        shared.get_function("none")
    with pytest.raises(
        RemoteFileError, match=r"there is no file 'none\.onnx', neither here nor on the device: check the path"
    ):
        shared.load_module("none.onnx")
    with pytest.raises(RemoteArgumentError, match=r"session\.array takes an array, not a list"):
        shared.array([1])
    with pytest.raises(UsageError, match="bytes have no name"):
        shared.load_module(b"")


def test_a_model_that_the_device_cannot_load_is_not_sent(shared, tmp_path):
    (tmp_path / "model.docx").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"this device cannot load 'model.docx'; it loads .*\.onnx"):
        shared.load_module(tmp_path / "model.docx")
    assert shared.listdir() == []


def test_an_error_of_a_call_does_not_end_the_session(shared):
    for _ in range(3):
        with pytest.raises(RemoteError):
            shared.get_function("testing.fail")()
    assert shared.get_function("testing.echo")(1) == 1


# ---------------------------------------------------------------- what stays on the device


def test_an_array_stays_on_the_device(shared):
    array = np.arange(6).reshape(2, 3)
    kept = shared.array(array)
    assert (kept.dtype, kept.shape) == ("int64", (2, 3))
    assert repr(kept) == "<remote array int64 (2, 3)>"
    echo = shared.get_function("testing.echo")
    assert np.array_equal(echo(kept), array)
    assert np.array_equal(kept.numpy(), kept.get())
    again = echo(kept, keep=True)
    assert again.shape == (2, 3)
    assert np.array_equal(again.get(), array)


def test_a_dropped_handle_frees_its_object(shared):
    kept, dropped = shared.get_function("test.kept"), shared.get_function("test.dropped")
    one, two = kept("drop one"), kept("drop two")
    assert one("arg") == ("drop one", ["arg"])
    del one
    gc.collect()
    assert "drop one" in dropped()
    assert "drop two" not in dropped()
    assert two() == ("drop two", [])


def test_many_objects_are_freed(shared):
    before = len(shared.get_function("test.dropped")())
    things = [shared.get_function("test.kept")(f"many {number}") for number in range(1500)]
    del things
    dropped = shared.get_function("test.dropped")
    dropped()
    assert len(dropped()) >= before + 1500


def test_a_returned_function_can_be_called(shared):
    counter = shared.get_function("test.counter")(10)
    assert counter["add"](5) == 15
    assert counter["add"].submit(1).result() == 16
    assert "more" in repr(counter["add"])


# ---------------------------------------------------------------- threads


def test_many_threads_share_a_session(shared):
    echo = shared.get_function("testing.echo")
    wrong, threads = [], []

    def work(number):
        for index in range(60):
            sent = np.full(1 + 997 * (index % 7), number * 1000 + index)
            came = echo(sent) if index % 2 else echo.submit(sent).result()
            if not np.array_equal(came, sent):
                wrong.append((number, index))

    for number in range(8):
        threads.append(threading.Thread(target=work, args=(number,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two threads wait for each other"
    assert wrong == []


def test_threads_that_call_and_submit_large_arrays(shared):
    """The reading thread must not wait for the sending one: both directions are always full."""
    echo = shared.get_function("testing.echo")
    size = 1 << 20

    def submit():
        futures = [echo.submit(np.full(size, number, "u1")) for number in range(40)]
        done.extend(int(future.result()[0]) for future in futures)

    def call():
        done.extend(int(echo(np.full(size, number, "u1"))[-1]) for number in range(40))

    done = []
    threads = [threading.Thread(target=work, daemon=True) for work in (submit, call, submit, call)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two threads wait for each other"
    assert sorted(done) == sorted(list(range(40)) * 4)


def test_ping_and_close_while_another_thread_calls(device, session, monkeypatch):
    """The other thread learns who closed the session, even if it reads the device's answer to GOODBYE at once."""
    sleep = session.get_function("test.sleep")
    ends = []

    def work():
        try:
            sleep(300)
        except RpcsysError as error:
            ends.append(type(error))

    class SlowToRelease:
        def __init__(self, lock):
            self.acquire = lock.acquire
            self._lock = lock

        def release(self):
            self._lock.release()
            thread.join(30)

    thread = threading.Thread(target=work)
    thread.start()
    device.wait_for_call()
    for _ in range(3):
        session.ping(deadline_s=20)
    monkeypatch.setattr(session._channel, "_send_lock", SlowToRelease(session._channel._send_lock))
    session.close()
    thread.join(30)
    assert ends == [SessionClosed]


# ---------------------------------------------------------------- the end


def test_every_use_after_close_is_session_closed(device):
    session = device.session()
    echo = session.get_function("testing.echo")
    kept = session.array(np.ones(1))
    session.close()
    session.close()
    assert device.reports() == [{"served": "closed"}]
    calls = (lambda: echo(1), lambda: echo.submit(1), session.ping, session.listdir, kept.get)
    files = (lambda: session.upload(b"", "x"), lambda: session.download("x"))
    for use in (*calls, *files, lambda: session.get_function("f")):
        with pytest.raises(SessionClosed, match="the session is closed; open a new one"):
            use()
    assert isinstance(session.closed, SessionClosed)
    assert repr(session).endswith("closed>")


def test_a_session_without_references_is_closed(device):
    session = device.session()
    gone = weakref.ref(session)
    session.get_function("testing.echo").submit(1).result()
    del session
    gc.collect()
    assert gone() is None
    assert device.reports() == [{"served": "closed"}]


def test_close_ends_the_calls_of_other_threads(device):
    session = device.session()
    errors = []

    def work():
        try:
            session.get_function("test.sleep")(300)
        except SessionError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    device.wait_for_call()
    session.close()
    thread.join(30)
    assert [type(error) for error in errors] == [SessionClosed]
    assert device.reports() == [{"outcome": "closed"}]


@pytest.mark.parametrize("when", ["idle", "calling", "submitted"])
def test_a_killed_process_is_session_lost(device, session, when):
    sleep = session.get_function("test.sleep")
    if when != "idle":
        future = sleep.submit(300)
        device.wait_for_call()
    os.kill(device.process.pid, signal.SIGKILL)
    with pytest.raises(SessionLost, match=r"the session with 127.0.0.1:\d+ is gone .*request a device again"):
        future.result() if when == "submitted" else sleep(1)
    with pytest.raises(SessionLost):
        session.ping()


def test_an_exit_in_a_function_ends_the_session(session):
    with pytest.raises(SessionLost, match=r"ended its process \(SystemExit\(3\)\)"):
        session.get_function("test.exit")(3)
    assert isinstance(session.closed, SessionLost)


@pytest.mark.parametrize("how", ["asked", "lease"])
def test_a_call_at_the_time_limit_is_session_timeout(how):
    with Device(limit_s=1.0 if how == "lease" else None) as device:
        with device.session(session_timeout=1.0 if how == "asked" else None) as session:
            with pytest.raises(SessionTimeout, match="the session's time limit of 1 s is over"):
                session.get_function("testing.sleep")(300)
            with pytest.raises(SessionTimeout):
                session.ping()


def test_an_idle_session_ends_at_its_time_limit():
    with Device(limit_s=0.5) as device, device.session() as session:
        assert device.reports() == [{"outcome": "timeout"}]
        with pytest.raises(SessionTimeout):
            session.get_function("testing.echo")


@pytest.mark.parametrize("at_once", [True, False])
def test_ctrl_c_during_a_call_that_cannot_be_stopped_ends_the_session(device, session, at_once):
    def interrupt():
        device.wait_for_call()
        until(lambda: in_call(threading.main_thread(), "recv"), "the client to wait for the reply")
        if at_once:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        else:
            _thread.interrupt_main(signal.SIGINT)  # is seen when the system call comes back

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match="is lost, and the modules, arrays and files on it: "):
        session.get_function("test.sleep")(300)
    with pytest.raises((SessionLost, Cancelled), match="its process was ended, and the session with it"):
        session.ping()
    assert [report["outcome"] for report in device.reports()] == ["ended"]


def test_ctrl_c_during_large_results_keeps_the_session_or_ends_it(device, session):
    stop = threading.Event()
    zeros = session.get_function("test.zeros")

    def interrupt():
        stop.wait(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in iter(lambda: zeros(64 << 20).nbytes, 0):
            pass
    try:
        assert zeros(10).nbytes == 10  # it came between two calls
    except SessionLost as error:
        assert "interrupted" in str(error)  # noqa: PT017 - either is right


# ---------------------------------------------------------------- without numpy

BARE = """
import array, json, sys
sys.path.insert(0, sys.argv[1])
from rpcsys import connect, empty, inout
session = connect("127.0.0.1", int(sys.argv[2]), key="key")
echo, fill = session.get_function("testing.echo"), session.get_function("test.fill")
from rpcsys.client import Tensor
floats = array.array("f", range(6))
halves = echo(Tensor("bfloat16", (2,), bytes([128, 63, 0, 64])))
target = array.array("b", [1, 2, 3])
kept = session.array(memoryview(floats).cast("B").cast("f", [2, 3]))
future = echo.submit(floats)
said = {
    "echo": echo(floats).tolist(),
    "strings": echo(Tensor("strings", (2, 1), ["a", "b"])).tolist(),
    "halves": [halves.dtype, halves.shape, halves.nbytes, bytes(halves.data).hex()],
    "values": echo([1, 2.5, "x", None]),
    "large": echo(memoryview(bytearray(5 << 20))).nbytes,
    "kept": kept.get().tolist(),
    "out": fill(empty(4, "uint8"), 7)[1].tolist(),
    "inout": fill(inout(target), 9)[1].tolist(),
    "written": target.tolist(),
    "future": future.result().tolist(),
    "file": session.upload(b"data", "f") + bytes(session.download("f")).decode(),
    "time": len(session.get_function("testing.nop").time_evaluator(number=1, repeat=2)(floats).results),
    "numpy": "numpy" in sys.modules,
}
try:
    empty(3, float)
except Exception as error:
    said["refused"] = type(error).__name__
session.close()
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("version", "theirs"), [*((version, "numpy") for version in pythons()), (next(iter(pythons())), "bare")]
)
def test_a_client_on_a_bare_python(version, theirs):
    with Device(hide=() if theirs == "numpy" else ("numpy", "ml_dtypes", "onnxruntime")) as device:
        done = subprocess.run(
            [pythons()[version], "-I", "-S", "-c", BARE, str(ROOT), str(device.address[1])],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        floats = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert json.loads(done.stdout) == {
            "echo": floats,
            "strings": [["a"], ["b"]],
            "halves": ["bfloat16", [2], 4, "803f0040"],
            "values": [1, 2.5, "x", None],
            "large": 5 << 20,
            "kept": [floats[:3], floats[3:]],
            "out": [7] * 4,
            "inout": [9] * 3,
            "written": [9] * 3,
            "future": floats,
            "file": "fdata",
            "time": 2,
            "numpy": False,
            "refused": "ValueNotSupported",
        }
        assert device.reports() == [{"served": "closed"}]


def test_a_device_without_numpy_and_a_client_with_it():
    with Device(hide=("numpy", "ml_dtypes")) as device, device.session() as session:
        echo = session.get_function("testing.echo")
        array = np.arange(6, dtype="f4").reshape(2, 3)
        assert np.array_equal(echo(array), array)
        assert np.array_equal(session.array(array).numpy(), array)
        assert session.get_function("test.types")(array) == ["rpcsys.wire.tensor.Tensor"]
        target = np.zeros(4, "u1")
        session.get_function("test.fill")(rpcsys.inout(target), 5)
        assert target.tolist() == [5] * 4


def test_an_element_type_that_numpy_lacks_arrives_as_a_tensor(shared, monkeypatch):
    monkeypatch.setattr(strategies.dtypes, "numpy_dtype", lambda name: None)
    came = shared.get_function("testing.echo")(np.ones(3, "f2"))
    assert type(came) is Tensor
    assert (came.dtype, came.shape) == ("float16", (3,))


def test_an_error_in_a_with_block_closes_the_session(device):
    with pytest.raises(ZeroDivisionError), device.session():
        raise ZeroDivisionError
    assert device.reports() == [{"served": "closed"}]


def test_the_boards_state_has_the_memory_of_the_sessions_process(session):
    before = session.board_state()
    kept = session.get_function("testing.echo")(np.ones(1 << 22, "f8"), keep=True)
    after = session.board_state()
    assert after["load"] >= 0
    assert after["cpu_s"]["all"] >= before["cpu_s"]["all"]
    assert after["process"]["anonymous"] - before["process"]["anonymous"] > kept.shape[0]
    assert after["process"]["peak"] >= after["process"]["anonymous"]
