"""Regions of shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.gateway import shared_memory
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.wire.inference import InferenceError
from rpcsys.wire.inference_requests import Region
from rpcsys.wire.memory import Pool


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file as below /dev/shm."""
    monkeypatch.setattr(shared_memory, "_FOLDER", f"{tmp_path}/")
    path = tmp_path / "input"
    path.write_bytes(bytes(range(100)))
    yield path
    path.unlink(missing_ok=True)


def refused(function: object, *arguments: object, status: int = 400, match: str = ".") -> None:
    with pytest.raises(InferenceError, match=match) as caught:
        function(*arguments)  # type: ignore[operator]
    assert caught.value.status == status


def test_a_region_is_read_and_written(file: Path) -> None:
    shared = SharedMemory(True)
    shared.register("r", "/input", 10, 50)
    assert shared.status() == [{"name": "r", "key": "/input", "offset": 10, "byte_size": 50}]
    assert bytes(shared.read(Region("r", 5, 3), Pool(), "x")) == bytes([15, 16, 17])
    shared.write(Region("r", 40, 10), b"written", "y")
    assert file.read_bytes()[50:57] == b"written"
    refused(shared.write, Region("r", 40, 3), b"written", "output 'y'", match="7 bytes.* 3")
    refused(shared.read, Region("r", 45, 6), Pool(), "x", match="51 of region 'r', which has 50")
    refused(shared.read, Region("other", 0, 1), Pool(), "x", match="not registered")
    refused(shared.register, "r", "/input", 0, 1, match="already")
    refused(shared.status, "other", status=404)


def test_a_file_that_becomes_shorter_is_an_error(file: Path) -> None:
    shared = SharedMemory(True)
    shared.register("r", "input", 0, 100)
    os.truncate(file, 20)
    refused(shared.read, Region("r", 10, 50), Pool(), "x", match="shorter")
    refused(shared.write, Region("r", 10, 50), bytes(50), "y", match="shorter")
    assert file.stat().st_size == 20


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/..", ".", "a/b", "//input", "link", "folder", "nothing", "fifo", None]
)
def test_only_plain_files_of_the_folder_are_taken(file: Path, key: str | None) -> None:
    (file.parent / "link").symlink_to(file)
    (file.parent / "folder").mkdir()
    os.mkfifo(file.parent / "fifo")
    refused(SharedMemory(True).register, "r", key, 0, 1)


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (100, 1), (-1, 1), (0, 0), (0, None), ("0", 1), (1 << 60, 1)])
def test_only_what_is_there_is_taken(file: Path, offset: object, size: object) -> None:
    refused(SharedMemory(True).register, "r", "input", offset, size)


def test_descriptors_come_back(file: Path) -> None:
    shared = SharedMemory(True)
    before = len(os.listdir("/proc/self/fd"))
    for name in "abc":
        shared.register(name, "input", 0, 1)
    shared.unregister("a")
    shared.unregister("a")
    assert [each["name"] for each in shared.status()] == ["b", "c"]
    shared.unregister()
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_is_off_unless_allowed(file: Path) -> None:
    shared = SharedMemory(False)
    refused(shared.register, "r", "input", 0, 1, status=501, match="--shared-memory")
    shared.unregister("r")
    assert shared.status() == []
