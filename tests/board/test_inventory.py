"""The inventory of boards."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.board import inventory
from rpcsys.board.inventory import Entry
from rpcsys.errors import ConfigError, RpcsysError

PI = Entry("pi", "pi@10.0.0.7", ("-p", "22"), "rpi4", "lab:9190", drivers=("/a.so",), version="0.1.0-12")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rpcsys" / "boards.json"


def test_the_inventory_is_empty_at_first_and_then_saved(state: Path) -> None:
    assert inventory.load() == {}
    with inventory.changing() as boards:
        boards["pi"] = PI
    assert inventory.load() == {"pi": PI}
    with inventory.changing() as boards:
        boards["pi"] = replace(PI, version="2")
    assert inventory.load()["pi"].version == "2"
    assert sorted(path.name for path in state.parent.iterdir()) == ["boards.json", "boards.lock"]


def test_an_error_leaves_the_inventory_unchanged() -> None:
    with inventory.changing() as boards:
        boards["pi"] = PI

    def fail() -> None:
        with inventory.changing() as boards:
            boards.clear()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inventory.load() == {"pi": PI}


def _add_many(first: int) -> None:
    for number in range(first, first + 20):
        with inventory.changing() as boards:
            boards[f"b{number}"] = replace(PI, name=f"b{number}")


def test_processes_change_the_inventory_one_after_another() -> None:
    processes = [multiprocessing.get_context("fork").Process(target=_add_many, args=(n * 20,)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(inventory.load()) == 60


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["form", "boards", "name", "options"]), inner),
)
entries = st.builds(
    Entry,
    name=st.text(min_size=1),
    destination=st.text(min_size=1),
    options=st.lists(st.text()).map(tuple),
    root=st.text(),
)


@given(st.lists(entries))
def test_parse_is_the_inverse_of_show(found: list[Entry]) -> None:
    boards = {entry.name: entry for entry in found}
    assert inventory.parse(inventory.show(boards)) == boards


@pytest.mark.slow
@given(
    json_values.map(json.dumps)
    | st.lists(json_values).map(lambda boards: json.dumps({"form": 1, "boards": boards}))
    | st.text()
)
def test_any_file_is_read_or_refused(text: str) -> None:
    try:
        boards = inventory.parse(text)
    except ValueError:
        return
    assert all(isinstance(entry, Entry) for entry in boards.values())


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"form": 2, "boards": []}', b"[" * 100_000])
def test_an_unreadable_file_is_named_and_not_changed(content: bytes, state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_bytes(content)
    with pytest.raises(ConfigError, match=r"boards\.json cannot be read"):
        inventory.load()
    with pytest.raises(ConfigError), inventory.changing():
        pass
    assert state.read_bytes() == content


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(RpcsysError, match="cannot write"), inventory.changing():
        pass


@pytest.mark.parametrize("name", ["", "a b", "../x", ".hidden", "-x", "x" * 65, "(none)"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        inventory.check_name(name)


def test_boards_are_distinguished() -> None:
    assert PI.same_board(replace(PI, name="other", key="x", version=""))
    assert not PI.same_board(replace(PI, options=("-p", "23")))
    assert not PI.same_board(replace(PI, root="/data"))
