"""One stream of the C library, used by several threads and by handlers at once: errors, and no lost memory."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import Any

import pytest

from rpcsys import stream
from rpcsys.wire import frames
from tests.device import in_call, until

pytestmark = pytest.mark.skipif(stream.speedups is None, reason="the library is not built")


@pytest.fixture
def pair():
    ours, theirs = (stream.NativeStream(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_second_thread_may_not_receive(pair):
    ours, theirs = pair
    thread = threading.Thread(target=ours.receive)
    thread.start()
    until(lambda: in_call(thread, "recv"), "the thread to receive")
    for receive in (ours.receive, ours.next):
        with pytest.raises(RuntimeError, match="another thread receives"):
            receive()
    assert ours.skip(frames.PING) == (0, b"")
    theirs.send(frames.pack(frames.PING, 1))
    thread.join(30)
    theirs.send(frames.pack(frames.PING, 2))
    assert ours.receive().call_id == 2


def test_nor_a_handler_inside_a_receipt(pair):
    ours, theirs = pair
    body = frames.encode(frames.CALL, 1, {"a": memoryview(bytes(30_000))})
    theirs.send([body[0], body[1][:100]])  # the handler runs while the body's memory is in use
    before = signal.signal(signal.SIGALRM, lambda *_: ours.receive())
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        with pytest.raises(RuntimeError, match="another thread receives"):
            ours.receive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    theirs.send([body[1][100:]])
    assert bytes(ours.receive().buffers[0]) == bytes(30_000)


def test_threads_that_misuse_a_stream_get_errors(pair):
    """What each of them got stays as it was."""
    ours, theirs = pair
    theirs.tick(0.01)
    calls = [frames.encode(frames.CALL, 1, {"a": [memoryview(b"x" * size)] * 2}) for size in (5, 1000, 70_000)]
    kept: list[tuple[Any, list[bytes]]] = []

    def send() -> None:
        with contextlib.suppress(stream.Ended):
            for number in range(300):
                ours.send(calls[number % 3])
        ours.close()

    def receive(skips: bool) -> None:
        with contextlib.suppress(stream.Ended):
            while True:
                with contextlib.suppress(RuntimeError):
                    frame = theirs.receive(stream.DONT_WAIT) if skips else theirs.receive()
                    theirs.skip(frames.PING)
                    if frame is not None:
                        kept.append((frame, [bytes(view) for view in frame.buffers]))

    threads = [threading.Thread(target=send)] + [threading.Thread(target=receive, args=(each,)) for each in (0, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(kept) == 300
    assert all([bytes(view) for view in frame.buffers] == before for frame, before in kept)


def test_a_receipt_of_fewer_than_no_bytes_has_the_limit_of_its_memory(pair):
    ours, theirs = pair
    theirs.send(frames.pack(frames.PING, 1))
    assert ours.receive(0, -1).call_id == 1
    body = bytes(range(256)) * 4000
    sender = threading.Thread(target=theirs.send, args=([*frames.pack(frames.CHUNK, 2, b"", [body])],))
    sender.start()
    while (frame := ours.receive(0, -1)) is None:
        pass
    sender.join()
    assert frame.buffers[0] == body


def test_what_waits_for_space_may_close_the_stream(pair):
    ours, _ = pair
    with pytest.raises(stream.Ended, match="Bad file descriptor"):
        ours.send([bytes(8 << 20)], ours.close)
