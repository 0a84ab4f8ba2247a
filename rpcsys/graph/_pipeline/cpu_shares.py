"""Decides which CPUs the local stages of a pipeline get by default.

onnxruntime gives every model a thread for every CPU, so that stages wait for each other's threads: two stages of
resnet50 on two CPUs take 21.5 ms a frame, and 19.6 ms with one CPU each (measured, with onnxruntime 1.31).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rpcsys.graph._build.targets import OnnxRuntime, target_of
from rpcsys.graph._ir.stage import Stage, Stages
from rpcsys.module import Module


def shared(
    stages: Stages, targets: Mapping[str, Any], cpus: Mapping[str, Sequence[int]], replicas: Mapping[str, int]
) -> dict[str, Any]:
    """The target of each stage; those of onnxruntime with the CPUs and threads that the stage gets.

    Stages whose target names neither CPUs nor threads share the process's CPUs other than ``cpus``. If these CPUs are
    fewer than the replicas of such stages, each replica computes with one thread on any CPU.
    """
    chosen = dict(targets)
    counts = {stage.name: max(1, replicas.get(stage.name, 1)) for stage in stages}
    sharing = {}
    taken: set[int] = set()
    for stage in stages:
        target = _runtime(stage, targets.get(stage.name))
        if target is None:
            continue
        if stage.name in cpus:
            chosen[stage.name] = _on(target, tuple(cpus[stage.name]), counts[stage.name])
            taken.update(cpus[stage.name])
        elif target.threads is None and not target.cpus:
            sharing[stage.name] = target
        taken.update(target.cpus)
    free = sorted(available() - taken) or sorted(available())
    for name, share in shares({name: counts[name] for name in sharing}, free).items():
        chosen[name] = _on(sharing[name], share, counts[name])
    return chosen


def shares(replicas: Mapping[str, int], cpus: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Divide CPUs among stages, at least one for each replica, more for the first; none if there are too few."""
    runs = sum(replicas.values())
    if runs > len(cpus):
        return dict.fromkeys(replicas, ())
    found, end, number = {}, 0, 0
    for name, count in replicas.items():
        begin, number = end, number + count
        end = -(-number * len(cpus) // runs)
        found[name] = tuple(cpus[begin:end])
    return found


def available() -> set[int]:
    """The CPUs that this process may use; numbers from 0 if the system does not list them."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _runtime(stage: Stage, given: Any) -> OnnxRuntime | None:
    """The target, if onnxruntime is to run the stage on this machine's CPUs; else None."""
    if isinstance(given, Module) or callable(given):
        return None
    target = target_of(given or stage.target or "onnxruntime")
    return target if isinstance(target, OnnxRuntime) and target.provider == OnnxRuntime.provider else None


def _on(target: OnnxRuntime, cpus: tuple[int, ...], replicas: int) -> OnnxRuntime:
    """The target bound to these CPUs; without CPUs, one thread for each replica on any CPU."""
    threads = target.threads or max(1, len(cpus) // replicas)
    return replace(target, threads=threads, cpus=cpus if hasattr(os, "sched_setaffinity") else ())
