"""A model of which a part runs on a server: the module for the device, and those to deploy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rpcsys.errors import UsageError
from rpcsys.graph._build.build import build
from rpcsys.graph._build.codec import Codec
from rpcsys.graph._build.targets import Remote, Target
from rpcsys.graph._ir.stage import Stages, signature_of
from rpcsys.module import Module


@dataclass(frozen=True)
class Offload:
    """The two sides of a model.

    Attributes
    ----------
    device : runs the whole: its own stages here, the others by calls, one round trip each
    parts : what is deployed for each of the others, by the stage's name
    """

    device: Module
    parts: Mapping[str, Module]


def offload(
    stages: Stages, targets: Mapping[str, Target | str | Module], served: Target | str = "onnxruntime"
) -> Offload:
    """Build both sides of a model, for `rpcsys.module.export_library`.

    ``targets`` are as for `build`, and `Remote` for each stage that runs on a server; ``served`` is what those are
    built for. A part can be built and deployed anew at any time, from other weights say: the device only knows what
    it is called.

    A part whose tensors no pair of functions encodes may be deployed as it is, too (`Stage.save`): the server builds
    it then for what it has.

    Raises `UsageError` as `build` does, and where no stage is remote.
    """
    remotes = {name: target for name, target in targets.items() if isinstance(target, Remote)}
    if not remotes:
        raise UsageError("no stage is for a server; give one graph.Remote(...) as its target")
    device = build(stages, targets)
    parts = {
        name: Codec(remote, signature_of(stages[name])).there(name, build(stages[name], served))
        for name, remote in remotes.items()
    }
    return Offload(device, parts)
