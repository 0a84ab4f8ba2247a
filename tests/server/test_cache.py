"""The cache: placed, resumed and damaged files, its cap, and several sessions at once."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

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
    """Upload ``data`` as a session does; its digest."""
    part = cache.resume(digest(data))
    assert part.rewind(0, bytes)
    part.write(data)
    part.finish()
    target.write_bytes(data)
    if used_at is not None:
        os.utime(os.path.join(cache._objects, digest(data)), (used_at, used_at))
    return digest(data)


def test_an_uploaded_file_is_placed_for_another_session(cache, folder, workdir):
    name = add(cache, b"a model", workdir / "model.so")
    assert (workdir / "model.so").read_bytes() == b"a model"
    assert os.listdir(folder / "partial") == []
    assert Cache(str(folder), MB).place(name, str(workdir / "another"))
    assert (workdir / "another").read_bytes() == b"a model"


def test_a_changed_copy_does_not_affect_other_sessions(cache, workdir):
    name = add(cache, b"shared", workdir / "one")
    cache.place(name, str(workdir / "two"))
    cache.place(name, str(workdir / "three"))
    (workdir / "two").chmod(0o644)
    (workdir / "two").write_bytes(b"evil!!")
    assert (workdir / "three").read_bytes() == b"shared"
    assert cache.place(name, str(workdir / "four"))
    assert (workdir / "four").read_bytes() == b"shared"
    assert stat.S_IMODE((workdir / "four").stat().st_mode) == 0o444


def test_an_existing_target_is_replaced(cache, workdir):
    name = add(cache, b"new", workdir / "x")
    (workdir / "f").write_bytes(b"old")
    assert cache.place(name, str(workdir / "f"))
    assert (workdir / "f").read_bytes() == b"new"


def test_a_missing_file_is_not_placed(cache, workdir):
    assert not cache.place(digest(b"never"), str(workdir / "f"))
    assert cache.offset(digest(b"never"), 5) == 0
    assert os.listdir(workdir) == []


def test_a_damaged_file_is_never_used(cache, folder, workdir):
    name = add(cache, b"good", workdir / "f")
    path = folder / "objects" / name
    path.chmod(0o644)
    path.write_bytes(b"evil")
    assert not cache.place(name, str(workdir / "g"))
    assert not (workdir / "g").exists()
    assert not path.exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_links_and_pipes_in_the_cache_are_not_opened(cache, folder, workdir, make):
    """A pipe would block its reader, and a link could lead to a file of another session."""
    name = digest(b"x")
    make(str(folder / "objects" / name))
    assert not cache.place(name, str(workdir / "f"))
    make(str(folder / "partial" / name))
    assert cache.offset(name, 1 << 40) == 0
    with pytest.raises(OSError, match=r"no plain file|Is a directory|Too many levels"):
        cache.resume(name)
    assert os.listdir(workdir) == []


def test_an_interrupted_upload_is_resumed(cache, workdir):
    data = os.urandom(3 * MB)
    name = digest(data)
    for start in (0, MB, 2 * MB):
        assert cache.offset(name, len(data)) == start
        part = cache.resume(name)
        before = bytearray()
        assert part.rewind(start, before.extend)
        assert before == data[:start]
        part.write(data[start : start + MB])
        if start < 2 * MB:
            part.leave()
    part.finish()
    assert cache.place(name, str(workdir / "f"))
    assert (workdir / "f").read_bytes() == data
    assert cache.offset(name, len(data)) == 0


def test_rewinding_cuts_the_file_at_the_offset(cache):
    part = cache.resume(digest(b"x"))
    part.write(b"0123456789")
    part.leave()
    assert cache.offset(digest(b"x"), 9) == 0  # longer than that file
    part = cache.resume(digest(b"x"))
    before = []
    assert part.rewind(4, lambda piece: before.append(bytes(piece)))
    assert before == [b"0123"]
    assert not cache.resume(digest(b"y")).rewind(1, bytes)
    part.leave()
    assert cache.offset(digest(b"x"), 10) == 4


def test_a_second_upload_of_the_same_content_is_refused(cache):
    part = cache.resume(digest(b"x"))
    assert cache.resume(digest(b"x")) is None
    part.leave()
    again = cache.resume(digest(b"x"))
    again.discard()
    again.discard()
    assert cache.offset(digest(b"x"), 1) == 0


def test_discarding_a_finished_upload_keeps_a_newer_one(cache):
    part = cache.resume(digest(b"x"))
    part.finish()
    newer = cache.resume(digest(b"x"))
    part.discard()
    newer.write(b"x")
    assert cache.offset(digest(b"x"), 1) == 1


def test_space_is_freed_as_bytes_arrive(cache, folder, workdir):
    names = [add(cache, bytes([n]) * 3 * MB, workdir / "f", used_at=n) for n in (1, 2, 3)]
    part = cache.resume(digest(b"announced as 10 MB"))
    assert sorted(os.listdir(folder / "objects")) == sorted(names)
    part.write(b"x")
    assert sorted(os.listdir(folder / "objects")) == sorted(names[1:])
    for _ in range(4):
        part.write(b"x" * MB)
    assert os.listdir(folder / "objects") == [names[2]]
    part.leave()


def test_uploads_under_way_stay_below_the_cap(cache, folder):
    parts = [cache.resume(digest(bytes([n]))) for n in range(4)]

    def fill():
        for part in 4 * parts:
            part.write(b"x" * MB)

    with pytest.raises(OSError, match="full of uploads under way"):
        fill()
    files = [path.stat().st_blocks * 512 for path in (folder / "partial").iterdir()]
    assert sum(files) <= 10 * MB


def test_the_least_recently_used_file_is_removed_first(cache, folder, workdir):
    names = [add(cache, bytes([n]) * 3 * MB, workdir / "f", used_at=n) for n in (1, 2, 3)]
    assert cache.place(names[0], str(workdir / "f"))  # now the most recently used
    newest = add(cache, b"n" * 3 * MB, workdir / "g")
    assert sorted(os.listdir(folder / "objects")) == sorted([names[0], names[2], newest])


def test_a_stale_upload_is_removed_and_an_open_one_stays(cache, folder):
    stale = cache.resume(digest(b"stale"))
    stale.write(b"s" * 4 * MB)
    stale.leave()
    busy = cache.resume(digest(b"busy"))
    busy.write(b"b" * 4 * MB)
    for name in (b"stale", b"busy"):
        os.utime(folder / "partial" / digest(name), (1, 1))
    new = cache.resume(digest(b"new"))
    new.write(b"n" * 4 * MB)
    new.leave()
    assert sorted(os.listdir(folder / "partial")) == sorted([digest(b"busy"), digest(b"new")])


def test_a_resumed_upload_does_not_remove_itself(cache):
    part = cache.resume(digest(b"x"))
    part.write(b"x" * 8 * MB)
    part.leave()
    part = cache.resume(digest(b"x"))
    assert part.rewind(8 * MB, bytes)
    part.write(b"x" * MB)
    assert cache.offset(digest(b"x"), 9 * MB) == 9 * MB


@pytest.mark.parametrize("name", ["", "x" * 64, "A" * 64, "0" * 63, "../" + "0" * 61, "0" * 64 + "\n", None, 5])
def test_an_invalid_digest_is_recognised(name):
    assert not caches.valid(name)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use .*file/cache as a cache: Not a directory"):
        Cache(str(tmp_path / "file" / "cache"), MB)


def test_importing_the_cache_imports_no_large_module():
    """Every waiting process of a board has these imports in memory."""
    code = "import sys; before = set(sys.modules); import rpcsys.server.cache; print(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"hashlib", "shutil", "fcntl", "zlib"} & set(out.stdout.split()) == set()


AS_USER = """
import fcntl, hashlib, sys  # while this Python can be read
from rpcsys.server.cache import Cache
from rpcsys.server.sandbox import session_user
uid, group, folder, what, name, *rest = sys.argv[1:]
session_user.become(session_user.User(int(uid), int(uid), (int(group),)), "/")
cache = Cache(folder, 10 << 20)
if what == "place":
    print(cache.place(name, rest[0]))
