"""How a client's objects show themselves in a notebook. All of it is known here: nothing is asked of a device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, List, TypeVar

from rpcsys import notebook
from rpcsys.client.timing import time_text
from rpcsys.errors import UsageError, one_line, span
from rpcsys.link.address import address_text

Row = TypeVar("Row")
_MOMENTS = ("since", "begun", "ended")  # fields of rows in seconds since 1970


class ShownRows(List[Row]):
    """A list of dicts that a notebook shows as a table. ``title``: what they are."""

    def __init__(self, title: str, rows: Iterable[Row]) -> None:
        super().__init__(rows)
        self._title = title

    def _repr_html_(self) -> str:
        rows: list[Any] = [*self]
        if not rows:
            return notebook.block(f"{self._title}: none")
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = [(name[:-2] if name.endswith("_s") else name).replace("_", " ") for name in names]
        cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
        return notebook.block(self._title, notebook.table(head, cells))


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError, OSError, ValueError):  # no check has seen it: no duration, or no date
            if name.endswith("_s"):
                return span(value)
            if name in _MOMENTS:
                return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def session_html(session: Any) -> str:
    """A session, open or closed: its lease, its board and the board's devices."""
    info, lease, ended = session.info, session.lease, session.closed
    machine = info.get("machine", {})
    limit = info.get("limit_s")
    found = [
        ("state", "open" if ended is None else f"closed: {one_line(ended)}"),
        ("board", lease.get("server")),
        ("address", address_text(*session.address)),
        ("lease", lease.get("lease")),
        ("time limit", None if limit is None else span(limit)),
        ("machine", ", ".join(str(machine[name]) for name in ("arch", "system", "host") if machine.get(name))),
        ("CPUs", machine.get("cores")),
        ("memory", _bytes(machine.get("memory"))),
        ("loads", " ".join(info.get("capabilities", {}).get("loads", []))),
    ]
    devices = [[_text(each, "name"), _text(each, "title"), _bytes(each.get("memory"))] for each in session.devices]
    parts = [notebook.table(["device", "title", "memory"], devices)] if devices else []
    return notebook.block(f"session of {info.get('key') or 'a device'}", notebook.facts(found), *parts)


def module_html(module: Any) -> str:
    """A model on a device: its functions, inputs and outputs."""
    rows = [
        [way, _text(each, "name"), _text(each, "dtype"), _shape(each.get("shape"))]
        for way, tensors in (("input", module.inputs), ("output", module.outputs))
        for each in tensors
    ]
    parts = [notebook.table(["", "name", "type", "shape"], rows)] if rows else []
    return notebook.block(f"module {module.kind}", notebook.facts([("functions", ", ".join(module.functions))]), *parts)


def timing_html(timed: Any) -> str:
    """A measurement: its figures, and what makes them doubtful."""
    figures = [(name, time_text(getattr(timed, name))) for name in ("median", "mean", "min", "max", "std")]
    between = "" if timed.interval is None else " to ".join(map(time_text, timed.interval))
    more = [("joules of a call", timed.joules and f"{timed.joules:.3g}"), ("repeats", len(timed.results))]
    pairs = [figures[0], ("its 95 % interval", between), *figures[1:], *more]
    return notebook.block(
        "time of a call", notebook.facts(pairs), notebook.lines(f"warning: {each}" for each in timed.warnings)
    )


def hold_html(hold: Any) -> str:
    """A hold, as its file has it: on this machine."""
    try:
        about = hold.about
    except UsageError as error:
        return notebook.block("hold", notebook.facts([("state", one_line(error)), ("file", hold.path)]))
    left = None if about.until is None else span(about.until - time.time())
    pairs = [
        ("state", f"over: {about.over}" if about.over else "held"),
        ("board", about.server),
        ("tracker", about.tracker),
        ("held for", span(time.time() - about.since)),
        ("left", None if about.over else left),
        ("file", hold.path),
    ]
    return notebook.block(f"hold of {about.lease['key']}", notebook.facts(pairs))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


def _shape(shape: Any) -> str:
    if not isinstance(shape, (list, tuple)):
        return ""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _bytes(count: Any) -> str:
    return f"{count / 1e9:.1f} GB" if isinstance(count, int) and 0 < count < 1 << 63 else ""
