"""Progress, on standard error and for who watches: a bar, or one line that says what is being done.

tqdm draws them where it is installed (``pip install 'rpcsys[progress]'``), in notebooks, too. Without it, click draws
bars, and each text is a line. There are only lines where standard error is no terminal, or one that cannot draw over
what it shows (TERM=dumb).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click

from rpcsys import need_host
from rpcsys.errors import printable

need_host(__name__)

#: Called with what is done, and of how much.
Advance = Callable[[float, float], None]
Say = Callable[[str], object]
Context = contextlib.AbstractContextManager
TICK_S = 1.0  # between two looks at the clock of a line
#: Seconds before a bar that no command shows: what is over sooner shows none.
QUIET_S = 1.0
_WIDTH, _ROWS = 80, 24  # of a terminal that does not say how large it is
_CLOCK = 24  # columns that a line keeps for its clock and its counts
_TIMED = "{l_bar}{bar}| {elapsed}<{remaining}"  # a bar without a rate
_SAID = "{desc}  {elapsed}"


def in_terminal() -> bool:
    """Whether standard error is a terminal that can be drawn over."""
    with contextlib.suppress(AttributeError, ValueError):  # there is none, it is no file, or it is closed
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False


def in_notebook() -> bool:
    """Whether a notebook runs this process."""
    return "ipykernel" in sys.modules


@contextlib.contextmanager
def bar(label: str, unit: str = "") -> Iterator[Advance]:
    """Show a command's bar until the context ends, or else print its label; yields what the work is to call.

    ``unit``: what is counted ("B": bytes), for a bar that shows a rate.
    """
    drawing = _drawing()
    if drawing is not None:
        with drawing(total=1, **_looks(label, unit)) as shown:
            yield lambda done, total: _advance(shown, done, total)
    elif in_terminal():
        with _drawn_by_click(label) as advance:
            yield advance
    else:
        click.echo(f"  {printable(label)}", err=True)
        yield lambda done, total: None


def reporting(progress: Advance | bool | None, label: str, unit: str = "") -> Context[Advance | None]:
    """What a function of the library reports to: ``progress``, or a bar for True, and for None in a notebook."""
    if callable(progress):
        return contextlib.nullcontext(progress)
    if not (in_notebook() if progress is None else progress):
        return contextlib.nullcontext(None)
    drawing = _drawing()
    if drawing is not None:
        return _late(drawing, delay=0.0 if progress else QUIET_S, **_looks(label, unit))
    return _drawn_by_click(label) if in_terminal() else contextlib.nullcontext(None)


@contextlib.contextmanager
def _late(drawing: Any, **looks: Any) -> Iterator[Advance]:
    """A bar from the first report on: work that reports none shows none."""
    with contextlib.ExitStack() as stack:
        shown: Any = None

        def advance(done: float, total: float) -> None:
            nonlocal shown
            if shown is None:
                shown = stack.enter_context(drawing(total=total, **looks))
            shown.total = total
            shown.update(done - shown.n)

        yield advance


class Steps:
    """What `steps` yields. ``drawing``: tqdm's class for a line that is drawn over; else ``lines`` are printed."""

    def __init__(self, drawing: Any, lines: bool, stack: contextlib.ExitStack) -> None:
        self._drawing = drawing
        self._lines = lines
        self._stack = stack
        self._shown: Any = None
        self._lock = threading.Lock()

    def say(self, text: object) -> None:
        """Show what is being done. For any thread."""
        said = printable(str(text))
        if self._drawing is None:
            if self._lines:
                click.echo(f"  {said}", err=True)
            return
        with self._lock:
            if self._shown is None:
                self._shown = self._stack.enter_context(self._drawing(total=1, **_looks(said, "", _SAID)))
                self._stack.enter_context(_ticking(self._shown.refresh))
            self._shown.set_description_str(_label(said))

    def count(self, done: float, total: float) -> None:
        """Show how much of it is done, behind the text. For any thread."""
        with self._lock:
            if self._shown is not None:
                self._shown.bar_format = f"{_SAID}  {done:g} of {total:g}"
                self._shown.refresh()


@contextlib.contextmanager
def steps(*, lines: bool = True) -> Iterator[Steps]:
    """Show one line with the latest text and the time since the first; where that is impossible, each text is one.

    Without ``lines`` there is nothing then.
    """
    with contextlib.ExitStack() as stack:
        yield Steps(_drawing(), lines, stack)


@contextlib.contextmanager
def saying(say: Say | None) -> Iterator[Say]:
    """What a function of the library tells its steps: ``say``; without it nobody, or `steps` in a notebook."""
    if say is not None or not in_notebook():
        yield say or (lambda text: None)
        return
    with steps() as shown:
        yield shown.say


def _drawing() -> Any:
    """The class of tqdm for where this process shows something; None if it shows nothing, or there is no tqdm."""
    if not (in_terminal() or in_notebook()) or importlib.util.find_spec("tqdm") is None:
        return None
    if in_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    from tqdm import tqdm

    return tqdm


def _looks(label: str, unit: str, form: str = _TIMED) -> dict[str, Any]:
    counts = {"unit": unit, "unit_scale": unit == "B", "bar_format": None if unit else form, "miniters": 1}
    width: dict[str, Any] = {"dynamic_ncols": True} if _columns() else {"ncols": _WIDTH, "nrows": _ROWS}
    return {"desc": _label(label), **counts, **width, "leave": False, "file": sys.stderr}


def _label(label: str) -> str:
    """What is being done, cut so that some of a bar or a clock fits behind it."""
    return f"  {printable(label)}"[: max((_columns() or _WIDTH) - _CLOCK, 12)]


def _advance(shown: Any, done: float, total: float) -> None:
    if total != shown.total:
        shown.reset(total)  # which a widget notices, too
    shown.update(done - shown.n)


@contextlib.contextmanager
def _drawn_by_click(label: str) -> Iterator[Advance]:
    columns = _columns() or _WIDTH
    text = _label(label)[: max(columns - _CLOCK, 0)]
    width = min(max(columns - len(text) - _CLOCK, 1), 36)  # of the bar: a line that wraps is not drawn over
    with click.progressbar(length=1, label=text, width=width, file=sys.stderr) as drawn:

        def advance(done: float, total: float) -> None:
            drawn.length = max(int(total), 1)
            drawn.update(int(done) - drawn.pos)

        yield advance


def _columns() -> int:
    """The width of the terminal; 0 where it does not say it, as a new pseudo terminal, or is none, as a notebook's."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def _ticking(refresh: Callable[[], object]) -> Iterator[None]:
    """Have a line's clock go on."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_S):
            refresh()

    thread = threading.Thread(target=tick, name="rpcsys-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
