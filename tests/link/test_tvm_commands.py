"""TVM's commands on a link: replies are matched to them by their order."""

from __future__ import annotations

import pytest

from rpcsys.errors import ProtocolError, TrackerError
from rpcsys.link.tvm_commands import TvmCommands
from rpcsys.wire import tracker as wire

PUT, PENDING = wire.Put("k", 1, "k:1"), wire.GetPending()


class Sent(list):
    """A link that accepts all messages."""

    send = list.append


def given(*commands):
    sent, made = Sent(), TvmCommands()
    for command in commands:
        made.give(sent, command)
    assert sent == list(commands)
    assert len(made.unanswered) == len(commands)
    return made


def test_replies_answer_commands_in_order():
    commands = given(PUT, PENDING, wire.UpdateInfo("server:k", None, 1))
    assert commands.answered(wire.SUCCESS) == (wire.Put, ())
    assert commands.answered(["k:1"]) == (wire.GetPending, ("k:1",))
    assert commands.answered(wire.SUCCESS) == (wire.UpdateInfo, ())
    with pytest.raises(ProtocolError, match="without a command"):
        commands.answered(wire.SUCCESS)


@pytest.mark.parametrize("reply", [0, None, "k:1", [1], {"k": 1}])
def test_match_keys_are_a_list_of_texts(reply):
    with pytest.raises(ProtocolError, match="GetPending"):
        given(PENDING).answered(reply)


@pytest.mark.parametrize("reply", [-1, [], None])
def test_a_refused_command_is_a_tracker_error(reply):
    with pytest.raises(TrackerError, match="refused Put"):
        given(PUT).answered(reply)
