"""Builds both sides of a Relax module: what the device runs, and the parts that servers run for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tvm

from rpcsys.errors import UsageError, there_are
from rpcsys.graph._build import relax
from rpcsys.graph._build.codec import Codec, stage_entry
from rpcsys.graph._build.targets import Remote, Tvm, target_of
from rpcsys.module import Module, graph
from rpcsys.tvm import relax_regions
from rpcsys.tvm.relax_program import RelaxProgram
from rpcsys.tvm.relax_regions import RelaxRegion

TvmTarget: TypeAlias = Tvm | str | Mapping[str, Any]


@dataclass(frozen=True)
class RelaxOffload:
    """The device's side and the servers' side of a Relax module."""

    device: Module  # TVM's virtual machine runs it; each call of a region is a call to its server
    parts: Mapping[str, Module]  # the module to deploy for each region, by its name there


def offload(
    mod: Any, patterns: Sequence[Any], *, remote: Remote | Mapping[str, Remote],
    target: TvmTarget = "llvm", served: TvmTarget = "llvm", merge: bool = True,
) -> RelaxOffload:  # fmt: skip
    """Build both sides of a Relax module, for `rpcsys.module.export_library`: regions of it run on servers.

    ``patterns`` are for TVM's FuseOpsByPattern: ``(name, pattern[, annotations, check])``, `FusionPattern`, or names of
    operators (``"nn.conv2d"``). A match is a region; with ``merge`` neighbours are one region, by TVM's
    MergeCompositeFunctions. Functions that have ``Codegen="rpcsys"`` already are regions, too. A region has the name of
    its first pattern, or ``region``; several of one name have numbers (``region0``, ``region1``) in the order of their
    calls; equal functions are one. Its constants stay on the server. Weights that are parameters of ``main`` cross in
    each call: bind them first.

    ``remote``: the server of the region; for several regions a mapping by name, or one server, on which each is
    deployed as ``SERVE-REGION``. Its ``fallback`` is ``"tvm"`` or a `graph.Tvm`. ``target`` is TVM's target on the
    device, ``served`` the one on the server: a kind, a mapping, TVM's object, or `graph.Tvm` with a toolchain.

    Raises `UsageError` if nothing matches, for an unknown operator, target or region, for a region that takes or gives
    anything but tensors, and for what TVM cannot compile.
    """
    if not isinstance(mod, tvm.IRModule):
        raise UsageError(f"{mod!r} is no Relax module (tvm.IRModule)")
    device_target, server_target = _tvm(target), _tvm(served)
    with relax.explained("the module"):
        marked = relax_regions.marked(mod, patterns, merge)
        regions = relax_regions.regions_of(marked)
    if not regions:
        raise UsageError("nothing in the module matches the patterns; look at its operators with print(mod)")
    remotes = _remotes(remote, regions)
    imports, parts = [], {}
    for region in regions:
        there = remotes[region.name]
        codec = Codec(there, region.signature)
        call = codec.remote(region.name, _fallback(region, there))
        imports.append(graph(codec.here(region.name, call), *region.signature, writes=region.symbol))
        parts[there.serve or region.name] = codec.there(region.name, _built(region, server_target))
    with relax.explained("the device's part"):
        rest = relax_regions.device_part(marked)
        device = RelaxProgram(relax.executable(rest, device_target), relax_regions.signatures(rest), imports)
    return RelaxOffload(device, parts)


def _tvm(given: Any) -> Tvm:
    if isinstance(given, Tvm):
        return given
    if isinstance(given, (str, Mapping)):
        return Tvm(given)
    if isinstance(given, tvm.target.Target):
        return Tvm(str(given))
    raise UsageError(f"{given!r} is no target of TVM: give its kind, a mapping, or graph.Tvm(...)")


def _remotes(given: Any, regions: Sequence[RelaxRegion]) -> dict[str, Remote]:
    """The server of each region, by its name. Raises `UsageError`."""
    names = [region.name for region in regions]
    if isinstance(given, Remote):
        if len(names) > 1 and not given.serve:
            several = f"several regions ({', '.join(names)}) need several functions"
            raise UsageError(f"{several}: give remote a mapping by name, or graph.Remote(serve=…)")
        found = {name: replace(given, serve=f"{given.serve}-{name}") for name in names}
        given = found if len(names) > 1 else dict.fromkeys(names, given)
    if not isinstance(given, Mapping) or not all(isinstance(each, Remote) for each in given.values()):
        raise UsageError(f"remote is a graph.Remote(...), or a mapping of them by region; {there_are(names)}")
    for name in given.keys() ^ set(names):
        problem = "has no graph.Remote(...)" if name in names else "does not exist"
        raise UsageError(f"the region {name!r} {problem}; {there_are(names)}")
    for name, each in given.items():
        if each.is_url:
            raise UsageError(f"{each.function}: an inference server has no Relax; give {name!r} graph.Remote(serve=…)")
    for name, count in Counter(each.serve for each in given.values() if each.serve).items():
        if count > 1:
            raise UsageError(f"{count} regions are deployed as {name!r}; give each a name of its own")
    return dict(given)


def _fallback(region: RelaxRegion, remote: Remote) -> Module | None:
    if remote.fallback is None:
        return None
    target = target_of(remote.fallback)
    if not isinstance(target, Tvm):
        text = f"{region.name} falls back to {remote.fallback!r}, which runs no Relax"
        raise UsageError(f"{text}; give fallback='tvm' or graph.Tvm(...)")
    return _built(region, target)


def _built(region: RelaxRegion, target: Tvm) -> Module:
    compiled = relax.compiled(lambda: region.program, target, region.name)
    return graph([stage_entry(region.name, compiled, region.signature)], *region.signature)
