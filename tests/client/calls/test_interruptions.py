"""Ctrl-C at any moment: the session goes on, or is closed. Nothing waits for ever, and every reply is its call's."""

from __future__ import annotations

import dis
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys.client.calls import channel, receiver
from rpcsys.errors import Cancelled, SessionLost
from rpcsys.stream import DONT_WAIT
from rpcsys.wire import frames
from tests import secured
from tests.device import WAIT_S, Device, Raw, in_call, until

LONG_S = 300.0
PACKAGE = str(Path(rpcsys.__file__).parent)
#: After these, and only after these, Python looks for signals whose handlers are to run.
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")
STEP = 3  # moments


# ---------------------------------------------------------------- the stream


class Ends:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.stream, device = secured.open_raw((ours, theirs))
        self.device = Raw(theirs, device)

    def receive_raw(self, most: int) -> bytes:
        """Bytes at the device's end, at least one."""
        return secured.receive_raw(self.device.stream, most, WAIT_S)


@pytest.fixture
def ends(speedups: str) -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.stream.close()
    ends.device.sock.close()


def test_a_stream_is_torn_until_a_frame_is_handled(ends: Ends) -> None:
    stream = ends.stream
    for call_id in (1, 2):
        ends.device.send(frames.RESULT, call_id, {"r": call_id})
    for call_id in (1, 2):
        frame = stream.receive()
        assert frame is not None
        assert (frame.call_id, stream.torn) == (call_id, True)
    stream.settle()
    assert not stream.torn
    assert stream.next() is None
    assert stream.receive(DONT_WAIT) is None
    assert not stream.torn


def test_an_interruption_of_the_system_call_loses_nothing(ends: Ends) -> None:
    with interrupted(lambda: None):
        ends.stream.receive()
    assert not ends.stream.torn
    data = os.urandom(8 << 20)
    with interrupted(lambda: None):
        ends.stream.send([data])
    received = bytearray()

    def read() -> None:
        while len(received) < len(data):
            received.extend(ends.receive_raw(1 << 20))

    thread = threading.Thread(target=read)
    thread.start()
    assert ends.stream.resume(lambda: time.sleep(0.001), WAIT_S)
    thread.join()
    assert received == data


def test_an_interruption_ends_a_send_to_a_slow_peer(ends: Ends) -> None:
    """It comes although bytes are sent all the time."""
    data, received, over = os.urandom(64 << 20), bytearray(), threading.Event()

    def read() -> None:
        while len(received) < len(data):
            received.extend(ends.receive_raw(256 << 10))
            over.wait(0.01)

    reader = threading.Thread(target=read)
    with interrupted(reader.start):
        try:
            ends.stream.send([data])
        finally:
            sent = len(received)
            over.set()
    assert sent < len(data) // 2
    assert ends.stream.resume(lambda: time.sleep(0.001), WAIT_S)
    reader.join()
    assert received == data


def interrupts(*_: object) -> int:
    raise KeyboardInterrupt


def test_the_rest_of_interrupted_frames_is_sent(ends: Ends) -> None:
    """The interruption comes while the peer reads nothing, with a part of the frames sent."""
    pieces = [bytes([number]) * (1 << 20) for number in range(5)]
    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        ends.stream.send(pieces, interrupts, begun=lambda: begun.append("begun"))
    assert not ends.stream.resume(lambda: time.sleep(0.01), 0.05)
    received = bytearray()

    def read() -> None:
        received.extend(ends.receive_raw(1 << 20))

    assert ends.stream.resume(read, WAIT_S)
    while len(received) < 5 << 20:
        read()
    assert received == b"".join(pieces)
    assert begun
    assert ends.stream.resume(interrupts, WAIT_S)  # nothing is left


# ---------------------------------------------------------------- calls


def at_the_stream() -> bool:
    return in_call(threading.main_thread(), "recv", "send", "sendmsg", "poll")


