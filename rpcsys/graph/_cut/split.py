"""Cut a model into stages that run one after another, or side by side where they do not need each other."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from rpcsys.errors import UsageError
from rpcsys.graph._cut.extract import Part, extract
from rpcsys.graph._ir.dataflow import Dataflow, optimised
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._ir.tensor_info import infer_shapes
from rpcsys.module.kinds.onnx_model import ModelLike, read

Cut: TypeAlias = int | str | Sequence[str]  # before a node, by place or name; or behind a tensor, or several of them


def split(model: ModelLike, cuts: Cut | Iterable[Cut], *, exact: bool = False) -> Stages:
    """Cut ``model`` at each of ``cuts`` into one stage more than there are cuts.

    A cut is the place of a node in the graph, or its name: the next stage begins with that node. Or it is the
    name of a tensor: the stage ends with it, and holds what is needed to make it, nothing else. A tuple of tensors
    is one cut behind all of them. Cuts may come in any order.

    Tensors that skip a stage are passed on by name. What depends on no input is computed by every stage that
    needs it instead of crossing. Weights are shared with the model given, and stay in their files if they lie in any.

    With ``exact`` the stages together give the same bits as the whole model at onnxruntime's level ``basic``.
    Without it each may be optimised as far as onnxruntime can: faster, with differences around 1e-7. The
    model, a file or its bytes or one of onnx or onnx-ir, is not changed.

    Raises `UsageError` for a cut that names nothing, leaves a stage without work, or goes through a tensor of unknown
    type; `ModelError` with ``exact``, if onnxruntime cannot load the model.
    """
    flow = Dataflow(read(model))
    listed: list[Cut] = [cuts] if isinstance(cuts, (int, str)) else list(cuts)
    heads = sorted((_head(flow, each) for each in listed), key=len)
    # A later stage needs what the earlier ones made: each head holds what the shorter ones hold.
    nested = list(itertools.accumulate(heads, operator.or_))
    stage_of = [sum(index not in head for head in nested) for index in range(len(flow.nodes))]
    if exact:
        flow, stage_of = _optimised(flow, stage_of)
    infer_shapes(flow.model)
    nodes = [frozenset(i for i, stage in enumerate(stage_of) if stage == number) for number in range(len(heads) + 1)]
    return extract(flow, [Part(f"stage{number}", own) for number, own in enumerate(nodes)], exact=exact)


def _head(flow: Dataflow, where: Cut) -> set[int]:
    if isinstance(where, int):
        return _before_place(flow, where)
    if not isinstance(where, str):
        return set().union(*(_before_tensor(flow, name) for name in where))
    place = next((i for i, node in enumerate(flow.nodes) if node.name == where), None)
    return _before_tensor(flow, where) if place is None else _before_place(flow, place)


def _before_place(flow: Dataflow, place: int) -> set[int]:
    if not 0 < place < len(flow.nodes):
        has = f"the model has {len(flow.nodes)} nodes, and a cut leaves some on either side"
        raise UsageError(f"no cut before node {place}: {has}")
    return set(range(place))


def _before_tensor(flow: Dataflow, name: str) -> set[int]:
    for index, node in enumerate(flow.nodes):
        if any(value.name == name for value in node.outputs):
            return flow.upstream([index])
    raise UsageError(f"no node of the model is called {name!r}, and none makes a tensor of that name")


def _optimised(flow: Dataflow, stage_of: Sequence[int]) -> tuple[Dataflow, list[int]]:
    """The model as it is optimised as a whole, and the stage of each of its nodes.

    A node that onnxruntime put in goes where its inputs are made; and none goes before what it takes, or behind what
    takes it: where several that did the same became one, the earliest stage that wants it has it.
    """
    new, origins = optimised(flow)
    last = max(stage_of, default=0)
    wanted = [last] * len(origins)
    for index in reversed(range(len(origins))):
        own = max((stage_of[i] for i in origins[index]), default=last)
        wanted[index] = min([own, *(wanted[taker] for taker in new.after[index])])
    placed: list[int] = []
    for index, makers in enumerate(new.before):
        own = wanted[index] if origins[index] else 0
        placed.append(max([own, *(placed[maker] for maker in makers)]))
    return new, placed