else:
    part = cache.resume(name)
    print(cache.offset(name, 100))
    part.rewind(cache.offset(name, 100), bytes)
    part.write(rest[0].encode())
    part.finish() if what == "finish" else part.leave()
"""


@pytest.fixture
def open_folder():
    """A folder in which all users may write; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o777)
        yield Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_of_sessions_share_it(open_folder):
    group, folder = 1879048300, open_folder / "cache"
    data = b"begun by one, finished by another"
    name = digest(data)

    def run(uid, what, *rest, name=name):
        arguments = [str(uid), str(group), str(folder), what, name, *rest]
        done = subprocess.run(
            [sys.executable, "-c", AS_USER, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    old = add(Cache(str(folder), MB), b"of root", open_folder / "old")
    Cache(str(folder), MB).share(group)
    assert run(1879048201, "leave", "begun by one, ") == "0"
    assert run(1879048202, "finish", "finished by another") == "14"
    for uid in (1879048201, 1879048203):
        assert run(uid, "place", str(open_folder / str(uid))) == "True"
        assert run(uid, "place", str(open_folder / "old"), name=old) == "True"
        os.unlink(open_folder / "old")
    assert (open_folder / "1879048203").read_bytes() == data
    (folder / "objects" / name).chmod(0o444)  # its owner may do this, and only slows the next use
    assert run(1879048202, "place", str(open_folder / "again")) == "True"
    assert [each.stat().st_mode & 0o777 for each in sorted(folder.iterdir())] == [0o770, 0o770]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_file_with_a_second_name_is_not_shared(tmp_path):
    cache = Cache(str(tmp_path / "cache"), MB)
    (tmp_path / "secret").write_text("of root")
    (tmp_path / "secret").chmod(0o600)
    os.link(tmp_path / "secret", tmp_path / "cache" / "objects" / ("0" * 64))
    (tmp_path / "cache" / "partial" / ("1" * 64)).symlink_to(tmp_path / "secret")
    cache.share(1879048300)
    found = (tmp_path / "secret").stat()
    assert (found.st_gid, found.st_mode & 0o777) == (os.getegid(), 0o600)
