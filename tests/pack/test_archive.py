"""The archive's bytes depend on what is in it alone."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from rpcsys.errors import RpcsysError
from rpcsys.pack import archive

FILES = {"bin/run": b"#!/bin/sh\n", "python/a.py": b"x = 1\n", "python/b.py": b"x = 2\n"}
PROGRAMS = frozenset(["bin/run"])


@pytest.mark.parametrize("form", ["gz", "xz"])
def test_the_same_bytes_whatever_the_order_and_the_name(tmp_path: Path, form: str) -> None:
    first, second = tmp_path / f"a.tar.{form}", tmp_path / f"b.tar.{form}"
    archive.write(first, FILES, PROGRAMS)
    archive.write(second, dict(reversed(FILES.items())), PROGRAMS)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]


@pytest.mark.parametrize("form", ["gz", "xz"])
def test_what_tar_sees(tmp_path: Path, form: str) -> None:
    archive.write(tmp_path / f"a.tar.{form}", FILES, PROGRAMS)
    with tarfile.open(tmp_path / f"a.tar.{form}", f"r:{form}") as tar:
        entries = {entry.name: entry for entry in tar}
        assert tar.extractfile("rpcsys-device/python/a.py").read() == FILES["python/a.py"]
    assert {name: entry.mode for name, entry in entries.items()} == {
        "rpcsys-device/bin/run": 0o755,
        "rpcsys-device/python/a.py": 0o644,
        "rpcsys-device/python/b.py": 0o644,
    }
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {(0, 0, "")}
    (time,) = {entry.mtime for entry in entries.values()}
    assert 946684800 <= time < 1300000000


def test_another_content_has_another_time(tmp_path: Path) -> None:
    """Else Python would take what it compiled of an older version for this one's."""
    times = set()
    for content in (b"x = 1\n", b"x = 2\n"):
        archive.write(tmp_path / "a.tar.gz", {**FILES, "python/a.py": content}, PROGRAMS)
        with tarfile.open(tmp_path / "a.tar.gz") as tar:
            times.add(tar.getmember("rpcsys-device/python/b.py").mtime)
    assert len(times) == 2


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(RpcsysError, match="cannot write"):
        archive.write(tmp_path / "nowhere" / "a.tar.gz", FILES, PROGRAMS)
