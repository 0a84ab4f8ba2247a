"""The results of a bench in memory, in a file, and merged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError, UsageError
from rpcsys.measure.tables import BenchBoard, BenchTable, Cell, Measured, duration, from_json, load_table, merged_tables
from tests.shown_html import shown

seconds = st.floats(0, 1e6)
blocks = st.lists(st.lists(seconds, min_size=1, max_size=4).map(tuple), max_size=8).map(tuple)
name = st.text(max_size=8)
cells = st.builds(Cell, name, name, name, name, st.integers(0, 64))
rows = st.builds(
    Measured,
    cells,
    blocks,
    runtime=st.text(max_size=8),
    memory=st.none() | st.integers(0, 1 << 40),
    joules=st.none() | seconds,
    warnings=st.lists(st.text(max_size=9), max_size=2).map(tuple),
    doubtful=st.integers(0, 9),
    error=st.text(max_size=9),
    broken=st.booleans(),
)
facts = st.builds(
    BenchBoard,
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=2),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    blocks,
)
tables = st.builds(
    BenchTable,
    st.lists(rows, max_size=4, unique_by=lambda row: row.cell).map(tuple),
    st.dictionaries(st.text(max_size=6), facts, max_size=2),
    st.floats(0, 1e10),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
CELL = Cell("m.onnx", "rpi4-1", "rpi4", "opencl:0", 2)


@given(tables)
def test_what_is_written_is_read(table: BenchTable) -> None:
    assert from_json(json.loads(json.dumps(table.to_json()))) == table


@given(tables, st.data())
def test_a_changed_file_is_a_table_or_an_error_in_one_sentence(table: BenchTable, data: st.DataObject) -> None:
    value = json.loads(json.dumps(table.to_json()))
    where = value
    for _ in range(data.draw(st.integers(0, 4))):
        if not isinstance(where, (dict, list)) or not where:
            break
        place = data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else range(len(where))))
        if data.draw(st.booleans()):
            where[place] = data.draw(json_values)
            break
        where = where[place]
    try:
        said = str(from_json(value).made)
    except ProtocolError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no JSON"),
        (b"{", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[]", "the table must be an object"),
        (b'{"form": 2, "made": 0, "boards": {}, "rows": []}', "form must be a whole number from 1 to 1"),
        (b'{"form": 1, "made": 0, "boards": {}, "rows": [5]}', "rows must be an object"),
        (b'{"form": 1, "made": 0, "boards": {}}', "lacks 'rows'"),
    ],
)
def test_another_file_is_an_error_with_what_to_do(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(UsageError) as raised:
        load_table(tmp_path / "t.json")
    assert why in str(raised.value)
    assert str(raised.value).endswith("make one with --save")


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.json: No such file"):
        load_table(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        BenchTable(()).save(tmp_path / "no" / "t.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        BenchTable(()).save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_two_rows_of_one_cell_are_refused() -> None:
    table = BenchTable((Measured(CELL), Measured(CELL)))
    with pytest.raises(ProtocolError, match="two rows of one cell"):
        from_json(table.to_json())


def test_a_row_has_the_median_of_its_sessions_and_its_interval() -> None:
    row = Measured(CELL, ((1.0, 9.0, 2.0), (3.0,), (4.0, 4.0)))
    assert (row.medians, row.median, row.interval) == ([2.0, 3.0, 4.0], 3.0, None)
    six = Measured(CELL, tuple((float(value),) for value in (5, 1, 2, 6, 3, 4)))
    assert (six.median, six.interval) == (3.5, (1.0, 6.0))
    assert math.isnan(Measured(CELL, error="lost").median)


def test_a_cell_as_text() -> None:
    assert str(CELL) == "m.onnx on rpi4-1 (opencl:0), 2 threads"
    assert str(CELL._replace(device="", threads=1)) == "m.onnx on rpi4-1, 1 thread"
    assert str(CELL._replace(device="", threads=0)) == "m.onnx on rpi4-1"


def test_tables_of_several_days_are_merged() -> None:
    other = CELL._replace(threads=4)
    monday = BenchTable(
        (Measured(CELL, ((1.0,),)), Measured(other, error="lost")), {"rpi4-1": BenchBoard("rpi4", pace=((1e-6,),))}
    )
    tuesday = BenchTable(
        (Measured(CELL, ((2.0,), (3.0,))), Measured(other, ((7.0,),))), {"rpi4-1": BenchBoard("rpi4", pace=((2e-6,),))}
    )
    both = merged_tables([monday, tuesday])
    assert both.rows[0].blocks == ((1.0,), (2.0,), (3.0,))
    assert both.rows[1].blocks == ((7.0,),)
    assert both.boards["rpi4-1"].pace == ((1e-6,), (2e-6,))
    assert merged_tables([tuesday, monday]).rows[1].blocks == ((7.0,),)
    with pytest.raises(UsageError):
        merged_tables([])


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5, "1.5 s"), (0.0123456, "12.35 ms"), (0.0015, "1.5 ms"), (2e-6, "2 us")]
)
def test_durations_have_four_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_notebook_shows_the_table_and_what_was_not_measured() -> None:
    cell = Cell("m.onnx", "pi-1")
    measured = Measured(cell, ((0.002,),) * 6, "rpcsys.onnx", 5_000_000, warnings=("busy",), doubtful=1)
    told = shown(BenchTable((measured, Measured(cell._replace(threads=4), error="the <board> is gone")), {}, 0.0))
    assert told.cells[:3] == ["bench", "MODEL", "BOARD"]
    assert "2 ms to 2 ms" in told.cells
    assert told.cells[-2:] == ["m.onnx on pi-1, 4 threads: not measured: the <board> is gone", "warning: pi-1: busy"]
