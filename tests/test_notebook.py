"""HTML for notebooks: whatever a text contains, it stays text."""

from __future__ import annotations

from html import escape

from hypothesis import given
from hypothesis import strategies as st

from rpcsys import notebook
from rpcsys.errors import printable
from tests.shown_html import ShownHtml

texts = st.text() | st.sampled_from(["<script>x</script>", "<b", "&lt;", "\"' onclick=x ", "a\x00\u202eb", "\ud800"])


@given(texts, st.lists(st.tuples(texts, texts), max_size=3))
def test_texts_stay_texts(title: str, pairs: list[tuple[str, str]]) -> None:
    html = notebook.block(
        title, notebook.table(["a", "b"], pairs), notebook.picture("<svg>" + escape(title) + "</svg>", title)
    )
    told = ShownHtml(html)
    texts = [title, "a", "b", *(cell for pair in pairs for cell in pair)]
    assert told.cells == [printable(each, "\n") for each in texts]
    assert [each.tag for each in told.pictures] == ["svg"]


def test_what_is_not_known_has_no_row_and_many_rows_are_cut() -> None:
    assert ShownHtml(notebook.facts([("a", 0), ("b", None), ("c", ""), ("d", False)])).cells == ["a", "0", "d", "False"]
    cells = ShownHtml(notebook.table(["n"], [[number] for number in range(notebook.MAX_ROWS + 7)])).cells
    assert (len(cells), cells[-2:]) == (notebook.MAX_ROWS + 2, [str(notebook.MAX_ROWS - 1), "… and 7 more"])


def test_sentences_are_lines() -> None:
    assert ShownHtml(notebook.lines(["one", "two < three"])).cells == ["one", "two < three"]
