"""Extracts stages from a model, given the nodes of each. A stage is a model of its own; tensors cross by name.

Constant nodes are copied into every stage that needs them. A stage that consists of constant nodes only computes them
once, and the other stages take its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._ir import models
from rpcsys.graph._ir.dataflow import Dataflow, reached
from rpcsys.graph._ir.stage import Stage, Stages
from rpcsys.graph._ir.tensor_info import describe, infer_missing_types
from rpcsys.module.kinds.onnx_model import MAP_TYPE

Values = Sequence[ir.Value]


class Part(NamedTuple):
    """A stage to extract: its name, the nodes that belong to it, and its target."""

    name: str
    nodes: frozenset[int]
    target: str = ""


def extract(flow: Dataflow, parts: Sequence[Part], *, exact: bool = False) -> Stages:
    """The stages of ``parts``; these must be in an order in which they can run.

    Together they hold every node that has work to do. A constant output of the whole model that no part makes comes
    from the last part. Raises `UsageError` for a part with nothing to do, and a tensor of unknown type between two.
    """
    return _Extractor(flow, parts, exact).stages()


class _Extractor:
    def __init__(self, flow: Dataflow, parts: Sequence[Part], exact: bool) -> None:
        self._flow = flow
        self._graph = flow.model.graph
        self._parts = parts
        self._exact = exact
        self._outputs = dict.fromkeys(self._graph.outputs)
        self._core = [self._own_work(part) for part in parts]
        self._part_of = {index: place for place, core in enumerate(self._core) for index in core}
        loose = frozenset(range(len(flow.nodes))).difference(*(part.nodes for part in parts))
        self._results = [self._constant_results(part.nodes) for part in parts]
        self._results[-1] |= self._constant_results(loose)
        # Each part also holds the constant nodes that it needs and no part owns; nodes stay in the graph's order.
        before = [[maker for maker in makers if maker not in self._part_of] for makers in flow.before]
        members = zip(self._core, self._results, strict=True)
        self._members = [sorted(reached(core | results, before)) for core, results in members]

    def stages(self) -> Stages:
        places = range(len(self._parts))
        takes = [self._taken(place) for place in places]
        wanted = {*self._outputs, *(value for values in takes for value in values)}
        gives = [self._given(place, wanted) for place in places]
        for part, given in zip(self._parts, gives, strict=True):
            if not given:
                left = ", once onnxruntime has left out what it can" if self._exact else ""
                raise UsageError(f"{part.name} would have nothing to do: no output of the model needs it{left}")
        infer_missing_types(self._flow.model, wanted)
        stages = map(self._stage, places, takes, gives)
        return Stages(stages, map(describe, self._graph.inputs), map(describe, self._graph.outputs), exact=self._exact)

    def _own_work(self, part: Part) -> frozenset[int]:
        useful = part.nodes & self._flow.useful
        return (useful & self._flow.live) or useful

    def _constant_results(self, nodes: frozenset[int]) -> frozenset[int]:
        """The nodes among ``nodes`` that are constant and make an output of the whole model."""
        useful, outputs = nodes & self._flow.useful - self._part_of.keys(), self._outputs.keys()
        return frozenset(index for index in useful if not outputs.isdisjoint(self._flow.nodes[index].outputs))

    def _taken(self, place: int) -> list[ir.Value]:
        """A part's inputs: inputs of the whole model, then tensors of other parts, each in the graph's order."""
        members = set(self._members[place])
        read = {value for index in members for value in self._flow.takes[index]}
        inputs = [value for value in self._graph.inputs if value in read]
        makers = {value: self._flow.maker(value) for value in read}
        made = [value for value, maker in makers.items() if maker is not None and maker not in members]
        return inputs + sorted(made, key=self._position)

    def _given(self, place: int, wanted: Iterable[ir.Value]) -> list[ir.Value]:
        """A part's outputs: outputs of the whole model in its order, then tensors that other parts take.

        Weights that are outputs of the model come from the last part.
        """
        made = {value for value in wanted if self._part_of.get(self._maker(value)) == place}
        made |= {value for value in self._outputs if self._maker(value) in self._results[place]}
        if place == len(self._parts) - 1:
            made |= {value for value in self._outputs if value.is_initializer()}
        results = [value for value in self._outputs if value in made]
        return results + sorted(made.difference(results), key=self._position)

    def _maker(self, value: ir.Value) -> int:
        maker = self._flow.maker(value)
        return -1 if maker is None else maker

    def _position(self, value: ir.Value) -> tuple[int, int]:
        return self._maker(value), value.index() or 0

    def _stage(self, place: int, taken: list[ir.Value], given: list[ir.Value]) -> Stage:
        part = self._parts[place]
        for value in taken:
            if MAP_TYPE in value.meta:
                what = f"{value.name!r} is {value.meta[MAP_TYPE]}; divide elsewhere, or export it with zipmap=False"
                raise UsageError(f"no map crosses between stages, and {what}")
        nodes = [self._flow.nodes[index] for index in self._members[place]]
        makers = {self._part_of[maker] for value in taken if (maker := self._maker(value)) >= 0}
        model = _model(self._flow.model, part.name, nodes, taken, given, self._weights(place, given))
        needs = tuple(self._parts[maker].name for maker in sorted(makers))
        inputs, outputs = tuple(map(describe, taken)), tuple(map(describe, given))
        return Stage(part.name, model, inputs, outputs, needs, part.target, self._exact)

    def _weights(self, place: int, given: list[ir.Value]) -> list[ir.Value]:
        read = {value: None for index in self._members[place] for value in self._flow.takes[index]}
        return [value for value in dict.fromkeys([*read, *given]) if value.is_initializer()]


def _model(
    whole: ir.Model, name: str, nodes: Sequence[ir.Node], inputs: Values, outputs: Values, weights: Values
) -> ir.Model:
    """A model of ``nodes`` alone. It shares its weights with ``whole``."""
    name, imports = f"{whole.graph.name or 'model'}.{name}", whole.graph.opset_imports
    view = ir.GraphView(inputs, outputs, nodes=nodes, initializers=weights, opset_imports=imports, name=name)
    functions = [function.clone() for function in models.functions_of(nodes, whole)]
    return ir.Model(
        view.clone(), ir_version=whole.ir_version, producer_name="rpcsys", functions=functions,
        device_configurations=whole.device_configurations,
    )  # fmt: skip
