"""Replies of TVM's tracker, which carry no id."""

from __future__ import annotations

import pytest

from rpcsys.errors import ProtocolError, TrackerError
from rpcsys.link.tvm_commands import TvmCommands
from rpcsys.wire import tracker

PUT, PENDING = tracker.Put("k", 1, "k:1"), tracker.GetPending()


class Sent(list):
    """A link that takes everything."""

    send = list.append


def given(*commands):
    sent, made = Sent(), TvmCommands()
    for command in commands:
        made.give(sent, command)
    assert sent == list(commands)
    assert len(made.unanswered) == len(commands)
    return made


def test_replies_answer_commands_in_order():
    commands = given(PUT, PENDING, tracker.UpdateInfo("server:k", None, 1))
    assert commands.answered(tracker.SUCCESS) == (tracker.Put, ())
    assert commands.answered(["k:1"]) == (tracker.GetPending, ("k:1",))
    assert commands.answered(tracker.SUCCESS) == (tracker.UpdateInfo, ())
    with pytest.raises(ProtocolError, match="not asked"):
        commands.answered(tracker.SUCCESS)


@pytest.mark.parametrize("reply", [0, None, "k:1", [1], {"k": 1}])
def test_match_keys_are_a_list_of_texts(reply):
    with pytest.raises(ProtocolError, match="GetPending"):
        given(PENDING).answered(reply)


@pytest.mark.parametrize("reply", [-1, [], None])
def test_a_refusal_is_no_broken_protocol(reply):
    with pytest.raises(TrackerError, match="refused Put"):
        given(PUT).answered(reply)