@contextmanager
def interrupted(ready: Callable[[], object], waits: bool = True) -> Iterator[None]:
    """Ctrl-C for the main thread once ``ready`` returns and that thread waits for the stream, or at once."""

    def interrupt() -> None:
        ready()
        if waits:
            until(at_the_stream, "the main thread to use the stream")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            yield
    finally:
        thread.join(WAIT_S)
    interrupted.said = str(caught.value)  # type: ignore[attr-defined]


def test_a_call_that_can_be_stopped_leaves_the_session(device: Device, session: Any) -> None:
    with interrupted(device.wait_for_call):
        session.get_function("test.stoppable")(LONG_S)
    assert interrupted.said == ""  # type: ignore[attr-defined]
    assert session.get_function("testing.echo")("next") == "next"


def test_a_call_that_ends_soon_leaves_the_session(device: Device, session: Any) -> None:
    with interrupted(device.wait_for_call):
        session.get_function("test.sleep")(0.3)
    assert session.get_function("testing.echo")("next") == "next"


def test_a_call_that_cannot_be_stopped_reports_what_is_lost(device: Device, session: Any) -> None:
    with interrupted(device.wait_for_call):
        session.get_function("test.sleep")(LONG_S)
    host, port = session.address
    assert interrupted.said == (  # type: ignore[attr-defined]
        f"the session with {host}:{port} is lost, and the modules, arrays and files on it: "
        "the call was cancelled; its process was ended, and the session with it"
    )
    with pytest.raises((SessionLost, Cancelled), match="its process was ended"):
        session.get_function("testing.echo")
    assert [report["outcome"] for report in device.reports()] == ["ended"]


def test_a_device_that_does_not_answer_is_left(device: Device, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "GRACE_S", 0.2)
    monkeypatch.setattr(channel, "STOP_S", LONG_S)
    with interrupted(device.wait_for_call):
        session.get_function("test.sleep")(LONG_S)
    assert "did not stop a cancelled call within 0.2 s" in interrupted.said  # type: ignore[attr-defined]


def test_a_second_ctrl_c_does_not_wait(device: Device, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "GRACE_S", LONG_S)
    monkeypatch.setattr(channel, "STOP_S", LONG_S)

    def twice() -> None:
        device.wait_for_call()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until(lambda: session._channel._receiver._stopping)

    with interrupted(twice):
        session.get_function("test.sleep")(LONG_S)
    device.process.kill()


def test_a_call_behind_another_one_is_dropped(device: Device, session: Any) -> None:
    sleep, counter = session.get_function("test.sleep"), session.get_function("test.counter")
    running, counted = sleep.submit(1.0), counter.submit(0)

    def waits() -> None:
        device.wait_for_call()
        until(lambda: len(session._channel._receiver.pending) == 3)

    with interrupted(waits):
        sleep(LONG_S)
    assert running.result() is None
    assert counted.result()["add"](1) == 1


def test_an_interrupted_chain_of_futures_is_dropped(device: Device, session: Any) -> None:
    stoppable, echo = session.get_function("test.stoppable"), session.get_function("testing.echo")
    with interrupted(device.wait_for_call):
        echo.submit(stoppable.submit(LONG_S).result()).result()
    assert echo.submit("next").result() == "next"


def test_a_future_whose_call_cannot_be_stopped_goes_on(device: Device, session: Any) -> None:
    sleep, stoppable = session.get_function("test.sleep"), session.get_function("test.stoppable")
    running, stopped = sleep.submit(1.0), stoppable.submit(LONG_S)
    with interrupted(device.wait_for_call):
        running.result()
    (device.workdir / "running").unlink()
    assert running.result() is None
    with interrupted(device.wait_for_call):
        stopped.exception()
    with pytest.raises(Cancelled, match="the call was cancelled; it was stopped, and the session goes on"):
        stopped.result()


def test_an_array_that_is_being_sent_is_sent_whole(device: Device, session: Any) -> None:
    """Its head is known by then: the library sends it, and Python the rest of it. An array without dimensions, too."""
    transposed, array, no = session.get_function("test.transposed"), np.arange(2 << 20), np.array(0)
    for _ in range(3):
        assert (transposed(array, no) == array).all()
    os.kill(device.process.pid, signal.SIGSTOP)

    def goes_on() -> None:
        until(at_the_stream, "the main thread to wait for the device")
        threading.Timer(0.2, os.kill, (device.process.pid, signal.SIGCONT)).start()

    with interrupted(goes_on):
        transposed(array, no)
    assert (transposed(array, no) == array).all()


