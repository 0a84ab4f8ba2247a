"""The place in the queue, as people see it."""

from __future__ import annotations

import gc
import io
import logging
import sys
from typing import Any

import pytest

from rpcsys.client import place
from rpcsys.client import tracker as tracker_module
from rpcsys.client.place import PlaceWatcher, QueuedEvent
from tests.device import until

EVENT = {"position": 2, "ahead": 1, "eta_s": [20.0, 190.0], "holders": [{"user": "bob", "server": "desk"}], "note": ""}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Held:
    """A leased session."""

    def __init__(self) -> None:
        self.closed = None
        self.lease = {"server": "desk"}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What a person sees; set with `look` in the test, since pytest changes standard error after the fixtures."""
    monkeypatch.setattr(place, "QUIET_S", 0.05)
    return Terminal()


def look(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "waiting for a device: place 2 in the queue, taken by bob, 20 s to 3 min to go"),
        ({"eta_s": None, "holders": []}, "waiting for a device: place 2 in the queue"),
        ({"eta_s": [0, 9000], "note": "no board"}, "place 2 in the queue, taken by bob, 0 s to 2 h to go (no board)"),
        ({"eta_s": None, "holders": [{"user": "a\x1b[1m"}] * 2}, "taken by a\\x1b[1m"),
    ],
)
def test_an_event_prints_as_a_sentence(change: dict[str, Any], text: str) -> None:
    event = QueuedEvent({**EVENT, **change})
    assert str(event).endswith(text)
    assert event["position"] == 2


def test_a_terminal_shows_the_place_after_a_while(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    look(terminal, monkeypatch)
    with PlaceWatcher(None, "ann") as watcher:
        watcher(EVENT)
        assert terminal.getvalue() == ""
        until(terminal.getvalue, "the place")
        watcher({**EVENT, "position": 1})
        until(lambda: terminal.getvalue().count("\n") == 2, "the second place")
    assert "place 1 in the queue" in terminal.getvalue()


def test_a_new_note_is_printed_at_once(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "QUIET_S", 60.0)
    look(terminal, monkeypatch)
    seen = []
    with PlaceWatcher(None, "ann") as watcher:
        for note in ("", "board is drained", "board is drained", ""):
            watcher({**EVENT, "note": note})
            seen.append(terminal.getvalue().count("\n"))
    assert seen == [0, 1, 2, 3]  # after a note, the person watches: the rest is printed as it comes
    assert "(board is drained)\n" in terminal.getvalue()
    with PlaceWatcher(None, "ann") as watcher:
        watcher({**EVENT, "note": "no server offers 'x' now"})
    assert terminal.getvalue().endswith("(no server offers 'x' now)\n")


def test_a_short_wait_prints_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "QUIET_S", 60.0)
    look(terminal, monkeypatch)
    with PlaceWatcher(None, "ann") as watcher:
        watcher(EVENT)
        watcher(EVENT)
        timer = watcher._quiet
    assert timer is not None
    timer.join(10)
    assert terminal.getvalue() == ""


def test_a_callers_function_gets_the_events_in_place_of_the_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(terminal, monkeypatch)
    seen: list[Any] = []
    with PlaceWatcher(seen.append, "ann") as watcher:
        watcher(EVENT)
    assert (seen, terminal.getvalue()) == ([EVENT], "")
    assert str(seen[0]).startswith("waiting for a device")


def test_a_notebook_is_watched_and_a_script_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not place.watched()
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert place.watched()


def test_a_board_that_this_process_holds_is_named_once_and_at_once(caplog: pytest.LogCaptureFixture) -> None:
    session: Any = Held()
    place.hold(session)
    with caplog.at_level(logging.WARNING), PlaceWatcher(lambda event: None, "bob") as watcher:
        watcher(EVENT)
        watcher(EVENT)
    assert caplog.messages == ["you hold desk yourself, since 0 s: close that session, or the request waits for it"]
    assert place.held_here(EVENT, "ann") == ""
    session.closed = ValueError()
    assert place.held_here(EVENT, "bob") == ""
    del session
    gc.collect()
    assert not place._held


def test_a_board_has_no_such_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device tier is without this file: the caller gets the events as they come."""
    monkeypatch.setattr(tracker_module, "place", None)
    with tracker_module.Tracker(("127.0.0.1", 1), "ann", 1.0)._watcher(print) as watcher:
        assert watcher is print
