"""The templates' helpers. What the templates show is in the tests of the pages."""

import pytest

from rpcsys.tracker.views.fragments import Fragment
from rpcsys.tracker.views.templates import Templates, bar, link, look, when


def test_a_time_is_a_date_that_the_script_can_read() -> None:
    assert when(1_700_000_000.4) == (
        '<time datetime="2023-11-14T22:13:20Z" data-at="1700000000">2023-11-14 22:13 UTC</time>'
    )
    for at in (1e12, -1e12, float("nan")):
        assert when(at) == "<time>unknown</time>"


def test_a_link_is_quoted_and_escaped() -> None:
    assert link("board", 'a/"<b>') == '<a href="/board/a%2F%22%3Cb%3E">a/&quot;&lt;b&gt;</a>'
    assert link("lease", "x-1", "ann") == '<a href="/lease/x-1">ann</a>'


def test_a_bar_has_shares_of_its_whole() -> None:
    assert '<rect class="leased" x="0.00" width="25.00"' in bar([("leased", 1), ("free", 3)], 4)
    assert '<rect class="free" x="25.00" width="75.00"' in bar([("leased", 1), ("free", 3)], 4)
    assert 'width="0.00"' in bar([("leased", 0)], 0)


@pytest.mark.parametrize(
    "state", ["free", "busy", "partly busy", "preparing", "drained", "set aside", "unhealthy", "gone"]
)
def test_every_state_has_a_look(state) -> None:
    assert look(state)
    assert look("another") == "odd"


def test_all_templates_compile() -> None:
    templates = Templates()
    html = templates.fragment(
        Fragment("keys-head", "keys", "head.html", {"word": "<K>", "count": 1, "more": 2, "none": ""})
    )
    assert "&lt;K&gt;" in html
    assert "and 2 more" in html
    for name in templates.names:
        templates.load(name)
