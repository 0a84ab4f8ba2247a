"""An example of a lab's own module: functions for ``--import tests.live.lab_functions``."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import threading

from rpcsys.server import register
from rpcsys.server.session.registry import lookup

_relays: dict[int, bool] = {}


@register("lab.relay")
def relay(number: int, on: bool) -> dict[int, bool]:
    """Switch a relay of the board; the states of all relays switched in this session."""
    _relays[number] = on
    return _relays


@register("lab.scaled")
def scaled(image, factor: float = 1.0):
    """Scale an array."""
    return image * factor


@register("lab.counter")
def counter(start: int = 0):
    """A function with state that stays on the device."""
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
            print(f"line {number} of a session that prints while its client does something else")
        open("done", "w").close()

    threading.Thread(target=run).start()


@register("lab.page_faults")
def page_faults() -> int:
    """Fill and free 2 MB; the page faults of that."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [bytearray(b"1") * (1 << 19) for _ in range(4)]
    arrays.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@register("lab.hang")
def hang(how: str) -> None:
    """Create the file ``begun``, then call a function of :mod:`tests.live.session_faults` that does not end."""
    open("begun", "w").close()
    lookup(f"fault.{how}")()


@register("lab.die")
def die(text: str) -> None:
    """Write ``text`` to standard error, then abort in native code."""
    os.write(2, text.encode())
    ctypes.CDLL(None).abort()
