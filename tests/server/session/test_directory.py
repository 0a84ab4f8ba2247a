"""File names from clients stay inside the session's directory; operations by such names."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import PathError, RemoteFileError
from rpcsys.server.cache import PIECE
from rpcsys.server.session.directory import MAX_NAME, Directory, confine
from rpcsys.server.session.files import Upload, hashed


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "work-2").mkdir()
    return folder


@pytest.mark.parametrize("name", ["a", "sub/a", "sub/../a", "./a", "not/there/yet", "..a", "sub//a", "ä b"])
def test_a_path_inside_is_allowed(root, name):
    assert confine(str(root), name) == os.path.normpath(os.path.join(os.path.realpath(root), name))


def test_the_directory_itself_is_allowed(root):
    assert confine(str(root), ".") == os.path.realpath(root)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "\0",
        "a\0b",
        "/etc/passwd",
        "..",
        "../secret",
        "sub/../../secret",
        "../work-2/a",
        "../work-2",
        "\udc80\ud800",
    ],
)
def test_a_path_that_leads_outside_is_refused(root, name):
    with pytest.raises(PathError):
        confine(str(root), name)


def test_a_path_that_is_too_long_is_refused(root):
    with pytest.raises(PathError, match=str(MAX_NAME)):
        confine(str(root), "a" * (MAX_NAME + 1))


@pytest.mark.parametrize("target", ["../secret", "..", "/etc", "../not-there"])
def test_a_link_that_leads_outside_is_refused(root, target):
    (root / "link").symlink_to(target)
    for name in ("link", "link/passwd", "sub/../link"):
        with pytest.raises(PathError):
            confine(str(root), name)


def test_a_link_that_stays_inside_is_resolved(root):
    (root / "sub" / "link").symlink_to("../a")
    assert confine(str(root), "sub/link") == os.path.join(os.path.realpath(root), "a")


@pytest.mark.parametrize("target", ["../secret", "a", "/etc", "nowhere"])
def test_an_entry_that_is_a_link_is_not_resolved(root, target):
    """A removal removes the link, whatever its target; a folder before it must not lead outside."""
    (root / "link").symlink_to(target)
    for name in ("link", "sub/../link", "./link", "link/"):
        assert confine(str(root), name, entry=True) == os.path.join(os.path.realpath(root), "link")
    (root / "up").symlink_to("..")
    for name in ("up/secret", "..", "../secret", "sub/../.."):
        with pytest.raises(PathError):
            confine(str(root), name, entry=True)


def test_a_root_that_is_a_link_is_resolved(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    assert confine(str(tmp_path / "alias"), "a") == os.path.join(os.path.realpath(root), "a")


def test_a_loop_of_links_stays_inside_or_is_refused(root):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    try:
        assert confine(str(root), "a").startswith(os.path.realpath(root))
    except PathError:
        pass


@given(st.text("./a\0é~\ud800", max_size=24))
def test_any_name_stays_inside_or_is_refused(name):
    try:
        path = confine("/nowhere/at/all", name)
    except PathError:
        return
    assert path == "/nowhere/at/all" or path.startswith("/nowhere/at/all/")


@pytest.fixture
def directory(tmp_path):
    return Directory(str(tmp_path))


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "\0", "x" * 5000, "\ud800"])
def test_every_method_refuses_names_that_lead_outside(directory, name):
    for use in (directory.path, directory.existing, directory.listdir, directory.remove, directory.pieces):
        with pytest.raises(PathError):
            use(name)
    with pytest.raises(PathError):
        Upload(directory, name, 1, 100)


def test_every_method_refuses_links_that_lead_outside(directory, tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(PathError):
        directory.listdir("link")
    with pytest.raises(PathError):
        Upload(directory, "link/passwd", 1, 100)


@pytest.mark.parametrize("name", [".rpcsys-1", "a/.rpcsys-1"])
def test_the_servers_own_names_are_refused(directory, name):
    with pytest.raises(RemoteFileError, match="a name kept for the server"):
        Upload(directory, name, 1, 100)


def test_an_oserror_is_raised_with_the_systems_text(directory, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for use, words in (
        (lambda: directory.remove("none"), "none: No such file or directory"),
        (lambda: directory.remove("folder"), "folder: Is a directory"),
        (lambda: directory.listdir("none"), "none: No such file or directory"),
        (lambda: directory.listdir("file"), "file: Not a directory"),
        (lambda: directory.existing("folder"), "there is no file 'folder'"),
        (lambda: directory.pieces("none"), "there is no file 'none'"),
        (lambda: Upload(directory, "file/below", 1, 100), "file/below: "),
    ):
        with pytest.raises(RemoteFileError, match=words):
            use()


def test_a_listing_omits_the_servers_own_files(directory, tmp_path):
    for name in ("b", "a", ".hidden", ".rpcsys-9"):
        (tmp_path / name).touch()
    assert directory.listdir() == [".hidden", "a", "b"]
    directory.remove("a")
    assert directory.listdir(".") == [".hidden", "b"]


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_file_is_read_in_pieces(directory, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    announced, pieces = directory.pieces("f")
    sent = []
    end = hashed(pieces, sent.append)
    assert announced == size
    assert b"".join(sent) == data
    assert all(len(piece) == PIECE for piece in sent[:-1])
    assert end == {"size": size, "sha256": hashlib.sha256(data).hexdigest()}


def test_removing_a_link_leaves_its_target(directory, tmp_path):
    (tmp_path / "f").write_bytes(b"kept")
    (tmp_path / "inside").symlink_to("f")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    (tmp_path / "nowhere").symlink_to("gone")
    for name in ("inside", "outside", "nowhere"):
        directory.remove(name)
    assert directory.listdir() == ["f"]


def test_a_read_error_closes_the_file(directory, tmp_path, monkeypatch):
    (tmp_path / "f").touch()
    unreadable = open("/proc/self/mem", "rb")  # noqa: SIM115 - closed by the generator
    monkeypatch.setattr("builtins.open", lambda *_: unreadable)
    _, pieces = directory.pieces("f")
    with pytest.raises(RemoteFileError, match="f: Input/output error"):
        list(pieces)
    assert unreadable.closed
