"""Forms of calls."""

from __future__ import annotations

import pytest

from rpcsys.gateway.batching import call_template
from rpcsys.gateway.calls import form_of

TEMPLATE = call_template(0, [])


@pytest.mark.parametrize(
    ("inputs", "rows", "others"),
    [
        ([("int8", (3, 2))], 3, (("int8", (2,)),)),
        ([("int8", (3, 2)), ("float32", (3,))], 3, (("int8", (2,)), ("float32", ()))),
        ([("int8", (3,)), ("int8", (2,))], 1, None),
        ([("int8", ())], 1, None),
        ([("int8", (3,)), ("int8", ())], 1, None),
        ([("int8", (0, 2))], 0, None),
        ([], 1, None),
    ],
)
def test_calls_join_by_dtype_and_all_extents_but_the_first(
    inputs: list[tuple[str, tuple[int, ...]]], rows: int, others: object
) -> None:
    form = form_of(TEMPLATE, inputs)
    assert (form.rows, form.others) == (rows, others)
    alone = form_of(TEMPLATE, inputs, alone=True)
    assert (alone.rows, alone.others) == (rows, None)
