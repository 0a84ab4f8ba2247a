"""Files kept by their content: placed, resumed, damaged, too many, and several sessions at once."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys

import pytest

from rpcsys.errors import ConfigError
from rpcsys.server import cache as caches
from rpcsys.server.cache import Cache
from tests.device import ROOT

MB = 1 << 20


def digest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def cache(folder):
    return Cache(str(folder), 10 * MB)


@pytest.fixture
def workdir(tmp_path):
    path = tmp_path / "session"
    path.mkdir()
    return path


def add(cache, data, target, used_at=None):
    """Have a session upload ``data``; its digest."""
    part = cache.resume(digest(data), len(data))
    assert part.rewind(0)
    part.stream.write(data)
    part.digest.update(data)
    part.finish(str(target))
    if used_at is not None:
        os.utime(os.path.join(cache._objects, digest(data)), (used_at, used_at))
    return digest(data)


def test_what_one_session_uploads_another_one_finds(cache, folder, workdir):
    name = add(cache, b"a model", workdir / "model.so")
    assert (workdir / "model.so").read_bytes() == b"a model"
    assert os.listdir(folder / "partial") == []
    assert Cache(str(folder), MB).place(name, str(workdir / "another"))
    assert (workdir / "another").read_bytes() == b"a model"


def test_sessions_share_one_file_that_none_of_them_may_write(cache, workdir):
    name = add(cache, b"shared", workdir / "one")
    cache.place(name, str(workdir / "two"))
    assert (workdir / "one").stat().st_ino == (workdir / "two").stat().st_ino
    assert stat.S_IMODE((workdir / "two").stat().st_mode) == 0o444


def test_a_file_of_that_name_is_replaced(cache, workdir):
    name = add(cache, b"new", workdir / "x")
    (workdir / "f").write_bytes(b"old")
    assert cache.place(name, str(workdir / "f"))
    assert (workdir / "f").read_bytes() == b"new"


def test_where_there_can_be_no_links_there_are_copies(cache, workdir, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    name = add(cache, b"x" * 3 * MB, workdir / "one")
    assert cache.place(name, str(workdir / "two"))
    assert (workdir / "one").read_bytes() == (workdir / "two").read_bytes() == b"x" * 3 * MB


def test_what_is_not_here(cache, workdir):
    assert not cache.place(digest(b"never"), str(workdir / "f"))
    assert cache.offset(digest(b"never")) == 0
    assert os.listdir(workdir) == []


def test_a_damaged_file_is_never_used(cache, folder, workdir):
    name = add(cache, b"good", workdir / "f")
    path = folder / "objects" / name
    path.chmod(0o644)
    path.write_bytes(b"evil")
    assert not cache.place(name, str(workdir / "g"))
    assert not (workdir / "g").exists()
    assert not path.exists()


def test_a_broken_upload_goes_on_where_it_stopped(cache, workdir):
    data = os.urandom(3 * MB)
    name = digest(data)
    for start in (0, MB, 2 * MB):
        assert cache.offset(name) == start
        part = cache.resume(name, len(data))
        assert part.rewind(start)
        part.stream.write(data[start : start + MB])
        part.digest.update(data[start : start + MB])
        if start < 2 * MB:
            part.leave()
    assert part.digest.hexdigest() == part.wanted == name
    part.finish(str(workdir / "f"))
    assert (workdir / "f").read_bytes() == data
    assert cache.offset(name) == 0


def test_going_back_forgets_what_lies_behind(cache):
    part = cache.resume(digest(b"x"), 10)
    part.stream.write(b"0123456789")
    part.leave()
    part = cache.resume(digest(b"x"), 10)
    assert part.rewind(4)
    assert part.digest.hexdigest() == digest(b"0123")
    assert not cache.resume(digest(b"y"), 10).rewind(1)
    part.leave()
    assert cache.offset(digest(b"x")) == 4


def test_one_upload_at_a_time_of_one_content(cache):
    part = cache.resume(digest(b"x"), 1)
    assert cache.resume(digest(b"x"), 1) is None
    part.leave()
    again = cache.resume(digest(b"x"), 1)
    again.discard()
    again.discard()
    assert cache.offset(digest(b"x")) == 0


def test_what_was_discarded_is_not_anothers(cache, workdir):
    part = cache.resume(digest(b"x"), 1)
    part.finish(str(workdir / "f"))
    newer = cache.resume(digest(b"x"), 1)
    part.discard()
    newer.stream.write(b"x")
    assert cache.offset(digest(b"x")) == 1


def test_what_was_not_used_for_longest_goes_first(cache, folder, workdir):
    names = [add(cache, bytes([n]) * 3 * MB, workdir / "f", used_at=n) for n in (1, 2, 3)]
    assert cache.place(names[0], str(workdir / "f"))  # used just now
    newest = add(cache, b"n" * 3 * MB, workdir / "g")
    assert sorted(os.listdir(folder / "objects")) == sorted([names[0], names[2], newest])


def test_a_stale_partial_goes_too_and_one_under_way_stays(cache, folder):
    stale = cache.resume(digest(b"stale"), MB)
    stale.stream.write(b"s" * 4 * MB)
    stale.leave()
    busy = cache.resume(digest(b"busy"), MB)
    busy.stream.write(b"b" * 4 * MB)
    for name in (b"stale", b"busy"):
        os.utime(folder / "partial" / digest(name), (1, 1))
    cache.resume(digest(b"new"), 9 * MB).leave()
    assert sorted(os.listdir(folder / "partial")) == sorted([digest(b"busy"), digest(b"new")])


def test_what_is_resumed_does_not_make_room_for_itself(cache):
    part = cache.resume(digest(b"x"), 9 * MB)
    part.stream.write(b"x" * 8 * MB)
    part.leave()
    part = cache.resume(digest(b"x"), 9 * MB)
    assert part.rewind(8 * MB)
    assert cache.offset(digest(b"x")) == 8 * MB


@pytest.mark.parametrize(
    "name", ["", "x" * 64, "A" * 64, "0" * 63, "../" + "0" * 61, "0" * 64 + "\n", None, 5]
)
def test_what_is_no_digest(name):
    assert not caches.valid(name)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use .*file/cache as a cache: Not a directory"):
        Cache(str(tmp_path / "file" / "cache"), MB)


def test_nothing_heavy_is_loaded():
    """A board's waiting processes hold what this file imports."""
    code = "import sys; before = set(sys.modules); import rpcsys.server.cache; print(*(set(sys.modules) - before))"
    out = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {"hashlib", "shutil", "fcntl", "zlib"} & set(out.stdout.split()) == set()
