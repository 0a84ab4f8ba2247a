"""A recorded terminal, and its picture; the pictures of README.md."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from docs.site import terminal
from tests.device_files import ROOT

PICTURES = ROOT / "docs" / "pictures"


def test_a_recording_has_what_the_terminal_shows() -> None:
    seen = [
        (10.0, "$ "),
        (10.1, "load\r\n\x1b[?25l  1 %"),
        (10.2, "\r\x1b[K 100 %\x1b[?25h\r"),
        (90.0, "\nend\r\n(a@b) $ "),
        (90.5, "exit\r\n"),
    ]
    lines = terminal.lines(seen)
    assert [line.prompt + line.text for line in lines] == ["$ load", " 100 %", "end", "(a@b) $ exit"]
    assert [line.prompt for line in lines] == ["$ ", "", "", "(a@b) $ "]
    times = [line.at for line in lines]
    assert times == sorted(times)
    assert times[-1] < 6 * terminal.MOST_S  # nobody watches a pause of 80 s


def test_a_shell_is_recorded_and_drawn(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    recorded = terminal.record(["ls", "echo '<&>'"], tmp_path, os.environ)
    assert [line.text for line in recorded] == ["ls", "here", "echo '<&>'", "<&>"]
    drawn = ET.fromstring(terminal.svg(recorded, "a title"))
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["$ ls", "here", "$ echo '<&>'", "<&>"]


def test_the_pictures_of_the_readme_are_small_and_ask_nobody() -> None:
    drawn = (PICTURES / "terminal.svg").read_text(encoding="utf-8")
    assert len(drawn.encode()) < 100_000
    assert re.findall(r"https?://[^\"' )]+", drawn) == ["http://www.w3.org/2000/svg"]
    assert {"prefers-color-scheme:dark", "prefers-reduced-motion"} <= set(
        re.findall(r"prefers-[\w-]+(?::dark)?", drawn)
    )
    assert (PICTURES / "page.png").stat().st_size < 150_000
    for picture in PICTURES.iterdir():
        assert f"docs/pictures/{picture.name}" in (ROOT / "README.md").read_text(encoding="utf-8")
