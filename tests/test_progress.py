"""Bars and lines of progress: on a terminal, in a notebook, elsewhere, and without tqdm."""

from __future__ import annotations

import io
import sys
import time
import types
from pathlib import Path

import pytest

from rpcsys import progress
from rpcsys.client import place
from rpcsys.client.files import reporting
from tests.device import Device, until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Screens:
    """Replaces standard error, in the test's own body: before that, pytest replaces it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        patch.delitem(sys.modules, "ipykernel", raising=False)
        patch.setenv("TERM", "xterm-256color")

    def terminal(self) -> Terminal:
        made = Terminal()
        self._patch.setattr(sys, "stderr", made)
        return made

    def file(self) -> io.StringIO:
        made = io.StringIO()
        self._patch.setattr(sys, "stderr", made)
        return made

    def notebook(self) -> io.StringIO:
        self._patch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
        self._patch.setitem(sys.modules, "ipywidgets", None)
        return self.file()

    def without_tqdm(self) -> None:
        self._patch.setitem(sys.modules, "tqdm", None)


@pytest.fixture
def screens(monkeypatch: pytest.MonkeyPatch) -> Screens:
    return Screens(monkeypatch)


def bar(label: str = "push") -> None:
    with progress.bar(label, "B") as advance:
        for done in range(0, 11, 5):
            advance(done * 1e6, 1e7)
            time.sleep(0.11)


def test_a_bar_is_drawn_over_and_gone_at_the_end(screens: Screens) -> None:
    screen = screens.terminal()
    bar()
    shown = screen.getvalue()
    assert "  push:  50%" in shown
    assert "10.0M" in shown
    assert "\x1b[3" not in shown, "it has colours"
    assert "\n" not in shown
    assert shown.endswith("\r")


def test_a_long_name_leaves_room_for_the_percentage(screens: Screens) -> None:
    screen = screens.terminal()
    bar("x" * 200)
    assert "xx:  50%" in screen.getvalue()


def test_a_bar_ends_with_its_work_that_fails(screens: Screens) -> None:
    screen = screens.terminal()

    def interrupted() -> None:
        with progress.bar("push", "B") as advance:
            advance(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().endswith("\r")


def test_where_nothing_can_be_drawn_over_a_command_prints_its_label(
    screens: Screens, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = screens.file()
    bar("a\x1b[31mb")
    assert file.getvalue() == "  a\\x1b[31mb\n"
    monkeypatch.setenv("TERM", "dumb")
    screen = screens.terminal()
    bar()
    assert screen.getvalue() == "  push\n"


def test_a_standard_error_that_is_no_file_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, types.SimpleNamespace(write=print, flush=print), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        assert not progress.in_terminal()
        assert not place.watched()


def test_without_tqdm_click_draws_bars_and_steps_are_lines(screens: Screens, monkeypatch: pytest.MonkeyPatch) -> None:
    screens.without_tqdm()
    screen = screens.terminal()
    bar()
    assert "100%" in screen.getvalue()
    screen = screens.terminal()
    with progress.reporting(True, "push") as report:
        assert report is not None
        report(1, 2)
    assert "50%" in screen.getvalue()
    monkeypatch.setattr(progress, "_columns", lambda: 30)
    screen = screens.terminal()
    bar("x" * 100)
    assert max(map(len, screen.getvalue().replace("\x1b[?25l", "").split("\r"))) <= 30, "it wraps"
    with progress.steps() as step:
        step.say("first")
        step.count(1, 2)
    assert screen.getvalue().endswith("  first\n")
    with progress.steps(lines=False) as step:
        step.say("second")
    assert "second" not in screen.getvalue()


def test_steps_are_one_line_whose_clock_goes_on(screens: Screens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TICK_S", 0.05)
    screen = screens.terminal()
    with progress.steps() as step:
        step.say("place 2\x07")
        step.say("place 1 " + "x" * 500)
        until(lambda: "00:01" in screen.getvalue(), "its clock")
        step.count(3, 6)
        assert "3 of 6" in screen.getvalue()
    shown = screen.getvalue()
    assert "place 2\\x07" in shown
    assert max(map(len, shown.split("\r"))) <= 90
    assert "\n" not in shown
    with progress.steps():
        pass
    assert screen.getvalue() == shown


def test_the_library_shows_bars_where_it_is_asked_or_a_notebook_runs_it(screens: Screens) -> None:
    with Device() as device, device.session() as session:

        def moved(progress: bool | None) -> None:
            session.upload(bytes(3 << 20), "file", progress=progress)

        screen = screens.terminal()
        moved(None)
        moved(False)
        assert screen.getvalue() == ""
        moved(True)
        assert "upload file" in screen.getvalue()
        file = screens.file()
        moved(True)
        assert file.getvalue() == ""
        page = screens.notebook()
        moved(False)
        moved(None)  # it takes no second
        assert page.getvalue() == ""


def test_a_notebook_shows_a_bar_for_what_takes_long(screens: Screens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.2)
    page = screens.notebook()
    with reporting(None, "pull") as report:
        assert report is not None
        for done in range(6):
            report(done, 5)
            time.sleep(0.11)
    assert "pull:" in page.getvalue()
    with progress.saying(None) as say:
        say("profiling")
    assert "profiling" in page.getvalue()


def test_what_a_caller_gives_is_called(screens: Screens, tmp_path: Path) -> None:
    given = lambda done, total: None  # noqa: E731
    with progress.reporting(given, "x") as report:
        assert report is given
    said: list[str] = []
    with progress.saying(said.append) as say, progress.saying(None) as nobody:
        say("one")
        nobody("two")
    assert said == ["one"]
