"""What push and pull do in a session's directory: anything else than files inside it is refused."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.errors import PathError, RemoteArgumentError, RemoteFileError, RpcsysError
from rpcsys.server.session import transfers
from rpcsys.server.session.directory import Directory
from rpcsys.server.session.transfers import Transfers


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def moved(root) -> Transfers:
    return Transfers(Directory(str(root)))


def names(tree: bytes) -> list[str]:
    return [name for name, *_ in json.loads(tree)]


def test_a_tree_has_what_a_client_may_name(moved, root, tmp_path):
    (tmp_path / "secret").write_text("x")
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("12345")
    (root / "a" / "inside").symlink_to("file")
    (root / "a" / "outside").symlink_to(tmp_path / "secret")
    (root / "a" / "folder").symlink_to(tmp_path)
    (root / "a" / "lost").symlink_to("nowhere")
    (root / ".rpcsys-7").write_text("the server's")
    os.mkfifo(root / "a" / "pipe")
    assert names(moved.tree("a")) == ["", "b", "file", "inside"]
    assert names(moved.tree(".")) == ["", "a", "a/b", "a/file", "a/inside"]
    (about,) = json.loads(moved.tree("a/file"))
    found = os.stat(root / "a" / "file")
    assert about == ["", found.st_mode, 5, found.st_mtime_ns]
    assert moved.tree("nothing") == b"[]"
    with pytest.raises(PathError):
        moved.tree("a/folder")


def test_a_tree_is_bounded(moved, root, monkeypatch):
    monkeypatch.setattr(transfers, "MAX_ENTRIES", 3)
    for number in range(4):
        (root / str(number)).write_text("")
    with pytest.raises(RemoteFileError, match="more than 3 files; take a folder below it"):
        moved.tree(".")


def test_files_are_written_whole_with_mode_and_time(moved, root):
    moved.write([["a/one", 0o4755, 5_000_000_001, 3], ["two", 0o600, 7, 0]], b"abc")
    assert (root / "a" / "one").read_bytes() == b"abc"
    found = os.stat(root / "a" / "one")
    assert (found.st_mode & 0o7777, found.st_mtime_ns) == (0o755, 5_000_000_001)
    moved.place([["three", 0o644, 9, "two"]])
    assert sorted(os.listdir(root)) == ["a", "three"]
    with pytest.raises(RemoteFileError, match=r"a: Is a directory"):
        moved.write([["a", 0o644, 0, 0]], b"")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "a/b", "../x", "/x", "", "\0", ".rpcsys-1", 0, -1, 1, 2**70, None, True, []]))
        | st.none(),
        max_size=3,
    )
)
def test_any_other_entries_are_refused(moved, root, entries):
    for function in (moved.place, moved.make_folders, lambda given: moved.write(given, b"ab")):
        try:
            function(entries)
        except RpcsysError:
            pass
    assert os.listdir(root.parent) == ["root"]


def test_bytes_that_were_not_sent_are_not_written(moved, root):
    for size in (3, -1, "2", 2.0):
        with pytest.raises(RemoteArgumentError, match="are announced, and fewer came"):
            moved.write([["x", 0o644, 0, size]], b"ab")
    assert os.listdir(root) == []


def test_a_full_disk_keeps_no_part_of_a_file(moved, root, monkeypatch):
    def full(stream, piece):
        stream.write(piece[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfers, "write_all", full)
    with pytest.raises(RemoteFileError, match="x: No space left on device"):
        moved.write([["x", 0o644, 0, 2]], b"ab")
    assert os.listdir(root) == []
