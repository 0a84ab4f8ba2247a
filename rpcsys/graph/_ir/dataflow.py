"""The dataflow of a model's main graph: which values each node takes, which nodes make them, and which have work.

A node is **live** when it depends on an input of the model or draws random numbers: its results differ from call to
call. All other nodes are constant. Every stage that needs a constant computes it; it never crosses to another device.
Nodes that lead to no output are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rpcsys.graph._ir.models import bodies, functions_of

#: Operators that draw random numbers: those in the onnx operator list that take a seed.
_RANDOM = {"Bernoulli", "Dropout", "Multinomial"} | {
    f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")
}


class Dataflow:
    """The main graph of ``model``, whose nodes are in topological order (`read` sorts them).

    A node is identified by its index in the graph.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes: list[ir.Node] = list(model.graph)
        self._place = {node: index for index, node in enumerate(self.nodes)}
        #: By node, the values of the main graph that it reads, itself or in its bodies.
        self.takes = [tuple(_values_read(node, model.graph)) for node in self.nodes]
        #: By node, the nodes that it takes values from, and the nodes that take its values.
        self.before = [self._makers(values) for values in self.takes]
        self.after: list[list[int]] = [[] for _ in self.nodes]
        for index, makers in enumerate(self.before):
            for maker in makers:
                self.after[maker].append(index)
        #: The nodes that lead to an output of the model, and the nodes whose results differ from call to call.
        self.useful = reached(self._makers(model.graph.outputs), self.before)
        self.live = reached(self._sources(), self.after)

    def maker(self, value: ir.Value) -> int | None:
        """The node that makes ``value``; None for an input or an initialiser."""
        producer = value.producer()
        return None if producer is None else self._place[producer]

    def name(self, index: int) -> str:
        """A node's name in messages: its own name, else its operator and its first output."""
        node = self.nodes[index]
        made = next((value.name for value in node.outputs if value.name), "")
        return repr(node.name) if node.name else f"{node.op_type} (which makes {made!r})"

    def upstream(self, nodes: Iterable[int]) -> set[int]:
        """``nodes`` and all nodes they depend on."""
        return reached(nodes, self.before)

    def downstream(self, nodes: Iterable[int]) -> set[int]:
        """``nodes`` and all nodes that depend on them."""
        return reached(nodes, self.after)

    def path(self, start: Collection[int], goal: Collection[int]) -> list[int]:
        """A shortest path from ``start`` to ``goal`` through other nodes; [] if there is none."""
        came_from: dict[int, int | None] = dict.fromkeys(start)
        todo = deque(start)
        while todo:
            index = todo.popleft()
            for follower in self.after[index]:
                if follower in goal and index not in start:
                    path = [follower]
                    at: int | None = index
                    while at is not None:
                        path.append(at)
                        at = came_from[at]
                    return path[::-1]
                if follower not in came_from and follower not in goal:
                    came_from[follower] = index
                    todo.append(follower)
        return []

    def _sources(self) -> Iterator[int]:
        inputs = set(self.model.graph.inputs)
        for index, node in enumerate(self.nodes):
            if not inputs.isdisjoint(self.takes[index]) or _is_random(node, self.model):
                yield index

    def _makers(self, values: Iterable[ir.Value]) -> list[int]:
        return sorted({maker for value in values if (maker := self.maker(value)) is not None})


def reached(start: Iterable[int], steps: Mapping[int, list[int]] | Sequence[list[int]]) -> set[int]:
    """``start``, and all nodes that ``steps`` lead to from there, directly or indirectly."""
    reached = set(start)
    todo = list(reached)
    while todo:
        fresh = set(steps[todo.pop()]) - reached
        reached |= fresh
        todo.extend(fresh)
    return reached


def _values_read(node: ir.Node, graph: ir.Graph) -> dict[ir.Value, None]:
    """The values of ``graph`` that the node or its bodies read, each once and in order."""
    read = {value: None for value in node.inputs if value is not None}
    for body in bodies(node):
        nodes = list(ir.traversal.RecursiveGraphIterator(body))
        graphs = [*(inner for each in nodes for inner in bodies(each)), body]  # each may output an outer graph's value
        taken = [*(value for each in nodes for value in each.inputs), *(value for g in graphs for value in g.outputs)]
        read.update((value, None) for value in taken if value is not None and value.graph is graph)
    return read


def _is_random(node: ir.Node, model: ir.Model) -> bool:
    """Whether the node draws random numbers: itself, in its bodies, or in a function that it calls."""
    inside = (each for body in bodies(node) for each in ir.traversal.RecursiveGraphIterator(body))
    called = (each for function in functions_of([node], model) for each in function.all_nodes())
    return any(each.op_type in _RANDOM and each.domain == "" for each in (node, *inside, *called))
