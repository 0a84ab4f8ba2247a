"""Log lines of daemons, text or JSON: one for each event, for grep and for programs.

The event comes first, then ``field=value``. A value with white space, quotes or unprintable characters is quoted as in
JSON, so that a name from a peer cannot break a line. Standard library only.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import time
from typing import Any, Callable, Container, Dict, Mapping, Tuple

from rpcsys.errors import printable

FORMATS = ("text", "json")

_encode = json.JSONEncoder(default=str).encode
_PLAIN = re.compile(r"[^\s\"'=\\]+")


def note(log: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Log an event with its fields."""
    if log.isEnabledFor(level):
        log.log(level, "%s", event, extra={"fields": fields})


def pairs(fields: Mapping[str, Any], quiet: Container[str] = ()) -> str:
    """``field=value …`` without the fields in ``quiet`` and those that are None or empty."""
    form_of = _FORMS.get
    return " ".join(
        [
            f"{name}={form}"
            for name, value in fields.items()
            if name not in quiet and (form := form_of(type(value), _other)(value))
        ]
    )


@functools.lru_cache(maxsize=512)  # every line has the same few keys, users and addresses
def _text(value: str) -> str:
    if not value or (_PLAIN.fullmatch(value) and value.isprintable()):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())


def number(value: float) -> str:
    """A number, to the thousandth."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if value else "0"


def _other(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if value or value is False else ""


# A busy tracker writes tens of thousands of lines a second, so one look-up finds a value's form.
#: Formats a value of a type; "" for one that is left out.
_FORMS: Dict[type, Callable[[Any], str]] = {str: _text, int: str, float: number}
#: Formats an event's fields for people.
Words = Callable[[str, Mapping[str, Any]], str]


def in_words(event: str, fields: Mapping[str, Any]) -> str:
    """All fields of any event."""
    return pairs(fields)


class Formatter(logging.Formatter):
    """Lines of a daemon, in one of `FORMATS`."""

    def __init__(self, daemon: str, form: str = "text") -> None:
        super().__init__()
        self._daemon = daemon
        self._json = form == "json"
        self._stamps: Tuple[int, str] = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        event = getattr(record, "event", "")
        message = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._json:
            told = {"message": message} if fields is None else {"event": event or message, **fields}
            if event:
                told["message"] = message
            if trace:
                told["traceback"] = trace
            return self._object(record.created, record.levelname, told)
        if fields and not event:
            message = f"{message} {pairs(fields)}"
        line = self._text(record.created, record.levelname, message)
        return "\n  ".join([line, *map(printable, trace.splitlines())]) if trace else line

    def line(self, at: float, level: str, event: str, fields: Mapping[str, Any], words: Words = in_words) -> str:
        """The line of an event, as `note` would make it. ``at`` in seconds since 1970, ``level`` in capitals.

        ``words`` formats the fields of a text line; a JSON line has them all.
        """
        if self._json:
            return self._object(at, level, {"event": event, **fields})
        return self._text(at, level, f"{event} {words(event, fields)}")

    def _text(self, at: float, level: str, message: str) -> str:
        return f"{self._stamp(at)},{int(at * 1000) % 1000:03d} {self._daemon} {level} {printable(message)}"

    def _object(self, at: float, level: str, told: Mapping[str, Any]) -> str:
        time_ = f"{self._stamp(at)}.{int(at * 1000) % 1000:03d}Z"
        head = {"time": time_, "level": level.lower(), "daemon": self._daemon}
        return _encode({**head, **told}).replace("\x7f", "\\u007f")  # DEL, which JSON does not escape

    def _stamp(self, at: float) -> str:
        second = int(at)
        if self._stamps[0] != second:
            form, zone = ("%Y-%m-%dT%H:%M:%S", time.gmtime) if self._json else ("%Y-%m-%d %H:%M:%S", time.localtime)
            self._stamps = (second, time.strftime(form, zone(second)))
        return self._stamps[1]


#: The most lines about one unknown peer, and about all, in `STRANGERS_S`: enough to identify it, without a flood.
STRANGER_LINES = 10
STRANGERS_LINES = 50
STRANGERS_S = 60.0


class StrangerLimit(logging.Filter):
    """Limits lines about strangers (unknown peers). The last line before a gap announces it; the next one counts it.

    The record of such a line has ``stranger``, the peer's address. Any peer can cause such lines, at any rate.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = float("-inf")
        self._lines: Dict[str, int] = {}
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        stranger = getattr(record, "stranger", "")
        if not stranger:
            return True
        if not self._began <= record.created < self._began + STRANGERS_S:
            self._began = record.created
            self._lines.clear()
        count, total = self._lines.get(stranger, 0) + 1, sum(self._lines.values()) + 1
        if count > STRANGER_LINES or total > STRANGERS_LINES:
            self._left_out += 1
            return False
        self._lines[stranger] = count
        if self._left_out:
            _add(record, f"{self._left_out} lines about strangers were left out before")
            self._left_out = 0
        if total == STRANGERS_LINES or count == STRANGER_LINES:
            whom = "strangers" if total == STRANGERS_LINES else stranger
            _add(record, f"more lines about {whom} are left out for {STRANGERS_S:g} s")
        return True


def _add(record: logging.LogRecord, text: str) -> None:
    fields = getattr(record, "fields", None)
    if fields is None:
        record.msg, record.args = f"{record.getMessage()} ({text})", ()
    else:
        fields["note"] = text


def setup(daemon: str, *, silent: bool = False, form: str = "text") -> None:
    """Log to standard error; ``silent`` leaves warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(daemon, form))
    handler.addFilter(StrangerLimit())
    logging.basicConfig(level=logging.WARNING if silent else logging.INFO, handlers=[handler], force=True)
