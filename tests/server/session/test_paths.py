"""Names from clients stay inside the session's directory."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import PathError
from rpcsys.server.session.paths import MAX_NAME, confine


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "work-2").mkdir()
    return folder


@pytest.mark.parametrize("name", ["a", "sub/a", "sub/../a", "./a", "not/there/yet", "..a", "sub//a", "ä b"])
def test_inside(root, name):
    assert confine(str(root), name) == os.path.normpath(os.path.join(os.path.realpath(root), name))


def test_the_directory_itself(root):
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
def test_refused(root, name):
    with pytest.raises(PathError):
        confine(str(root), name)


def test_too_long(root):
    with pytest.raises(PathError, match=str(MAX_NAME)):
        confine(str(root), "a" * (MAX_NAME + 1))


@pytest.mark.parametrize("target", ["../secret", "..", "/etc", "../not-there"])
def test_links_that_leave(root, target):
    (root / "link").symlink_to(target)
    for name in ("link", "link/passwd", "sub/../link"):
        with pytest.raises(PathError):
            confine(str(root), name)


def test_links_that_stay(root):
    (root / "sub" / "link").symlink_to("../a")
    assert confine(str(root), "sub/link") == os.path.join(os.path.realpath(root), "a")


@pytest.mark.parametrize("target", ["../secret", "a", "/etc", "nowhere"])
def test_a_link_itself(root, target):
    """What is to be removed is the link, wherever it leads; never through one that leaves."""
    (root / "link").symlink_to(target)
    for name in ("link", "sub/../link", "./link", "link/"):
        assert confine(str(root), name, entry=True) == os.path.join(os.path.realpath(root), "link")
    (root / "up").symlink_to("..")
    for name in ("up/secret", "..", "../secret", "sub/../.."):
        with pytest.raises(PathError):
            confine(str(root), name, entry=True)


def test_a_root_that_is_a_link(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    assert confine(str(tmp_path / "alias"), "a") == os.path.join(os.path.realpath(root), "a")


def test_links_in_a_circle_are_an_answer_or_an_error(root):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    try:
        assert confine(str(root), "a").startswith(os.path.realpath(root))
    except PathError:
        pass


@given(st.text("./a\0é~\ud800", max_size=24))
def test_any_name_stays_or_is_refused(name):
    try:
        path = confine("/nowhere/at/all", name)
    except PathError:
        return
    assert path == "/nowhere/at/all" or path.startswith("/nowhere/at/all/")
