"""Servers of a module that come and go, and new versions of it."""

from __future__ import annotations

import pytest

from rpcsys.gateway.actions import CloseReplica, ConnectReplica
from tests.gateway.transcripts import GatewayTranscript, said


@pytest.fixture
def transcript() -> GatewayTranscript:
    return GatewayTranscript()


def test_a_lost_connection_is_opened_again_with_growing_pauses(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.wait(5)
    transcript.lose(number)
    pauses = []
    for _ in range(10):
        started = transcript.now
        while not transcript.opening:
            transcript.wait(0.05)
        pauses.append(round(transcript.now - started, 2))
        transcript.lose(next(iter(transcript.opening)))
    assert pauses[:2] == [0, 0.05]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(2, abs=0.1)


def test_a_server_that_is_no_longer_listed_gets_no_calls(transcript: GatewayTranscript) -> None:
    """Those under way are answered, then the connection is closed."""
    one, other = transcript.replicas(2)
    transcript.submit(1)
    transcript.submit(2)
    transcript.serve(places=[2])
    transcript.submit(3)
    assert transcript.on(one) == [[1]]
    assert not transcript.took(CloseReplica)
    transcript.answer_all()
    assert transcript.took(CloseReplica) == [CloseReplica(one)]
    assert transcript.body(1) == b"\1"
    assert list(transcript.open) == [other]


def test_the_last_server_is_kept_while_a_tracker_begins_anew(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.list([])
    transcript.submit(1)
    assert transcript.on(number) == [[1]]
    transcript.answer_all()
    transcript.wait(20)
    transcript.serve()
    transcript.wait(60)
    assert list(transcript.open) == [number]
    transcript.list([])
    transcript.wait(31)
    assert transcript.took(CloseReplica) == [CloseReplica(number)]


def test_a_successor_brings_its_own_description(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    before = transcript.state.callable("m")
    transcript.apply(transcript.state.announced(number, said(), transcript.now))
    assert transcript.state.callable("m") is before  # nothing has changed
    inputs = [{"name": "x", "dtype": "float32", "shape": [16]}]
    transcript.apply(transcript.state.announced(number, said(version="0002-b", inputs=inputs), transcript.now))
    after = transcript.state.callable("m")
    assert (after.version, after.inputs[0].dtype, after.inputs[0].extents) == ("2", "float32", [16])


def test_calls_go_to_replicas_of_the_same_description(transcript: GatewayTranscript) -> None:
    one, other = transcript.replicas(2)
    inputs = [{"name": "x", "dtype": "uint8", "shape": ["n", 1]}]
    transcript.apply(transcript.state.announced(other, said(version="0002-b", inputs=inputs), transcript.now))
    for label in range(3):
        transcript.submit(label)
    assert (len(transcript.on(one)), len(transcript.on(other))) == (0, 3)
    transcript.lose(other)  # what is left serves
    assert len(transcript.on(one)) == 3
    assert transcript.state.callable("m").version == "1"


def test_a_host_that_says_nothing_of_its_successor_is_connected_anew(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.submit(1)
    transcript.serve(version="0002-b")
    assert not transcript.opening
    transcript.serve(version="0002-b")
    (opening,) = transcript.opening
    transcript.open_all(version="0002-b")
    transcript.submit(2)
    assert transcript.on(number) == [[1]]
    assert transcript.on(opening) == [[2]]
    transcript.answer_all()
    assert transcript.took(CloseReplica) == [CloseReplica(number)]
    assert transcript.state.callable("m").version == "2"
    for _ in range(3):  # a list that stays behind does not connect again and again
        transcript.serve(version="0003-c")
    transcript.open_all(version="0002-b")
    for _ in range(3):
        transcript.serve(version="0003-c")
    assert len(transcript.took(ConnectReplica)) == 3
