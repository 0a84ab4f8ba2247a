"""Push and pull against a device's process and against boards that lie."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rpcsys.client import transfers
from rpcsys.errors import NotSupported, PathError, ProtocolError, UsageError
from tests.device import Device

FILE, FOLDER = 0o100644, 0o040755


@pytest.fixture(scope="module")
def session():
    with Device() as device:
        yield device.session()


class Liar:
    """A board that says a tree."""

    address = ("10.0.0.7", 9090)
    closed = None

    def __init__(self, said: bytes) -> None:
        self.info = {"capabilities": {"transfers": True}}
        self._said = said

    def _builtin(self, *_: object) -> bytes:
        return self._said

    def download(self, name: str, target: str, **_: object) -> None:
        with open(target, "w") as stream:
            stream.write(name)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../b", "..", ".", "a//b", "a\0", "a/"])
def test_no_board_names_a_file_outside(tmp_path, name):
    tree = json.dumps([["", FOLDER, 0, 0], [name, FILE, 1, 0]]).encode()
    with pytest.raises(PathError, match="the device names a file outside of the folder"):
        transfers.pull(Liar(tree), "app", str(tmp_path / "here"), None)
    assert os.listdir(tmp_path) == []


@given(st.binary(max_size=99) | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=9).map(
    lambda said: json.dumps([said]).encode()))  # fmt: skip
def test_no_other_answer_is_a_tree(said):
    assume(not re.match(rb'\s*\[\s*(\]|\[\s*"[^"]*"\s*(,\s*\d+\s*){3}\])', said))  # some are trees
    with pytest.raises(ProtocolError, match="makes no sense"):
        transfers._tree_there(Liar(said), "app")


def test_setuid_bits_stay_where_they_are(tmp_path):
    tree = json.dumps([["", 0o104755, 3, 5]]).encode()
    transfers.pull(Liar(tree), "tool", str(tmp_path / "tool"), None)
    assert os.stat(tmp_path / "tool").st_mode & 0o7777 == 0o755


def test_a_file_takes_no_folders_place(session, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "file").write_text("x")
    session.push(tmp_path / "app")
    with pytest.raises(UsageError, match=r"app on the board is a folder already: give another name \(NAME/\)"):
        session.push(tmp_path / "file", "app")
    with pytest.raises(UsageError, match="is a file already"):
        session.pull("app", tmp_path / "file")


def test_batches_of_small_files_and_large_ones(session, tmp_path):
    told = []
    for number in range(transfers.BATCH_FILES + 3):
        (tmp_path / "many" / str(number)).parent.mkdir(exist_ok=True)
        (tmp_path / "many" / str(number)).write_bytes(b"x" * (transfers.SMALL if number < 20 else 1))
    (tmp_path / "many" / "large").write_bytes(b"y" * (transfers.SMALL + 1))
    report = session.push(tmp_path / "many", progress=lambda done, total: told.append((done, total)))
    assert report.files == transfers.BATCH_FILES + 4
    assert told[-1] == (report.bytes, report.bytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(session.listdir("many")) == report.files, "nothing else is left there"


def test_a_file_that_ends_in_part_stays_beside_a_large_one(session, tmp_path):
    for folder, names in (("source", ("large", "large.part")), ("target", ("large.part",))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_bytes(b"own" if name.endswith(".part") else b"y" * (transfers.SMALL + 1))
    assert session.push(tmp_path / "source", "pushed").files == 2
    assert session.listdir("pushed") == ["large", "large.part"]
    session.remove("pushed/large.part")
    session.pull("pushed", tmp_path / "target")
    assert (tmp_path / "target" / "large.part").read_bytes() == b"own"


def test_names_that_are_no_text_are_left_out(session, tmp_path):
    (tmp_path / "odd").mkdir()
    with open(os.fsencode(tmp_path / "odd") + b"/\xff", "wb"):
        pass
    assert session.push(tmp_path / "odd").left_out == ("\udcff",)


def test_errors_for_people(session, tmp_path):
    with pytest.raises(UsageError, match=r"there is no file or folder .* here: check the path"):
        session.push(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    session.push(tmp_path / "file", "x")
    with pytest.raises(UsageError, match=r"cannot write .*file"):
        session.pull("x", tmp_path / "file" / "x")
    old = Liar(b"")
    old.info = {"capabilities": {}}
    with pytest.raises(NotSupported, match="older than push and pull"):
        transfers.push(old, str(tmp_path), "", None)
