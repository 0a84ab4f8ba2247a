"""What equal requests have in common, and is made once: the CALL's head, and how its RESULT becomes an answer.

A request's arrays stay where they were received: its binary part, or the parts of it in the model's order, is the
CALL's body. Strings are another thing in rpcsys/1, and are copied; so is what comes in JSON or is in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rpcsys.gateway import json_arrays
from rpcsys.gateway.calls import CallForm, ModelView, Outcome, ResultForm, form_of
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.wire import frames
from rpcsys.wire.dtypes import count
from rpcsys.wire.frames import FrameTemplate
from rpcsys.wire.inference import DATATYPES, NAMES, WIDTHS, InferenceError, InferTensor, pack_bytes
from rpcsys.wire.inference_messages import raw_prefix, response_head
from rpcsys.wire.inference_requests import (
    BinarySpan,
    InferRequest,
    Region,
    RequestedOutput,
    bytes_of,
    match_inputs,
    match_outputs,
    response_to_json,
    strings_of,
)
from rpcsys.wire.memory import Pool
from rpcsys.wire.values import dump

#: Plans of one model that are remembered, and bytes of a request's head that is.
REMEMBERED, REMEMBERED_BYTES = 256, 2048


class PlannedInput(NamedTuple):
    """Where an input's data is: a ``part`` of the binary data, in ``region``, or it is ``data``, equal each time."""

    tensor: InferTensor
    part: int = -1
    region: Region | None = None
    data: bytes | None = None


class JsonAnswer(NamedTuple):
    """An answer over HTTP: its JSON, the arrays behind it (empty: it is JSON alone)."""

    content: bytes
    binary: Sequence[Any]


class KnownAnswer(NamedTuple):
    """What equal answers have in common: the ``head``, the places of the outputs, what stands before each of them."""

    form: ResultForm
    head: bytes
    places: Sequence[int]
    prefixes: Sequence[bytes]


class InferencePlan:
    """How a request for ``view`` becomes a call, and an outcome its answer.

    ``cuts``: where the parts of the binary part begin and end. Raises `InferenceError` for a request that ``view``
    cannot be asked.
    """

    def __init__(self, view: ModelView, request: InferRequest) -> None:
        self.view = view
        self.request = request._replace(inputs=[])  # their data in JSON are not kept
        expected = [InferTensor(each.name, NAMES[each.dtype], tuple(each.extents), None) for each in view.inputs]
        binary = [tensor for tensor in request.inputs if type(tensor.data) is BinarySpan]
        self.cuts = [(tensor.data.offset, tensor.data.offset + tensor.data.size) for tensor in binary]
        names = [tensor.name for tensor in binary]
        planned = {tensor.name: _planned(tensor, names) for tensor in request.inputs}
        matched = match_inputs(request, _without_unknown(expected, request))
        self.inputs = [planned[tensor.name] for tensor in matched]
        self.wanted = match_outputs(request, [output.name for output in view.outputs])
        self._plain_order = [each.part for each in self.inputs]
        self._form: CallForm | None = None
        if all(each.tensor.datatype != "BYTES" or each.data is not None for each in self.inputs):
            self._form = self._make_form([each.data for each in self.inputs])
        self._plain = self._form is not None and min(self._plain_order, default=0) >= 0
        self._simple = all(not wanted.classification and wanted.region is None for _, wanted in self.wanted)
        self._known: KnownAnswer | None = None

    def call(self, raw: Sequence[Any], shared: SharedMemory, pool: Pool) -> tuple[CallForm, Sequence[Any]]:
        """The form and the buffers of a call. ``raw``: the parts of the binary part, in the request's order.

        Raises `InferenceError` for data that is none of its input's.
        """
        if self._plain and self._form is not None:
            return self._form, [raw[index] for index in self._plain_order]
        buffers = [_data_of(each, raw, shared, pool) for each in self.inputs]
        return self._form or self._make_form(buffers), buffers

    def _make_form(self, buffers: Sequence[Any]) -> CallForm:
        """The form of a call with these buffers; only those of strings have to be there."""
        heads: list[dict[str, Any]] = []
        size = 0
        for index, (each, data) in enumerate(zip(self.inputs, buffers, strict=True)):
            datatype, shape = each.tensor.datatype, each.tensor.shape
            if datatype == "BYTES":
                heads.append({"@": "strings", "shape": list(shape), "size": len(data), "buffer": index})
                size += len(data)
            else:
                dtype = DATATYPES[datatype]
                heads.append({"@": "tensor", "dtype": dtype, "shape": list(shape), "buffer": index})
                size += count(shape) * WIDTHS[datatype]
        head = dump({"f": [self.view.target, "main"], "a": heads}).encode("ascii")
        template = FrameTemplate(frames.CALL, head, size)
        alone = any(each.part < 0 or each.tensor.datatype == "BYTES" for each in self.inputs)
        return form_of(template, [(DATATYPES[each.tensor.datatype], each.tensor.shape) for each in self.inputs], alone)

    # -------------------------------------------------------------- answers

    def to_json(self, outcome: Outcome, shared: SharedMemory) -> JsonAnswer:
        """The answer over HTTP. Raises `InferenceError` for outputs that have no such form."""
        form = _checked(outcome, self.view)
        known = self._known
        if known is not None and known.form is form:
            return JsonAnswer(known.head, [outcome.buffers[place] for place in known.places])
        tensors, binary = [], []
        at = 0
        for tensor, wanted in self._outputs(outcome, form, shared):
            if type(tensor.data) is not Region and wanted.binary:
                binary.append(tensor.data)
                tensor = tensor._replace(data=BinarySpan(at, len(tensor.data)))
                at += len(binary[-1])
            elif type(tensor.data) is not Region:
                data = json_arrays.to_json_data(tensor.datatype, tensor.data, f"output '{tensor.name}'")
                tensor = tensor._replace(data=data)
            tensors.append(tensor)
        request = self.request
        content = json_arrays.dumps(
            response_to_json(self.view.name, self.view.version, tensors, request.id, request.final)
        )
        if self._simple and len(binary) == len(tensors) and _numbers_alone(form):
            self._known = KnownAnswer(form, content, [place for place, _ in self.wanted], ())
        return JsonAnswer(content, binary)

    def to_message(self, outcome: Outcome, shared: SharedMemory) -> list[Any]:
        """The answer over gRPC, in pieces. Raises `InferenceError`."""
        form = _checked(outcome, self.view)
        known = self._known
        if known is None or known.form is not form:
            tensors = [tensor for tensor, _ in self._outputs(outcome, form, shared)]
            request = self.request
            head = response_head(self.view.name, self.view.version, tensors, request.id, request.final)
            raw = [b"" if type(tensor.data) is Region else tensor.data for tensor in tensors]
            prefixes = [raw_prefix(len(data)) for data in raw]
            if self._simple and _numbers_alone(form):
                self._known = KnownAnswer(form, head, [place for place, _ in self.wanted], prefixes)
        else:
            head, prefixes = known.head, list(known.prefixes)
            raw = [outcome.buffers[place] for place in known.places]
        pieces: list[Any] = [head]
        for before, data in zip(prefixes, raw, strict=True):
            pieces += (before, data)
        return pieces

    def _outputs(
        self, outcome: Outcome, form: ResultForm, shared: SharedMemory
    ) -> list[tuple[InferTensor, RequestedOutput]]:
        """The outputs that are wanted, as the protocol has them; those in shared memory are written."""
        made = []
        for place, wanted in self.wanted:
            dtype, shape = form.outputs[place]
            what = f"output '{wanted.name}'"
            datatype = NAMES.get(dtype)
            data: Any = outcome.buffers[place]
            if datatype is None:
                raise InferenceError(f"{what} is of type {dtype}, which the protocol does not have", 500)
            if datatype == "BYTES":
                data = bytes_of(data, count(shape))
            if wanted.classification:
                shape, texts = json_arrays.top_classes(datatype, shape, data, wanted.classification, what)
                datatype, data = "BYTES", pack_bytes(texts)
            if wanted.region is not None:
                shared.write(wanted.region, data, what)
                data = wanted.region._replace(size=len(data))
            made.append((InferTensor(wanted.name, datatype, shape, data), wanted))
        return made


