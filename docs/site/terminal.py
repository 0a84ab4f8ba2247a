"""Records a shell in a terminal, and draws the recording as an SVG whose lines appear as they did."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROWS, COLUMNS = 60, 118
TYPED_S, MOST_S, LAST_S = 0.04, 1.5, 0.6  # a typed character; the longest pause that is shown; before a command
PATIENCE_S = 120.0  # for a command

#: What the shell prints before each command, and how it is found again.
PROMPT = "${RPCSYS_HELD:+($RPCSYS_HELD) }$ "
_PROMPT = re.compile(r"((?:\([^)\n]*\) )?\$ )")
_AWAITED = re.compile(_PROMPT.pattern + r"\Z")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\b\x07]")

_FONT = 14.0
_WIDTH, _HEIGHT, _MARGIN = 0.605 * _FONT, 1.4 * _FONT, 1.2 * _FONT  # of a character, a line, the frame

_STYLE = """
svg{--back:#f6f8fa;--text:#1f2328;--prompt:#0a6640;--frame:#d0d7de}
@media(prefers-color-scheme:dark){svg{--back:#14181f;--text:#e2e6eb;--prompt:#6fd39b;--frame:#3a424d}}
rect{fill:var(--back);stroke:var(--frame)}
text{fill:var(--text);white-space:pre;font:%gpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.p{fill:var(--prompt)}.c{font-weight:600}
text,tspan{animation:wait 0s}
@keyframes wait{from,to{fill-opacity:0}}
@media(prefers-reduced-motion:reduce){text,tspan{animation:none!important}}
"""


@dataclass(frozen=True)
class Line:
    """A line of the screen at the end, and when it appeared, in seconds. ``prompt``: before what was typed, or ""."""

    text: str
    at: float
    prompt: str = ""


def record(commands: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[Line]:
    """Type ``commands`` at a shell whose terminal has `COLUMNS`; the lines that are shown then.

    Raises TimeoutError if one takes longer than `PATIENCE_S`.
    """
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(folder)
        os.execvpe("sh", ["sh", "-i"], {**environment, "PS1": PROMPT, "SHELL": "/bin/sh", "ENV": "", "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    try:
        seen = _until_prompt(terminal)
        for command in commands:
            os.write(terminal, f"{command}\n".encode())
            seen += _until_prompt(terminal)
    finally:
        os.close(terminal)  # the shell is hung up
        os.waitpid(shell, 0)
    return lines(seen)


def _until_prompt(terminal: int) -> list[tuple[float, str]]:
    """What the terminal prints until the next prompt: times and texts."""
    seen: list[tuple[float, str]] = []
    deadline = time.monotonic() + PATIENCE_S
    while not _AWAITED.search("".join(text for _, text in seen)):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no prompt after {PATIENCE_S:g} s, but: {''.join(text for _, text in seen)[-500:]}")
        seen.append((time.monotonic(), os.read(terminal, 65536).decode("utf-8", "replace")))
    return seen


def lines(seen: Iterable[tuple[float, str]]) -> list[Line]:
    """The lines of a recording, without the last prompt. Time is as it was, pauses apart that are too long."""
    found: list[Line] = []
    clock, before = 0.0, None
    for at, text in _whole_lines(seen):
        clock += min(MOST_S, at - (at if before is None else before))
        before = at
        prompt = _PROMPT.match(text)
        if prompt:
            clock += LAST_S
            found.append(Line(text[prompt.end() :], clock, prompt[1]))
            clock += TYPED_S * len(text)
        else:
            found += [Line(part, clock) for part in _wrapped(text)]
    return found


def _wrapped(text: str) -> list[str]:
    """A line as a terminal of `COLUMNS` shows it."""
    return [text[start : start + COLUMNS] for start in range(0, len(text), COLUMNS)] or [""]


def _whole_lines(seen: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Each line that has ended, as a terminal shows it, and when it began."""
    rest, began = "", None
    for at, text in seen:
        began = at if began is None else began
        *whole, rest = (rest + text).split("\n")
        for line in whole:
            yield began, _overwritten(_CONTROL.sub("", line))
            began = at


def _overwritten(line: str) -> str:
    """A line after its carriage returns: each part overwrites the one before."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()


def svg(recorded: Sequence[Line], title: str) -> str:
    """The recording as a picture. Where nothing moves, all lines are there at once."""
    columns = max(len(line.prompt + line.text) for line in recorded)
    width, height = columns * _WIDTH + 2 * _MARGIN, len(recorded) * _HEIGHT + 2 * _MARGIN
    drawn = [_drawn(line, _MARGIN + (place + 0.75) * _HEIGHT) for place, line in enumerate(recorded)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE % _FONT}</style>",
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>',
        *drawn,
        "</svg>\n",
    ])  # fmt: skip


def _drawn(line: Line, y: float) -> str:
    place, delay = f'x="{_MARGIN:g}" y="{y:.1f}"', f'style="animation-duration:{line.at:.2f}s"'
    if not line.prompt:
        return f"<text {place} {delay}>{escape(line.text)}</text>"
    typed = "".join(
        f'<tspan class="c" style="animation-duration:{line.at + TYPED_S * number:.2f}s">{escape(character)}</tspan>'
        for number, character in enumerate(line.text, 1)
    )
    return f'<text {place}><tspan class="p" {delay}>{escape(line.prompt)}</tspan>{typed}</text>'
