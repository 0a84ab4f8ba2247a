"""Finds where a model can be cut and what would cross there: turns a profiled model into the cost model's units."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.tensor_info import describe
from rpcsys.graph._plan.cost_model import UnitTensor
from rpcsys.graph._plan.optimum import thinned
from rpcsys.graph._plan.profile import Profile


class CutPoints(NamedTuple):
    """A model as a row of units, with possible cuts between them."""

    seconds: tuple[float, ...]  # of each unit, from the profile
    nodes: tuple[int, ...]  # number of nodes in each unit
    tensors: dict[str, UnitTensor]  # tensors that flow between them
    cuts: tuple[tuple[str, ...], ...]  # for each unit but the first: the tensors of the cut before it


def cut_points(flow: Dataflow, profile: Profile, known: set[str | None], inputs: Mapping[str, Any]) -> CutPoints:
    """The units of ``flow``, a model that onnxruntime has optimised.

    A cut is possible where every tensor that crosses has a name in the original model, ``known``. ``inputs`` are the
    arrays that the profile was made with. Tensors of unknown size count as 0 bytes.
    """
    work = sorted(flow.useful & flow.live)
    made = [_made(flow, index) for index in work]
    last = _last_uses(flow, work, made)
    crossing: list[list[ir.Value]] = []
    alive: list[ir.Value] = []
    for place, values in enumerate(made):
        alive = [value for value in [*alive, *values] if last[value] > place]
        crossing.append(alive)
    possible = [place + 1 for place, values in enumerate(crossing[:-1]) if known.issuperset(v.name for v in values)]
    seconds = [profile.seconds[index] for index in work]
    weights = [sum(_nbytes(value, profile) for value in crossing[place - 1]) for place in possible]
    ends = [0, *thinned(possible, seconds, weights), *([len(work)] if work else [])]
    spans = list(itertools.pairwise(ends))
    unit_of = {work[place]: unit for unit, (start, stop) in enumerate(spans) for place in range(start, stop)}
    return CutPoints(
        tuple(sum(seconds[start:stop]) for start, stop in spans),
        tuple(stop - start for start, stop in spans),
        _tensors(flow, unit_of, profile, inputs),
        tuple(tuple(str(value.name) for value in crossing[end - 1]) for end in ends[1:-1]),
    )


def _made(flow: Dataflow, index: int) -> list[ir.Value]:
    return [value for value in flow.nodes[index].outputs if value.name]


def _last_uses(flow: Dataflow, work: Sequence[int], made: Sequence[Sequence[ir.Value]]) -> dict[ir.Value, int]:
    """The index of the last node that takes each value; for a result of the model, the index behind all nodes."""
    last = {value: place for place, values in enumerate(made) for value in values}
    for place, index in enumerate(work):
        last.update((value, place) for value in flow.takes[index] if value in last)
    last.update((value, len(work)) for value in flow.model.graph.outputs if value in last)
    return last


def _tensors(
    flow: Dataflow, unit_of: dict[int, int], profile: Profile, inputs: Mapping[str, Any]
) -> dict[str, UnitTensor]:
    takers: dict[ir.Value, set[int]] = {}
    for index, unit in unit_of.items():
        for value in flow.takes[index]:
            takers.setdefault(value, set()).add(unit)
    found = {}
    for value in flow.model.graph.inputs:
        name = str(value.name)
        size = profile.nbytes.get(name, getattr(inputs.get(name), "nbytes", 0))
        found[name] = UnitTensor(size, -1, tuple(sorted(takers.get(value, ()))))
    results = set(flow.model.graph.outputs)
    for index, unit in unit_of.items():
        for value in _made(flow, index):
            users = tuple(sorted(takers.get(value, set()) - {unit}))
            found[str(value.name)] = UnitTensor(_nbytes(value, profile), unit, users, value in results)
    return found


def _nbytes(value: ir.Value, profile: Profile) -> int:
    if value.name in profile.nbytes:
        return profile.nbytes[value.name]
    return (describe(value).nbytes or 0) if value.type is not None else 0
