"""Measures encodings of the tensors that cross: bytes, seconds and loss, for one frame and without a server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rpcsys import notebook
from rpcsys.errors import UsageError
from rpcsys.graph._build.build import build
from rpcsys.graph._build.codec import Codec, CoderPair
from rpcsys.graph._build.targets import Remote
from rpcsys.graph._ir.stage import Stages, signature_of
from rpcsys.graph._plan.bench import timed
from rpcsys.graph._show.show import ms_text, size_text, table
from rpcsys.wire import encoding
from rpcsys.wire.by_name import not_by_name
from rpcsys.wire.tensor import as_tensor

Values = dict[str, Any]


@dataclass(frozen=True)
class Weight:
    """The effect of encoding on one tensor."""

    tensor: str
    stage: str  # the offloaded stage that takes or gives it
    there: bool  # whether it goes to the server; otherwise it comes from there
    how: str  # its encoding; "" for none, "pair" for a pair of functions or modules
    bytes: int  # before encoding
    sent: int  # after encoding
    encode_s: float = 0.0
    decode_s: float = 0.0
    loss: float = 0.0  # the largest error, as a share of the largest value; NaN if that is undefined


@dataclass(frozen=True)
class Weighed:
    """The effect of encoding on one frame. As text, a table."""

    tensors: tuple[Weight, ...]  # all that cross, in order
    outputs: Mapping[str, float]  # the loss of each output of the whole, as `Weight.loss`

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """The heads and rows of two tables: of the tensors, and of the outputs."""
        rows = []
        for weight in self.tensors:
            crosses = f"{'to' if weight.there else 'from'} {weight.stage}"
            sizes = [size_text(weight.bytes), size_text(weight.sent)]
            times = [ms_text(weight.encode_s), ms_text(weight.decode_s)]
            rows.append([weight.tensor, crosses, weight.how or "-", *sizes, *times, _share(weight.loss)])
        head = ["TENSOR", "CROSSES", "ENCODING", "BYTES", "SENT", "ENCODE", "DECODE", "LOSS"]
        outputs = [[name, _share(loss)] for name, loss in self.outputs.items()]
        return [(head, rows), (["OUTPUT", "LOSS"], outputs)]

    def __str__(self) -> str:
        return "\n".join(table(*each) for each in self._tables())

    def _repr_html_(self) -> str:
        return notebook.block("what encoding does to a frame", *(notebook.table(*each) for each in self._tables()))


def weigh(stages: Stages, remotes: Mapping[str, Remote], frame: Mapping[str, Any], *, repeat: int = 3) -> Weighed:
    """Run one frame here; encode and decode the tensors of the stages in ``remotes`` by their ``encode``.

    ``frame`` has the inputs of the whole by name; times are the best of ``repeat``. A second run without encoding gives
    the loss. Raises `UsageError` for unknown stages and tensors, and for a frame without names.
    """
    if complaint := not_by_name(frame, (tensor.name for tensor in stages.inputs)):
        raise UsageError(complaint)
    missing = [tensor.name for tensor in stages.inputs if tensor.required and tensor.name not in frame]
    if missing or repeat < 1:
        raise UsageError(f"a frame has all inputs; it lacks {', '.join(missing)}" if missing else "repeat is 1 or more")
    for name in remotes:
        stages[name]
    exact, crossed, weights = dict(frame), dict(frame), []
    for stage in stages:
        signature = signature_of(stage)
        codec = Codec(remotes.get(stage.name, Remote()), signature)
        with build(stage) as module:
            names = [value["name"] for value in signature.inputs]
            given = {name: crossed[name] for name in names}
            if stage.name in remotes:
                weights += _crossing(codec, given, stage.name, repeat, there=True)
            made = module.run(given)
            if stage.name in remotes:
                weights += _crossing(codec, made, stage.name, repeat, there=False)
            crossed.update(made)
            exact.update(module.run({name: exact[name] for name in names}))
    outputs = {tensor.name: _loss(exact[tensor.name], crossed[tensor.name]) for tensor in stages.outputs}
    return Weighed(tuple(weights), outputs)


def _crossing(codec: Codec, values: Values, stage: str, repeat: int, *, there: bool) -> list[Weight]:
    """Replace each of ``values`` by its decoded value."""
    weights = []
    for name, value in values.items():
        size = int(getattr(value, "nbytes", 0))
        weight = Weight(name, stage, there, codec.ways.get(name, ""), size, size)
        if name in codec.ways:
            weight, values[name] = _by_wire(weight, value, repeat)
        elif name in codec.pairs:
            weight, values[name] = _by_pair(weight, value, codec.pairs[name], repeat)
        weights.append(weight)
    return weights


def _by_wire(weight: Weight, value: Any, repeat: int) -> tuple[Weight, Any]:
    encode_s, sent = timed(lambda: encoding.encode(value, weight.how, weight.tensor), repeat)
    if not isinstance(sent, encoding.Encoded):
        return replace(weight, encode_s=encode_s), value
    decode_s, tensor = timed(lambda: encoding.decode(sent), repeat)
    came = tensor.numpy().copy()
    loss = _loss(value, came)
    return replace(weight, sent=len(sent.data), encode_s=encode_s, decode_s=decode_s, loss=loss), came


def _by_pair(weight: Weight, value: Any, pair: CoderPair, repeat: int) -> tuple[Weight, Any]:
    encode_s, sent = timed(lambda: pair.encode(value), repeat)
    decode_s, came = timed(lambda: pair.decode(sent), repeat)
    size = int(sent.nbytes) if hasattr(sent, "nbytes") else len(sent)
    loss = _loss(value, came)
    return replace(weight, how="pair", sent=size, encode_s=encode_s, decode_s=decode_s, loss=loss), came


def _loss(exact: Any, came: Any) -> float:
    try:
        wanted, have = np.asarray(exact, "f8"), np.asarray(came, "f8")
    except (TypeError, ValueError):  # strings, sequences, maps
        return 0.0 if _equal(exact, came) else math.nan
    if wanted.shape != have.shape:
        return math.nan
    if np.array_equal(wanted, have, equal_nan=True):
        return 0.0
    peak = float(np.max(np.abs(wanted)))
    return float(np.max(np.abs(wanted - have))) / peak if peak else math.inf


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    this, that = as_tensor(one), as_tensor(other)
    if this is None or that is None:
        return bool(one == other)
    return (this.dtype, this.shape) == (that.dtype, that.shape) and np.array_equal(this.data, that.data)


def _share(loss: float) -> str:
    return "none" if loss == 0 else "?" if math.isnan(loss) else f"{loss:.2e}"
