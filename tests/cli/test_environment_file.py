"""Files of settings are read and changed as systemd reads them, and replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.cli import environment_file

NAMES = st.sampled_from(["A", "AB", "B"])
VALUES = st.text(st.sampled_from("ab =-/,:."), max_size=9).map(str.strip)
LINES = st.one_of(st.just(""), st.just("# A=comment"), st.builds("{}={}".format, NAMES, VALUES))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("# A=1\n", ""),
        ("AB=1\n", ""),
        ("A=1", "1"),
        ("A=1\nA=2\n", "2"),
        ('A="--port 1"\n', "--port 1"),
        ("A='x'\n", "x"),
        ("A=--port 1 \\\n--more\nB=2\n", "--port 1  --more"),
        ("A=\n", ""),
    ],
)
def test_the_last_value_holds(text: str, value: str) -> None:
    assert environment_file.value(text, "A") == value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "A=1\n"),
        ("# all", "# all\nA=1\n"),
        ("A=0\nB=2\n", "A=1\nB=2\n"),
        ("A=3\nB=2\nA=0", "A=3\nB=2\nA=1"),
        ("A=0 \\\n 5\nB=2\n", "A=1\nB=2\n"),
        ('A="1"\n', 'A="1"\n'),
    ],
)
def test_a_value_takes_the_place_of_the_one_before(before: str, after: str) -> None:
    assert environment_file.with_values(before, {"A": "1"}) == after


@given(st.lists(LINES).map("\n".join), st.dictionaries(NAMES, VALUES))
def test_values_are_found_again_and_a_second_time_changes_nothing(text: str, values: dict[str, str]) -> None:
    after = environment_file.with_values(text, values)
    for name in ("A", "AB", "B"):
        assert environment_file.value(after, name) == values.get(name, environment_file.value(text, name))
    assert environment_file.with_values(after, values) == after


def test_a_file_keeps_its_mode_and_the_one_before_is_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "a.environment"
    environment_file.write(path, "A=1\n")
    assert [*path.parent.iterdir()] == [path]
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1, 2)
    before = path.stat()
    environment_file.write(path, "A=2\n")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert environment_file.read(path) == "A=2\n"
    old = path.with_name("a.environment.old")
    assert (old.read_text(), old.stat().st_mode) == ("A=1\n", before.st_mode)
    assert {*path.parent.iterdir()} == {path, old}


def test_a_file_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert environment_file.read(tmp_path / "none") == ""
