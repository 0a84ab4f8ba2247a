"""Cut a model into stages that run one after another, or side by side if they do not need each other."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from rpcsys.errors import UsageError
from rpcsys.graph._cut.extract import Part, extract
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.rewriting import carried_over
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._ir.tensor_info import infer_shapes
from rpcsys.module.kinds.onnx_model import ModelLike, read

Cut: TypeAlias = int | str | Sequence[str]  # before a node (its index or name), or behind one tensor or several


_FORMS = "give a node's place in the graph or its name, or the name of a tensor, or of several together"


def split(model: ModelLike, cuts: Cut | Iterable[Cut], *, exact: bool = False) -> Stages:
    """Cut ``model`` at each of ``cuts``; n cuts make n + 1 stages.

    A cut is a node's index in the graph, or its name: the next stage begins with that node. Or it is the name of a
    tensor: the stage holds only the nodes that this tensor depends on. A tuple of tensors is one cut behind all of
    them. Cuts may come in any order.

    A tensor that skips a stage is passed on by name. A constant does not cross: every stage that needs it computes it.
    Weights are shared with the model given. Weights that lie in files stay there.

    With ``exact`` the stages together give the same bits as the whole model at onnxruntime's level ``basic``.
    Without it onnxruntime may optimise each stage fully: faster, with differences around 1e-7. ``model`` is a path,
    bytes, or a model of onnx or onnx-ir; it is not changed.

    Raises `UsageError` for a cut that is none of these, names no node or tensor, leaves a stage without work, crosses a
    tensor of unknown type, or with ``exact`` goes through nodes that onnxruntime rewrites into others; `ModelError`
    with ``exact``, if onnxruntime cannot load the model.
    """
    flow = Dataflow(read(model))
    heads = sorted((_head(flow, each) for each in _listed(cuts)), key=len)
    # A later stage needs the tensors of all earlier ones: each head includes the shorter heads.
    nested = list(itertools.accumulate(heads, operator.or_))
    stage_of = [sum(index not in head for head in nested) for index in range(len(flow.nodes))]
    if exact:
        flow, stage_of = carried_over(flow, stage_of)
    infer_shapes(flow.model)
    nodes = [frozenset(i for i, stage in enumerate(stage_of) if stage == number) for number in range(len(heads) + 1)]
    return extract(flow, [Part(f"stage{number}", own) for number, own in enumerate(nodes)], exact=exact)


def _listed(cuts: Any) -> list[Any]:
    """The cuts one by one: one alone is a cut, too."""
    if isinstance(cuts, (str, Integral)) or not isinstance(cuts, Iterable):
        return [cuts]
    return list(cuts)


def _head(flow: Dataflow, where: Any) -> set[int]:
    """The nodes before a cut. Raises `UsageError` for what is no cut."""
    if isinstance(where, Integral):  # numpy's are such, too
        return _before_place(flow, operator.index(where))
    names = [where] if isinstance(where, str) else list(where) if isinstance(where, Sequence) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{where!r} is no cut: {_FORMS}")
    if not isinstance(where, str):
        return set().union(*(_before_tensor(flow, name) for name in names))
    place = next((i for i, node in enumerate(flow.nodes) if node.name == where), None)
    return _before_tensor(flow, where) if place is None else _before_place(flow, place)


def _before_place(flow: Dataflow, place: int) -> set[int]:
    if not 0 < place < len(flow.nodes):
        has = f"the model has {len(flow.nodes)} nodes, and a cut leaves some on either side"
        last = len(flow.nodes) - 1
        has += f"; give {'1' if last == 1 else f'1 to {last}'}" if last > 0 else ", so it cannot be cut"
        raise UsageError(f"no cut before node {place}: {has}")
    return set(range(place))


def _before_tensor(flow: Dataflow, name: str) -> set[int]:
    for index, node in enumerate(flow.nodes):
        if any(value.name == name for value in node.outputs):
            return flow.upstream([index])
    problem = f"no node of the model is called {name!r}, and none makes a tensor of that name"
    raise UsageError(f"{problem}; give a name that the model has, as viewers such as Netron show them")
