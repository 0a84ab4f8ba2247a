"""Take a region out of a model as a stage of its own, with stages before it, beside it and after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rpcsys.errors import UsageError
from rpcsys.graph._cut.extract import Part, extract
from rpcsys.graph._cut.region import Annotation, Region, chosen, marks
from rpcsys.graph._ir.dataflow import Dataflow, reached
from rpcsys.graph._ir.rewriting import carried_over, check_division, optimised
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._ir.tensor_info import infer_shapes
from rpcsys.module.kinds.onnx_model import ModelLike, read


def partition(model: ModelLike, region: Region | Annotation, *, exact: bool = False, several: bool = False) -> Stages:
    """Split ``model`` so that ``region`` is a stage of its own.

    The stages are ``before``, ``region``, ``beside`` and ``after``; empty ones are left out. ``beside`` and the region
    do not need each other and can run at the same time. A region is names of nodes, a function of a node, `operators`,
    or the `annotated` stages that the model itself is marked with. Marks give a stage ``stageN`` each; an unmarked node
    joins the latest stage that its inputs come from.

    A region must be **convex**: every path between two of its nodes stays inside. With ``several`` a path may leave it.
    Then each connected piece of the region is a stage (``region0``, ``region1``, …), and the rest lies between them
    (``rest0``, …): use this for all nodes that a target supports. ``exact`` is as in `split`.

    Raises `UsageError` for a region that is empty or not convex (the message names the path that leaves and returns),
    a name that no node has, stages marked against the flow, a tensor of unknown type between stages, and with ``exact``
    a region that onnxruntime's rewriting joins with other nodes; `ModelError` with ``exact``, if onnxruntime cannot
    load the model.
    """
    flow = Dataflow(read(model))
    if isinstance(region, Annotation):
        return _by_marks(flow, region, exact)
    wanted = chosen(flow, region)
    if exact:
        flow, wanted = _optimised(flow, wanted)
    # Constants join the stages that need them; a region has only constants if it holds no other nodes.
    useful = wanted & flow.useful
    working = useful & flow.live or useful
    if not working:
        left = ", once onnxruntime has left out what it can" if exact else ""
        raise UsageError(f"the region is empty: none of its nodes has work to do in this model{left}")
    infer_shapes(flow.model)
    return extract(flow, _pieces(flow, working) if several else _around(flow, working), exact=exact)


def _optimised(flow: Dataflow, wanted: set[int]) -> tuple[Dataflow, set[int]]:
    """The optimised model and the region in it; a node that onnxruntime added joins the first node that uses it."""
    new, origins = optimised(flow)
    found: set[int] = set()
    for index in reversed(range(len(new.nodes))):
        inside = any(i in wanted for i in origins[index])
        if inside or (not origins[index] and new.after[index] and new.after[index][0] in found):
            found.add(index)
    old_sides = [int(index in wanted) for index in range(len(flow.nodes))]
    check_division(flow, old_sides, new, origins, [int(index in found) for index in range(len(new.nodes))])
    return new, found


def _around(flow: Dataflow, region: set[int]) -> list[Part]:
    outside = flow.path(region, region)
    if outside:
        how = "take the nodes between into it, leave one of its ends out, or pass several=True"
        path = _path_text(flow, outside)
        raise UsageError(f"the region is not convex: the path {path} leaves it and comes back; {how}")
    work = flow.useful & flow.live
    before = (flow.upstream(region) & work) - region
    after = (flow.downstream(region) & work) - region
    beside = work - region - before - after
    parts = {"before": before, "region": region, "beside": beside, "after": after}
    return [Part(name, frozenset(nodes)) for name, nodes in parts.items() if nodes]


def _path_text(flow: Dataflow, path: Iterable[int]) -> str:
    return " -> ".join(flow.name(index) for index in path)


def _pieces(flow: Dataflow, region: set[int]) -> list[Part]:
    """Group nodes by how often the longest path to them enters or leaves the region, then by connected pieces.

    All nodes on a path between two nodes of one depth have that depth, so every piece is convex. A piece needs only
    pieces of its own or a lower depth.
    """
    own = flow.useful & flow.live | region
    depth: dict[int, int] = {}
    # Depth counts all nodes behind the region, since a region of constants may be used through others.
    for index in sorted(own | flow.downstream(region)):
        inside = index in region
        before = [i for i in flow.before[index] if i in depth]
        depth[index] = max((depth[i] + ((i in region) != inside) for i in before), default=int(inside))
    parts: dict[str, set[int]] = {}
    for level in sorted({depth[index] for index in own}):
        nodes = {index for index in own if depth[index] == level}
        if level % 2:
            for piece in _connected(flow, nodes):
                parts[f"region{sum(name.startswith('region') for name in parts)}"] = piece
        else:
            parts[f"rest{level // 2}"] = nodes
    return [Part(name, frozenset(nodes)) for name, nodes in parts.items()]


def _connected(flow: Dataflow, nodes: set[int]) -> list[set[int]]:
    pieces: list[set[int]] = []
    left = set(nodes)
    around = {n: [i for i in (*flow.before[n], *flow.after[n]) if i in nodes] for n in nodes}
    while left:
        pieces.append(reached([min(left)], around))
        left -= pieces[-1]
    return pieces


def _by_marks(flow: Dataflow, annotation: Annotation, exact: bool) -> Stages:
    stage_of, devices = marks(flow, annotation)
    _check_order(flow, stage_of)
    placed: dict[int, int] = {}
    for index in sorted(flow.useful & flow.live):
        earlier = [placed[i] for i in flow.before[index] if i in placed]
        placed[index] = max([*earlier, stage_of.get(index, 0)])
    if exact:
        flow, stages = carried_over(flow, [placed.get(index, 0) for index in range(len(flow.nodes))])
        placed = {index: stages[index] for index in flow.useful & flow.live}
    infer_shapes(flow.model)
    if not placed:
        raise UsageError("no node of the model depends on its inputs: there is nothing to divide")
    numbers = sorted(set(placed.values()))
    nodes = {n: frozenset(index for index, stage in placed.items() if stage == n) for n in numbers}
    return extract(flow, [Part(f"stage{n}", nodes[n], devices.get(n, "")) for n in numbers], exact=exact)


def _check_order(flow: Dataflow, stage_of: Mapping[int, int]) -> None:
    """Raise `UsageError` where a node is marked with an earlier stage than a node it depends on."""
    latest: dict[int, int] = {}  # node -> among it and its dependencies, the node marked with the latest stage
    for index in range(len(flow.nodes)):
        behind = [latest[i] for i in flow.before[index] if i in latest]
        if index not in stage_of and not behind:
            continue
        last = max(behind, key=stage_of.__getitem__, default=index)
        if index in stage_of and stage_of[last] > stage_of[index]:
            path = _path_text(flow, flow.path([last], [index]) or [last, index])
            goes = f"goes from stage {stage_of[last]} back to stage {stage_of[index]}"
            raise UsageError(f"marked against the flow: the path {path} {goes}")
        latest[index] = index if index in stage_of else last