def _without_unknown(expected: list[InferTensor], request: InferRequest) -> list[InferTensor]:
    """The model's inputs; one whose declared shape is not known has that which is given."""
    given = {tensor.name: tensor.shape for tensor in request.inputs}
    return [tensor if tensor.shape else tensor._replace(shape=given.get(tensor.name, ())) for tensor in expected]


def _planned(tensor: InferTensor, names: Sequence[str]) -> PlannedInput:
    """``names``: of the inputs in the binary part, in its order."""
    data = tensor.data
    if type(data) is BinarySpan:
        return PlannedInput(tensor, part=names.index(tensor.name))
    tensor = tensor._replace(data=None)
    if type(data) is Region:
        return PlannedInput(tensor, region=data)
    what = f"input '{tensor.name}'"
    if type(data) is list:
        data = json_arrays.to_bytes(tensor.datatype, data, what)
    elements = count(tensor.shape)
    if tensor.datatype == "BYTES":
        return PlannedInput(tensor, data=strings_of(data, elements, what))
    given = len(data) // WIDTHS[tensor.datatype]
    if given != elements:
        raise InferenceError(f"{what} has {given} elements, and its shape says {elements}")
    return PlannedInput(tensor, data=data)


def _data_of(planned: PlannedInput, raw: Sequence[Any], shared: SharedMemory, pool: Pool) -> Any:
    """The buffer of an input."""
    if planned.data is not None:
        return planned.data
    tensor, what = planned.tensor, f"input '{planned.tensor.name}'"
    data = raw[planned.part] if planned.region is None else shared.read(planned.region, pool, what)
    return strings_of(data, count(tensor.shape), what) if tensor.datatype == "BYTES" else data


def _checked(outcome: Outcome, view: ModelView) -> ResultForm:
    """The form of an answer with as many outputs as the model has. Raises `InferenceError`."""
    if outcome.error is not None:
        raise outcome.error
    form = outcome.form
    if form is None or len(form.outputs) != len(view.outputs):
        given = 0 if form is None else len(form.outputs)
        raise InferenceError(f"model '{view.name}' gave {given} outputs, and is to give {len(view.outputs)}", 500)
    return form


def _numbers_alone(form: ResultForm) -> bool:
    return all(dtype != "strings" for dtype, _ in form.outputs)


class PlanMemory:
    """The plans of requests, of a bounded number for each model, and of its current version only."""

    def __init__(self) -> None:
        self._plans: dict[str, tuple[ModelView, dict[Any, InferencePlan]]] = {}

    def get(self, view: ModelView, key: Any, size: int, make: Callable[[], InferRequest]) -> InferencePlan:
        """The plan of a request whose head is ``key``, ``size`` bytes; ``make`` reads it. Raises `InferenceError`."""
        known = self._plans.get(view.name)
        if known is None or known[0] is not view:
            known = self._plans[view.name] = view, {}
        plan = known[1].get(key)
        if plan is None:
            plan = InferencePlan(view, make())
            if size <= REMEMBERED_BYTES and plan.request.id is None:
                if len(known[1]) >= REMEMBERED:
                    known[1].clear()
                known[1][key] = plan
        return plan
