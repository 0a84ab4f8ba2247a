"""The paths of pages: any name has one, and leads back to it."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.views.paths import BOARD, KEY, LAB, LEASE, MAX_PATH, PagePath, page_at

names = st.text(min_size=1, max_size=256).filter(str.isprintable)


@given(st.sampled_from([BOARD, KEY, LEASE]), names)
def test_any_name_has_a_path_of_its_own(kind, name) -> None:
    path = PagePath(kind, name).path
    assert page_at(path) == PagePath(kind, name)
    assert urlsplit(path).path == path, "a browser takes no part of it for something else"
    assert len(path) <= MAX_PATH
    assert path.count("/") == 2


def test_the_lab_is_at_the_root() -> None:
    assert PagePath(LAB).path == "/"
    assert page_at("/") == PagePath(LAB)


def test_requests_that_ask_by_label_alone_have_a_page() -> None:
    assert page_at("/key/") == PagePath(KEY, "")


@pytest.mark.parametrize(
    "path",
    ["", "//", "//x", "/board", "/boards/x", "/lab/x", "/board/a/b", "board/x", "/key/%ff", "/key/" + "k" * MAX_PATH],
)
def test_other_paths_are_none(path) -> None:
    assert page_at(path) is None


@given(st.text(max_size=50))
def test_no_text_fails(text) -> None:
    page = page_at(text)
    assert page is None or page_at(page.path) == page
