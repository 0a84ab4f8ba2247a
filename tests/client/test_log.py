"""A session's output, as its client reads it."""

from __future__ import annotations

import threading

import pytest

from rpcsys.client.log import KEPT_LINES, MOST_LETTERS, MOST_LINES, REFILL_S, LogLimit, SessionLog, gap
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader


class FakeChannel:
    """A channel whose `wait` delivers the next message, or the end."""

    def __init__(self, *messages):
        self.log = SessionLog(self)
        self.messages = list(messages)
        self.broken = None
        self.called = []
        self.listening = False

    def wait(self, pending, timeout):
        if self.messages:
            say(self.log, self.messages.pop(0))
            assert pending.answered
        else:
            self.broken = OSError()

    def call_back(self, callback, what):
        self.called.append((callback, what))

    def run(self):
        """Do the work of the thread for callbacks."""
        while self.called:
            callback, what = self.called.pop(0)
            callback(what)

    def listen(self):
        self.listening = True


def say(log, message, **more):
    (frame,) = FrameReader().feed(b"".join(frames.encode(frames.LOG, 0, {"message": message, **more})))
    log.add(frame)


def test_lines_from_the_beginning_to_the_end():
    channel = FakeChannel("two\nthree", "four")
    say(channel.log, "one")
    assert list(channel.log.lines()) == ["one", "two", "three", "four"]
    assert list(channel.log.lines()) == ["one", "two", "three", "four"]


def test_the_lines_until_now_are_there_without_waiting():
    channel = FakeChannel()
    say(channel.log, "one\ntwo")
    assert channel.log.kept() == ["one", "two"]


def test_the_last_lines_are_kept_and_a_gap_is_noted():
    channel = FakeChannel()
    early = channel.log.lines()
    say(channel.log, "first")
    assert next(early) == "first"
    for number in range(KEPT_LINES + 5):
        say(channel.log, str(number))
    assert next(early) == "(5 lines are missing here: they came faster than they were read)"
    assert next(early) == "5"
    late = list(channel.log.lines())
    assert late[0].startswith("(6 lines are missing here")
    assert len(late) == KEPT_LINES + 1


def test_lines_lost_on_the_device_are_noted():
    channel = FakeChannel()
    say(channel.log, "after", lost=7)
    assert list(channel.log.lines()) == ["(7 lines are missing here: they came faster than they were read)", "after"]


def test_a_callback_gets_each_new_line():
    channel, called = FakeChannel(), []
    say(channel.log, "before")
    channel.log.call(called.append)
    assert channel.listening
    say(channel.log, "one\ntwo")
    channel.run()
    say(channel.log, "three")
    channel.run()
    assert called == ["one", "two", "three"]


def test_a_callback_that_raises_gets_the_next_line(caplog):
    channel, called = FakeChannel(), []

    def callback(line):
        called.append(line)
        raise ValueError(line)

    channel.log.call(callback)
    say(channel.log, "one\ntwo")
    channel.run()
    assert called == ["one", "two"]
    assert caplog.text.count("raised") == 2


def test_a_slow_callback_misses_lines_and_gets_their_number():
    channel, called = FakeChannel(), []
    channel.log.call(called.append)
    for number in range(2 * KEPT_LINES):
        say(channel.log, str(number))
        assert len(channel.called) == 1
    channel.run()
    assert called[0] == gap(KEPT_LINES)
    assert called[1:] == [str(number) for number in range(KEPT_LINES, 2 * KEPT_LINES)]


@pytest.mark.parametrize("message", [5, None, [1], "", "\n"])
def test_a_message_of_any_type_is_taken(message):
    channel = FakeChannel()
    say(channel.log, message)
    assert all(type(line) is str for line in channel.log.lines())


def test_an_iterator_in_a_thread_of_its_own_ends_with_the_session(device):
    session = device.session()
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(session.log()))
    thread.start()
    assert session.get_function("testing.echo")(5) == 5
    session.close()
    thread.join(20)
    assert not thread.is_alive()
    assert seen == []


# ---------------------------------------------------------------- how many of a device's lines are taken


def log_frame(message):
    (frame,) = FrameReader().feed(b"".join(frames.encode(frames.LOG, 0, {"message": message})))
    return frame


def messages(taken):
    return [frame.get("message") for frame in taken]


def none():
    return 0


def test_lines_are_taken_up_to_the_limit():
    limit = LogLimit()
    whole = "\n" * (MOST_LINES - 1)
    assert messages(limit.taken(log_frame(whole), 0.0, none)) == [whole]
    assert limit.taken(log_frame("one more"), 0.0, none) == []


def test_lines_left_out_are_noted_before_the_next_line():
    limit = LogLimit()
    assert limit.taken(log_frame("x" * (MOST_LETTERS + 1)), 0.0, lambda: 4) == []
    assert messages(limit.taken(log_frame("short"), 0.0, none)) == [
        "(5 lines are missing here: they came faster than they were read)",
        "short",
    ]
    assert messages(limit.taken(log_frame("short"), 0.0, none)) == ["short"]


def test_the_limit_is_refilled_with_time():
    limit = LogLimit()
    limit.taken(log_frame("\n" * (MOST_LINES - 1)), 0.0, none)
    half = "\n" * (MOST_LINES // 2 - 1)
    assert limit.taken(log_frame(half), REFILL_S / 4, none) == []
    assert messages(limit.taken(log_frame(half), REFILL_S / 2, none))[1] == half
