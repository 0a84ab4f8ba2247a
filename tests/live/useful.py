"""What a lab's own module looks like: functions for ``--import tests.live.useful``."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading

from rpcsys.server import register
from rpcsys.server.session.registry import lookup

_relays: dict[int, bool] = {}


@register("lab.relay")
def relay(number: int, on: bool) -> dict[int, bool]:
    """Switch a relay of the board; all that were switched in this session."""
    _relays[number] = on
    return _relays


@register("lab.scaled")
def scaled(image, factor: float = 1.0):
    """An array in, an array out."""
    return image * factor


@register("lab.counter")
def counter(start: int = 0):
    """A function that stays on the device, with a state."""
    return itertools.count(start).__next__


@register("lab.say")
def say(text: str) -> None:
    """Print, from Python and from C."""
    print(text)
    ctypes.CDLL(None).printf(b"%s, says C\n", text.encode())


@register("lab.chatter")
def chatter(lines: int) -> None:
    """Print in the background, until ``done`` is in the session's directory."""

    def run() -> None:
        for number in range(lines):
            print(f"line {number} of a session that talks while its client does something else")
        open("done", "w").close()

    threading.Thread(target=run).start()


@register("lab.hang")
def hang(how: str) -> None:
    """Do for ever what :mod:`tests.live.hostile` knows how to do, having begun visibly."""
    open("begun", "w").close()
    lookup(f"hostile.{how}")()


@register("lab.die")
def die(text: str) -> None:
    """Crash in native code, having said why."""
    os.write(2, text.encode())
    ctypes.CDLL(None).abort()
