"""A thread's CPUs: bound inside a ``with``, and as before behind it."""

from __future__ import annotations

import contextlib
import os

from rpcsys.module.kinds.cpus import bound_to, cpus_here


def test_a_thread_is_bound_and_set_free() -> None:
    before = cpus_here()
    one = min(before)
    with contextlib.suppress(KeyError), bound_to([one]):
        assert os.sched_getaffinity(0) == {one}
        raise KeyError
    assert cpus_here() == before
    with bound_to([]):
        assert cpus_here() == before