def test_ping_leaves_the_session(device: Device, session: Any) -> None:
    os.kill(device.process.pid, signal.SIGSTOP)
    with interrupted(lambda: until(lambda: session._channel._receiver.pending)):
        session.ping(LONG_S)
    os.kill(device.process.pid, signal.SIGCONT)
    assert session.get_function("testing.echo")("next") == "next"


# ---------------------------------------------------------------- files


def test_an_interrupted_upload_leaves_no_file(device: Device, session: Any, tmp_path: Path) -> None:
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(8 << 30)
    moving = threading.Event()
    with interrupted(lambda: moving.wait(WAIT_S), waits=False):
        session.upload(source, progress=lambda done, total: moving.set() if done > 4 << 20 else None)
    assert session.listdir() == []
    assert session.upload(b"whole", "small") == "small"
    until(lambda: sorted(path.name for path in device.workdir.iterdir()) == ["small"])


def test_an_interrupted_download_leaves_no_file(device: Device, session: Any, tmp_path: Path) -> None:
    with (device.workdir / "large").open("wb") as file:
        file.truncate(8 << 30)
    (device.workdir / "small").write_bytes(b"whole")
    moving = threading.Event()
    with interrupted(lambda: moving.wait(WAIT_S), waits=False):
        session.download("large", tmp_path / "large", progress=lambda done, total: moving.set())
    assert list(tmp_path.iterdir()) == []
    assert session.download("small") == b"whole"


def test_an_interrupted_measurement_leaves_the_session(device: Device, session: Any) -> None:
    with interrupted(device.wait_for_call):
        session.get_function("test.sleep").time_evaluator(number=1, repeat=3, cooldown_s=60)(0.0)
    assert session.get_function("testing.echo")("next") == "next"


# ---------------------------------------------------------------- any moment


class Interruptions:
    """Raises KeyboardInterrupt at the n-th moment at which Python would run a signal's handler in the package."""

    def __init__(self, at: int) -> None:
        self.left = at
        self._before: dict[FrameType, str] = {}

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            looked = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if looked.startswith(LOOKS):
                self.left -= 1
                if not self.left:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        elif event == "return":
            self._before.pop(frame, None)
        return self.trace


def plain(session: Any) -> None:
    assert session.get_function("testing.echo")("first") == "first"


def arrays(session: Any) -> None:
    assert session.array(np.arange(100_000)).numpy()[-1] == 99_999


def futures(session: Any) -> None:
    echo = session.get_function("testing.echo")
    assert [future.result() for future in [echo.submit(number) for number in range(20)]] == list(range(20))


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="earlier Pythons run handlers at other bytecodes")
@pytest.mark.parametrize("work", [plain, arrays, futures])
def test_ctrl_c_at_any_moment(work: Callable[[Any], None], no_collector: None) -> None:
    """Python drops what a ``__del__`` raises: without the collector no session of an earlier test ends here."""
    moment, tried, kept, ended = 0, 0, 0, False
    while not ended:
        with Device() as device, device.session() as session:
            while session.closed is None and not ended:
                moment += STEP
                tried += 1
                interruptions = Interruptions(moment)
                sys.settrace(interruptions.trace)
                try:
                    work(session)
                except (KeyboardInterrupt, SessionLost):
                    pass
                finally:
                    sys.settrace(None)
                ended = interruptions.left > 0
                kept += not ended and still_right(session)
    assert tried > 30
    assert kept > tried / 2


def still_right(session: Any) -> bool:
    """Whether the session goes on, with the right replies; else it is closed, and says so at once."""
    if session.closed is not None:
        return False
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(session.get_function("testing.echo")("right"))
            answers.append(session.get_function("testing.echo").submit("right").result())
        except SessionLost as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert answers, "the session waits for ever"
    return answers == ["right", "right"]
