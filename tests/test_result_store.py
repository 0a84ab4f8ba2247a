"""The file of results: kept, found, shared, bounded, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys import result_store
from rpcsys.errors import UsageError
from rpcsys.result_store import ResultStore, identity
from tests.test_layers import ROOT

WRITER = """
import sys
from rpcsys.result_store import ResultStore
store = ResultStore(sys.argv[1])
for number in range(200):
    store.keep(f"{sys.argv[2]}-{number}", [float(number)], {})
"""


def test_results_are_found_by_their_identity_also_later(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "results.sqlite"
    store = ResultStore(path)
    store.keep("a", [1e-6, 2.5], {"key": "rpi4"})
    store.keep("b", [3.0], {})
    store.keep("b", [4.0], {})
    store.close()
    store.close()
    assert ResultStore(path).find(["a", "b", "c"]) == {"a": [1e-6, 2.5], "b": [4.0]}


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, str(number)], cwd=ROOT) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    names = [f"{writer}-{number}" for writer in range(3) for number in range(200)]
    assert len(ResultStore(path).find(names)) == 600


def test_the_oldest_are_dropped(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite", max_results=50)
    for number in range(200):
        store.keep(str(number), [1.0], {})
    kept = store.find(map(str, range(200)))
    assert 50 <= len(kept) <= 60
    assert set(map(str, range(150, 200))) <= set(kept)


def test_results_are_bounded_in_bytes_too(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite", max_bytes=200_000)
    names = [str(number) for number in range(3000)]
    for start in range(0, 3000, 100):
        store.keep_all({name: [1.25] * 40 for name in names[start : start + 100]}, {})
    kept = store.find(names)
    assert 300 < len(kept) < 2500
    assert set(names[-300:]) <= set(kept)


def test_results_are_kept_all_or_none(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite", advice="move it away")
    store._database.execute(
        "create trigger t before insert on measured when new.identity = 'b' begin select raise(abort, 'no'); end"
    )
    with pytest.raises(UsageError, match="move it away"):
        store.keep_all({"a": [1.0], "b": [2.0]}, {})
    assert store.find(["a", "b"]) == {}
    store.keep("a", [1.0], {})
    assert store.find(["a"]) == {"a": [1.0]}


def test_a_row_that_something_else_has_written_is_not_known(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite")
    for number, text in enumerate(("no json", "[]", "3", '["x"]', "null", "[NaN]")):
        store._database.execute("insert into measured values (?, 0, ?, '')", (str(number), text))
    assert store.find(map(str, range(6))) == {}


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and it is longer than the head of one would be" * 10)
    for path in (tmp_path / "text", tmp_path / "text" / "below", tmp_path):
        with pytest.raises(UsageError, match=r"^the results in .* cannot be used .*store=None\)$"):
            ResultStore(path)
    store = ResultStore(tmp_path / "closed.sqlite")
    store.close()
    with pytest.raises(UsageError, match="cannot be used"):
        store.find(["a"])


def test_a_users_file_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert result_store.users_file() == tmp_path / "rpcsys" / "measured.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert result_store.users_file() == tmp_path / ".cache" / "rpcsys" / "measured.sqlite"


json_values = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))


@given(st.dictionaries(st.text(), json_values), st.dictionaries(st.text(), json_values))
def test_facts_have_the_same_identity_only_if_they_are_the_same(one: dict, other: dict) -> None:
    assert identity(dict(reversed(one.items()))) == identity(one)
    assert (identity(one) == identity(other)) == (one == other)
