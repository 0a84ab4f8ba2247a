"""Stages: parts of a model, each a model of its own, and the tensors that cross between them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import onnx_ir as ir

from rpcsys import notebook
from rpcsys.errors import UsageError, there_are
from rpcsys.graph._ir import models
from rpcsys.graph._ir.tensor_info import TensorInfo

TensorSpec: TypeAlias = dict[str, Any]  # a tensor in modules' form: name, dtype, and shape if known


@dataclass(frozen=True)
class Stage:
    """A part of a model, as a model with named inputs and outputs."""

    name: str  # unique among the stages, such as ``"stage0"`` or ``"region"``
    model: ir.Model = field(repr=False)  # weights that lie in files stay there
    #: What it takes and gives: tensors of the whole model first, in its order, then tensors between stages.
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    needs: tuple[str, ...] = ()  # names of the stages that make its inputs
    target: str = ""  # the target in the model's annotation, if any
    exact: bool = False  # whether onnxruntime must run it as it is (level ``off``), to give the same bits as the whole

    @property
    def weight_bytes(self) -> int:
        """Size of its weights in bytes."""
        return models.weight_bytes(self.model)

    def to_bytes(self) -> bytes:
        """The serialised model, weights inside. Raises `UsageError` if the weights exceed one gigabyte."""
        return models.to_bytes(self.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stage as an ``.onnx`` file; weights from one gigabyte on go into ``PATH.data``."""
        models.save(self.model, path)


@dataclass(frozen=True)
class Crossing:
    """A tensor that goes from one stage to others. ``source`` is "" for an input of the whole model; a "" in
    ``targets`` is an output of the whole model.
    """

    tensor: TensorInfo
    source: str
    targets: tuple[str, ...]


class Stages(Sequence[Stage]):
    """The stages of one model, in an order in which they can run; ``inputs`` and ``outputs`` are the whole model's.

    ``exact``: the stages together give the same bits as the whole.
    """

    def __init__(
        self, stages: Iterable[Stage], inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo], *,
        exact: bool = False,
    ) -> None:  # fmt: skip
        self._stages = tuple(stages)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.exact = exact

    def __len__(self) -> int:
        return len(self._stages)

    @overload
    def __getitem__(self, key: int | str) -> Stage: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Stage, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Stage | tuple[Stage, ...]:
        """A stage by its place or its name."""
        if not isinstance(key, str):
            return self._stages[key]
        for stage in self._stages:
            if stage.name == key:
                return stage
        raise UsageError(f"no stage {key!r}; {there_are(stage.name for stage in self)}")

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __repr__(self) -> str:
        return f"Stages({', '.join(stage.name for stage in self)})"

    def _repr_html_(self) -> str:
        rows = [
            [each.name, each.target, sum(1 for _ in each.model.graph), f"{each.weight_bytes:,}", ", ".join(each.needs),
             *(", ".join(f"{tensor.name} {tensor.text()}" for tensor in way) for way in (each.inputs, each.outputs))]
            for each in self
        ]  # fmt: skip
        head = ["stage", "target", "nodes", "bytes of weights", "needs", "takes", "gives"]
        return notebook.block(f"{len(self)} stages", notebook.table(head, rows))

    def source(self, tensor: str) -> str:
        """The name of the stage that makes ``tensor``; "" for an input of the model. Raises `UsageError` otherwise."""
        for name, made in self._made():
            if made.name == tensor:
                return name
        raise UsageError(f"no stage makes a tensor {tensor!r} that others can take")

    def _made(self) -> Iterator[tuple[str, TensorInfo]]:
        """Every tensor with its source, in the order in which they are made."""
        yield from (("", tensor) for tensor in self.inputs)
        yield from ((stage.name, tensor) for stage in self for tensor in stage.outputs)

    def crossings(self) -> list[Crossing]:
        """Every tensor between stages, and the model's inputs and outputs, in the order in which they are made."""
        results = {tensor.name for tensor in self.outputs}
        found = []
        for source, tensor in self._made():
            takers = [stage.name for stage in self if any(i.name == tensor.name for i in stage.inputs)]
            found.append(Crossing(tensor, source, (*takers, *([""] if tensor.name in results else []))))
        return found

    def part(self, stages: Sequence[Stage]) -> Stages:
        """Some of the stages as a whole of their own, which gives what is needed outside of it."""
        made = {tensor.name for stage in stages for tensor in stage.outputs}
        taken = {tensor.name: tensor for stage in stages for tensor in stage.inputs if tensor.name not in made}
        others = [stage for stage in self if stage not in stages]
        wanted = {tensor.name for tensor in [*self.outputs, *(each for stage in others for each in stage.inputs)]}
        given = [tensor for stage in stages for tensor in stage.outputs if tensor.name in wanted]
        return Stages(stages, taken.values(), given, exact=self.exact)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write every stage into ``folder`` as ``NAME.onnx``; returns the files in the stages' order."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        paths = [Path(folder, f"{stage.name}.onnx") for stage in self]
        for stage, path in zip(self, paths, strict=True):
            stage.save(path)
        return paths


class Signature(NamedTuple):
    """The inputs and outputs of a stage; inputs with a default are left out."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]


def signature_of(stage: Stage) -> Signature:
    inputs = [tensor_spec(tensor) for tensor in stage.inputs if tensor.required]
    return Signature(inputs, [tensor_spec(tensor) for tensor in stage.outputs])


def tensor_spec(tensor: TensorInfo) -> TensorSpec:
    """A tensor in modules' form."""
    value: TensorSpec = {"name": tensor.name, "dtype": tensor.dtype}
    if tensor.shape is not None:
        value["shape"] = list(tensor.shape)
    return value


def check_by_stage(what: str, given: Any, example: str) -> None:
    """Raise `UsageError` unless ``given`` is a mapping, as one by the names of stages is."""
    if not isinstance(given, Mapping):
        how = f"such as {{'stage0': {example}}}"
        raise UsageError(f"{what} are given by the names of stages, {how}, not as {type(given).__name__}")
