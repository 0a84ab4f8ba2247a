"""Splits each case of ONNX's backend suite with two or more nodes in two; the cuts are listed beside this file.

The results of the two halves are tested in tests/live/test_backend_suite.py. To write the list again, run
``python -m tests.graph.test_backend_suite``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from rpcsys import graph
from tests.graph import onnx_cases

LISTED = Path(__file__).with_name("split_cases.txt")


def cuts() -> Iterator[str]:
    """A line for each case: its name, number of nodes, cut, and the tensors that cross."""
    columns = "case | nodes | begins the second half | tensors that go from one half to the other"
    yield f"# onnx {onnx.__version__}: {columns}"
    for case in onnx_cases.cases():
        nodes = case.model.graph.node
        if len(nodes) > 1:
            place = onnx_cases.middle(case)
            first, second = graph.split(case.model, place)
            made = {tensor.name for tensor in first.outputs}
            names = [tensor.name for tensor in second.inputs if tensor.name in made]
            crossing = [name.partition("_function_")[2] or name for name in names]  # of an expanded function
            yield f"{case.name} | {len(nodes)} | {place}: {nodes[place].op_type} | {', '.join(crossing) or '-'}"


@pytest.mark.slow
def test_every_case_of_several_nodes_is_split_where_the_list_says() -> None:
    made = list(cuts())
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    several = sum(len(case.model.graph.node) > 1 for case in onnx_cases.cases())
    assert len(made) == several + 1  # a case that cannot be split ends the loop above with its error
    if made[0] == listed[0]:  # another release of onnx has other cases
        assert made == listed
        assert len(made) == 460 + 1


if __name__ == "__main__":
    LISTED.write_text("\n".join(cuts()) + "\n", encoding="utf-8")
