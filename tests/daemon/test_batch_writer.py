"""The thread that writes batches."""

import threading
import time

from rpcsys.daemon.batch_writer import BatchWriter
from tests.live.daemons import wait_until


def test_it_writes_soon_after_a_wake_and_once_at_the_end():
    pending, written, calls = [1], [], []

    def write():
        calls.append(threading.current_thread().name)
        while pending:
            written.append(pending.pop(0))

    writer = BatchWriter("test", write, gather_s=0.01)
    wait_until(lambda: written == [1], 10, "the first item is written")
    pending.append(2)
    writer.wake()
    wait_until(lambda: written == [1, 2], 10, "the second item is written")
    time.sleep(0.2)
    quiet = len(calls)
    time.sleep(0.3)
    assert len(calls) == quiet  # it sleeps without a wake
    pending.append(3)
    assert writer.close(10)
    assert written == [1, 2, 3]
    assert set(calls) == {"test"}


def test_many_wakes_are_one_call():
    calls = []
    writer = BatchWriter("test", lambda: calls.append(1), gather_s=0.3)
    for _ in range(10_000):
        writer.wake()
    writer.close(10)
    assert len(calls) <= 3


def test_write_is_called_again_after_the_returned_seconds():
    calls = []

    def write():
        calls.append(1)
        return 0.01 if len(calls) < 5 else None

    writer = BatchWriter("test", write, gather_s=0.01)
    wait_until(lambda: len(calls) == 5, 10, "five calls")
    writer.close(10)


def test_a_hanging_write_does_not_block_close():
    hanging = threading.Event()
    writer = BatchWriter("test", lambda: hanging.wait(60) and None, gather_s=0)
    assert not writer.close(0.1)
    hanging.set()
    assert writer.close(10)
