"""A session keeps freed memory: the arrays of its next call need no new pages."""

from __future__ import annotations

import platform

import pytest

import rpcsys
from tests.live.daemons import Daemons

PAGES = (2 << 20) // 4096  # of the arrays


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("flags", [(), ("--no-fork",)], ids=["forked", "an interpreter of its own"])
def test_the_next_calls_arrays_need_no_new_pages(daemons: Daemons, flags: tuple[str, ...]) -> None:
    server = daemons.server("k", "--import", "tests.live.lab_functions", *flags)
    with rpcsys.connect(*server.address, key="k") as session:
        count = session.get_function("lab.page_faults")
        first, later = count(), [count() for _ in range(5)]
    assert first > PAGES // 2
    assert max(later) < PAGES // 5
