"""Numbers as people read them."""

from __future__ import annotations

import pytest

from rpcsys.graph._show.table import size_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "?"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (22_400_000, "22.4 MB"), (10**16, "10000.0 TB")],
)
def test_sizes_for_people(count: int | None, text: str) -> None:
    assert size_text(count) == text
