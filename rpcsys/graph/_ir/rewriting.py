"""What onnxruntime's rewriting makes of a model's nodes: which new node stands for which old ones.

Names of tensors do not survive it: of a float16 model every tensor is renamed. Names of nodes do: a node that moves,
fuses with another or computes in another type keeps its name. So the nodes are numbered by name before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.ort import rewritten

Origins = list[list[int]]  # for each new node, the old nodes that it stands for; [] if onnxruntime added it

_RENAMED = "InsertedPrecisionFreeCast_"  # in front of the name of a tensor that is computed in float32, not in float16
_MARK = re.compile(r"rpcsys#(\d+)(?:/|$)")  # a fused node's name may go on behind a slash
#: Operators that onnxruntime adds to change a tensor's type; on which side of a cut they are changes no division.
_CONVERSIONS = {"Cast", "QuantizeLinear", "DequantizeLinear"}
_OMITTED = {*_CONVERSIONS, "Identity", "Dropout"}  # operators that onnxruntime leaves out, with nothing in their place


def optimised(flow: Dataflow) -> tuple[Dataflow, Origins]:
    """The model as onnxruntime optimises it at ``basic``; and for each node, the nodes of ``flow`` it stands for.

    Nodes and tensors have their old names where they have a counterpart. Raises `ModelError` if onnxruntime cannot
    load the model.
    """
    marked = flow.model.clone()
    for index, node in enumerate(marked.graph):
        node.name = f"rpcsys#{index}"
    makers = {value.name: index for index, node in enumerate(flow.nodes) for value in node.outputs if value.name}
    new = Dataflow(rewritten(marked))
    marks = [_MARK.match(node.name or "") for node in new.nodes]
    times = Counter(mark[1] for mark in marks if mark)
    origins: Origins = []
    for node, mark in zip(new.nodes, marks, strict=True):
        outputs = {_old_name(value) if mark else value.name for value in node.outputs}
        found = {makers[name] for name in outputs if name in makers}
        if mark:
            # The output of a node that was left out is made by the node before it, which stays where it was.
            found = {index for index in found if flow.nodes[index].op_type not in _OMITTED} | {int(mark[1])}
            name = flow.nodes[int(mark[1])].name or ""
            # onnxruntime refuses two nodes of one name, and copies some: each copy's name has an end of its own.
            node.name = name + mark.string[mark.end(1) :] if name and times[mark[1]] > 1 else name
        origins.append(sorted(found))
    _restore_names(flow, new, origins)
    return new, origins


def carried_over(flow: Dataflow, stage_of: Sequence[int]) -> tuple[Dataflow, list[int]]:
    """The model that onnxruntime optimises as a whole, and the stage of each of its nodes.

    A node that onnxruntime added goes to the stage that takes from it. A node never goes before the nodes it takes
    from, or behind the nodes that take from it. Where onnxruntime merged equal nodes, the earliest stage that needs one
    has it. Raises `UsageError` and `ModelError` as `check_division` and `optimised` do.
    """
    new, origins = optimised(flow)
    last = max(stage_of, default=0)
    wanted = [last] * len(origins)
    for index in reversed(range(len(origins))):
        own = max((stage_of[i] for i in origins[index]), default=last)
        wanted[index] = min([own, *(wanted[taker] for taker in new.after[index])])
    placed: list[int] = []
    for index, makers in enumerate(new.before):
        placed.append(max([wanted[index], *(placed[maker] for maker in makers)]))
    check_division(flow, stage_of, new, origins, placed)
    return new, placed


def _restore_names(old: Dataflow, new: Dataflow, origins: Origins) -> None:
    """Give a renamed tensor its old name, unless another tensor has it: a cut can then be found by that name."""
    taken = {value.name for node in new.nodes for value in node.outputs} | {
        value.name for value in new.model.graph.inputs
    }
    known = {value.name for node in old.nodes for value in node.outputs}
    for node, origin in zip(new.nodes, origins, strict=True):
        before = old.nodes[origin[0]] if len(origin) == 1 else None
        if before is not None and (node.op_type, len(node.outputs)) == (before.op_type, len(before.outputs)):
            wanted = [value.name for value in before.outputs]
        else:
            wanted = [_old_name(value) for value in node.outputs]
        for value, name in zip(node.outputs, wanted, strict=True):
            if value.name and value.name not in known and name in known and name not in taken:
                value.name = name
                taken.add(name)


def _old_name(tensor: ir.Value) -> str:
    return (tensor.name or "").removeprefix(_RENAMED)


def check_division(
    old: Dataflow, label_of: Sequence[int], new: Dataflow, origins: Origins, new_label_of: Sequence[int]
) -> None:
    """Raise `UsageError` if onnxruntime rewrote nodes across a border of the division, so that nobody asked for this.

    ``label_of`` is the stage of each old node, ``new_label_of`` that of each new one. A node that stands for old nodes
    is where they are. One that does not stands for the old nodes that vanished between its neighbours.
    """
    matched = {index for origin in origins for index in origin}
    vanished = {i for i in old.useful & old.live if i not in matched and old.nodes[i].op_type not in _OMITTED}
    for index in sorted(new.useful & new.live):
        label = new_label_of[index]
        if origins[index]:
            lost = origins[index] if label > max(label_of[each] for each in origins[index]) else []
        elif new.nodes[index].op_type in _CONVERSIONS:
            continue
        else:
            above, below = _near(index, new.before, origins), _near(index, new.after, origins)
            if above and below and all(label_of[each] == label for each in above | below):
                continue
            between = vanished & (old.downstream(above) if above else vanished)
            between &= old.upstream(below) if below else vanished
            lost = [each for each in sorted(between) if label_of[each] != label]
        if lost:
            made = f"onnxruntime makes {old.name(lost[0])} part of {new.name(index)}, on the other side"
            raise UsageError(f"no exact division there: {made}; divide elsewhere, or pass exact=False")


def _near(start: int, steps: Sequence[Sequence[int]], origins: Origins) -> set[int]:
    """The old nodes that the nearest nodes with a counterpart stand for, from ``start`` along ``steps``."""
    found: set[int] = set()
    seen, todo = {start}, [start]
    while todo:
        for index in steps[todo.pop()]:
            found.update(origins[index])
            if not origins[index] and index not in seen:
                seen.add(index)
                todo.append(index)
    return found
