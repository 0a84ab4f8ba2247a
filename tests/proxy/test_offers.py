"""The proxy's offers to the tracker, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.proxy.offers import MAX_PRESENTED, UNUSED_S
from tests.proxy.transcripts import ProxyTranscript


@pytest.fixture
def transcript() -> ProxyTranscript:
    transcript = ProxyTranscript(tracked=True)
    transcript.tracker_up()
    return transcript


def test_earlier_streams_are_offered_when_the_tracker_is_up() -> None:
    transcript = ProxyTranscript(tracked=True)
    server = transcript.server()
    assert transcript.offered == []
    transcript.tracker_up()
    (match_key,) = transcript.offered
    assert transcript.presented == [("rpi4",)]
    client = transcript.client(match_key)
    assert transcript.pairs == [(client, server)]


def test_all_is_offered_again_after_a_reconnect(transcript: ProxyTranscript) -> None:
    transcript.server()
    (old,) = transcript.offered
    transcript.tracker_down()
    transcript.server("rpi3")
    assert transcript.offered == [old]  # there is no link to offer on
    transcript.tracker_up()
    assert len(transcript.offered) == 2
    assert old not in transcript.offered
    assert transcript.presented[-1] == ("rpi3", "rpi4")


def test_an_unused_match_key_is_replaced(transcript: ProxyTranscript) -> None:
    server = transcript.server()
    (first,) = transcript.offered
    transcript.pending(first)
    transcript.wait(100)
    transcript.pending()  # handed out
    transcript.wait(UNUSED_S)
    transcript.pending()
    assert transcript.offered == [first]
    transcript.wait(0.1)
    transcript.pending()
    _, second = transcript.offered
    transcript.client(first)
    assert transcript.pairs == []
    client = transcript.client(second)
    assert transcript.pairs == [(client, server)]


def test_a_match_key_that_is_pending_again_is_not_replaced(transcript: ProxyTranscript) -> None:
    transcript.server()
    (match_key,) = transcript.offered
    transcript.pending()
    transcript.wait(UNUSED_S + 1)
    transcript.pending(match_key)
    transcript.pending()
    assert transcript.offered == [match_key]


def test_an_offer_whose_server_died_is_withdrawn(transcript: ProxyTranscript) -> None:
    dead = transcript.server()
    transcript.server()
    first, second = transcript.offered
    transcript.leave(dead)
    assert transcript.reconnects == 0
    transcript.pending(first, second)
    assert transcript.reconnects == 1
    transcript.tracker_down()
    transcript.tracker_up()
    assert len(transcript.offered) == 1
    assert first not in transcript.offered
    transcript.pending(*transcript.offered)
    assert transcript.reconnects == 1


def test_a_granted_offer_needs_no_withdrawal(transcript: ProxyTranscript) -> None:
    transcript.leave(transcript.server())
    transcript.pending()
    transcript.pending()
    assert transcript.reconnects == 0


def test_a_granted_match_key_is_valid_after_a_reconnect(transcript: ProxyTranscript) -> None:
    server, dead = transcript.server(), transcript.server()
    taken, offered = transcript.offered
    transcript.leave(dead)
    transcript.pending(offered)
    assert transcript.reconnects == 1
    transcript.tracker_down()
    transcript.tracker_up()
    assert transcript.offered == []
    client = transcript.client(taken)
    assert transcript.pairs == [(client, server)]


def test_the_name_of_our_server_changes_with_its_match_key(transcript: ProxyTranscript) -> None:
    """A server of ours without a link to the tracker parks under its key, with its identity."""
    server = transcript.server(id="7")
    transcript.tracker_down()
    transcript.tracker_up()
    assert dict(transcript.state.waiting.owned) == {transcript.offered[0]: 1}
    client = transcript.client(transcript.offered[0])
    transcript.leave(server)
    assert transcript.pairs == [(client, server)]
    assert not transcript.state.waiting.owned
    assert transcript.is_replayed()


def test_a_draining_proxy_offers_nothing(transcript: ProxyTranscript) -> None:
    transcript.server()
    transcript.drain()
    transcript.offered.clear()
    transcript.pending()
    transcript.tracker_up()
    assert transcript.offered == []


@pytest.mark.parametrize("key", ["a,b", "a]", "", "k" * 256])
def test_an_invalid_key_is_refused(transcript: ProxyTranscript, key: str) -> None:
    """The tracker would hang up, which would end all offers of the proxy."""
    server = transcript.server(key)
    assert transcript.refused == {server: "mismatch"}
    assert transcript.offered == []


def test_the_reported_keys_fit_a_frame(transcript: ProxyTranscript) -> None:
    count = 2 * MAX_PRESENTED // 250
    for number in range(count):
        transcript.server(f"{number:0250}", address=str(number))
    assert len(transcript.offered) == count
    assert MAX_PRESENTED - 250 < sum(map(len, transcript.presented[-1])) <= MAX_PRESENTED
    transcript.server("short")
    assert "short" in transcript.presented[-1]  # a short key still fits
