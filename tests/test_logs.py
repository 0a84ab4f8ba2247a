"""Log lines, as text and as JSON."""

import json
import logging
import re
import sys
import tracemalloc
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys import logs

plain = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text()
fields = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda n: n not in ("time", "level", "daemon")),
    plain | st.dictionaries(st.text(), plain, max_size=2),
    max_size=5,
)


def line(form, event="granted", level="INFO", **told):
    return logs.Formatter("rpcsys-tracker", form).line(1_700_000_000.1234, level, event, told)


def test_text():
    told = line("text", lease="4f-17", key="rpi4", user="Ann B.", held_s=2.50049, epoch=0, labels={"a": "b"})
    stamp, name, level, rest = re.fullmatch(r"(\S+ \S+) (\S+) (\S+) (.*)", told).groups()
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:20,123", stamp)
    assert (name, level) == ("rpcsys-tracker", "INFO")
    assert rest == 'granted lease=4f-17 key=rpi4 user="Ann B." held_s=2.5 epoch=0 labels={"a":"b"}'


def test_empty_fields_are_left_out_of_text():
    assert line("text", fault="", limit_s=None, cleaned={}, used=False).endswith(" granted used=false")


def test_values_of_single_lines_take_no_memory():
    for _ in range(2):  # the second time, the cache is full
        tracemalloc.start()
        for _ in range(4000):
            line("text", ticket=uuid.uuid4().hex)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert taken < 200_000


def test_json():
    told = json.loads(line("json", level="WARNING", lease="4f-17", limit_s=None))
    assert told == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "daemon": "rpcsys-tracker",
        "event": "granted",
        "lease": "4f-17",
        "limit_s": None,
    }


@pytest.mark.parametrize("form", logs.FORMATS)
@given(told=fields)
def test_no_value_breaks_a_line(form, told):
    made = line(form, **told)
    assert made.splitlines() == [made]
    assert made.isprintable() or form == "json"
    if form == "json":
        parsed = json.loads(made)
        assert {name: parsed[name] for name in told} == told


@pytest.mark.parametrize("form", logs.FORMATS)
def test_through_logging(form):
    formatter = logs.Formatter("rpcsys-server", form)
    log = logging.getLogger(f"test.{form}")
    log.propagate = False
    log.setLevel(logging.INFO)
    made = []
    handler = logging.Handler()
    handler.emit = lambda record: made.append(formatter.format(record))
    log.addHandler(handler)
    log.info("a sentence about %d things", 3)
    logs.note(log, logging.WARNING, "set_aside", server="board", until=None)
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("failed")
    if form == "text":
        assert made[0].endswith(" rpcsys-server INFO a sentence about 3 things")
        assert made[1].endswith(" rpcsys-server WARNING set_aside server=board")
        assert made[2].splitlines()[-1] == "  ValueError: odd"
    else:
        assert json.loads(made[0])["message"] == "a sentence about 3 things"
        assert json.loads(made[1])["event"] == "set_aside"
        assert "ValueError: odd" in json.loads(made[2])["traceback"]
        assert all(len(one.splitlines()) == 1 for one in made)


@pytest.mark.parametrize("form", logs.FORMATS)
@given(text=st.text())
def test_lines_are_printable(form, text):
    formatter = logs.Formatter("rpcsys-server", form)
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("test", logging.ERROR, "", 0, "it said %s", (text,), sys.exc_info())
    first, *trace = formatter.format(record).split("\n")
    assert first.isprintable()
    assert all(line.isprintable() and line.startswith("  ") for line in trace)
    if form == "json":
        assert json.loads(first)["message"] == f"it said {text}"


def test_a_value_cannot_forge_a_line():
    formatter = logs.Formatter("rpcsys-server")
    record = logging.LogRecord("test", logging.ERROR, "", 0, "x\n2026-01-01 rpcsys-server INFO \x1b[2J", (), None)
    assert formatter.format(record).endswith(r" ERROR x\n2026-01-01 rpcsys-server INFO \x1b[2J")


def strangers(limit, *said):
    """The messages that the limit leaves of lines about strangers, each logged at a time."""
    records = []
    for at, stranger in said:
        record = logging.LogRecord("x", logging.INFO, "", 0, "from %s", (stranger,), None)
        record.created, record.stranger = at, stranger
        if limit.filter(record):
            records.append(record.getMessage())
    return records


def test_a_stranger_does_not_fill_the_log():
    limit = logs.StrangerLimit()
    flood = strangers(limit, *((n / 100, "10.0.0.9") for n in range(1000)))
    assert len(flood) == logs.STRANGER_LINES
    assert flood[-1] == "from 10.0.0.9 (more lines about 10.0.0.9 are left out for 60 s)"
    assert strangers(limit, (11.0, "10.0.0.8")) == ["from 10.0.0.8 (990 lines about strangers were left out before)"]
    assert strangers(limit, (61.0, "10.0.0.9")) == ["from 10.0.0.9"]


def test_many_strangers_do_not_fill_the_log():
    limit = logs.StrangerLimit()
    flood = strangers(limit, *((0.0, f"10.0.{n // 250}.{n % 250}") for n in range(5000)))
    assert len(flood) == logs.STRANGERS_LINES
    assert flood[-1].endswith("(more lines about strangers are left out for 60 s)")
    assert len(strangers(limit, (-5.0, "10.0.0.1"))) == 1  # the clock was set back


def test_lines_without_a_stranger_are_all_written():
    limit = logs.StrangerLimit()
    assert len(strangers(limit, *((0.0, "") for _ in range(1000)))) == 1000
