"""What passes between the clients' side of a gateway and its models: calls, their outcomes, and what a model is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from rpcsys.wire.frames import FrameTemplate
from rpcsys.wire.inference import InferenceError

#: The fixed extents behind the first, and the dtypes, of all inputs of a call.
Others = tuple[tuple[str, tuple[int, ...]], ...]


class CallForm:
    """What equal requests have in common, made once for all of them.

    ``template``: header and head of the CALL for one request alone. ``rows``: its extent of the batch, 1 where the
    model has none. ``others``: what has to be equal in calls of one batch; None for a call that goes alone.
    """

    __slots__ = ("others", "rows", "template")

    def __init__(self, template: FrameTemplate, rows: int = 1, others: Others | None = None) -> None:
        self.template = template
        self.rows = rows
        self.others = others


def form_of(template: FrameTemplate, inputs: Sequence[tuple[str, Sequence[int]]], alone: bool = False) -> CallForm:
    """The form of calls with ``template``, whose arrays have these dtypes and shapes, in the model's order.

    ``alone``: whether such a call never joins a batch (strings, arrays made from JSON or in shared memory). Neither
    does one whose arrays do not share their first extent.
    """
    rows = {shape[0] if shape else None for _, shape in inputs}
    if len(rows) != 1 or None in rows:
        return CallForm(template)
    count = next(iter(rows)) or 0
    others = tuple((dtype, tuple(shape[1:])) for dtype, shape in inputs)
    return CallForm(template, count, None if alone or not count else others)


class CallStage(Enum):
    """How far a call is. A call whose replica is lost, or whose batch failed, waits again."""

    NEW = auto()
    WAITING = auto()
    UNDER_WAY = auto()
    FINISHED = auto()


class InferenceCall:
    """One request for a model. `GatewayState.submit` takes it; its outcome comes once, by ``done``.

    ``buffers``: flat, one for each of the model's inputs and in their order, `CallForm.template.body_bytes` in all;
    dropped when the call finishes. ``client``: who takes turns with others, any value that is equal for one connection.
    ``priority``: 1 comes first, 0 is not said and comes last. ``deadline``: in seconds of the monotonic clock; None
    for none. ``done(outcome)`` is called in the loop, once, unless the call is given up; it must not refer to the call.
    """

    __slots__ = (
        *("alone", "began", "buffers", "client", "deadline", "done", "form", "load", "model"),
        *("priority", "returned", "stage", "tries"),
    )

    def __init__(
        self,
        form: CallForm,
        buffers: Sequence[Any],
        done: Callable[[Outcome], None],
        client: Hashable = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> None:
        self.form = form
        self.buffers = buffers
        self.done: Callable[[Outcome], None] | None = done
        self.client = client
        self.priority = priority
        self.deadline = deadline
        # The state's own:
        self.stage = CallStage.NEW
        self.model: Any = None
        self.load: Any = None  # the frame in which it is under way
        self.alone = form.others is None
        self.began = 0.0
        self.returned = False  # whether it was under way already
        self.tries = 0  # replicas that were lost while it was under way


class ResultForm:
    """What equal answers have in common: the dtype and shape of each output, in the model's order.

    Equal answers share one form as long as it is remembered, so that it can be a key of what is derived from it.
    """

    __slots__ = ("__weakref__", "outputs", "slices")

    def __init__(self, outputs: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        self.outputs = outputs
        self.slices: dict[int, ResultForm] = {}  # of so many rows of it


class Outcome:
    """How a call ended: with ``error``; or with a ``form`` and as many buffers, as rpcsys/1 has them, flat.

    The number, dtypes and shapes of the outputs are what the function gave, whatever the model's view says of them.
    ``compute_us``: what the function took, in microseconds; 0 where the host does not say it.
    """

    __slots__ = ("buffers", "compute_us", "error", "form")

    def __init__(
        self,
        form: ResultForm | None,
        buffers: Sequence[memoryview] = (),
        compute_us: int = 0,
        error: InferenceError | None = None,
    ) -> None:
        self.form = form
        self.buffers = buffers
        self.compute_us = compute_us
        self.error = error


def failed(error: InferenceError) -> Outcome:
    """The outcome of a call that ends with ``error``."""
    return Outcome(None, error=error)


class DeclaredTensor(NamedTuple):
    """An input or output of a model. ``dtype``: rpcsys's; ``shape``: a free extent is a name or None.

    An empty shape is a scalar's, or is not known: a call is then not checked against it.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    @property
    def extents(self) -> list[int]:
        """The shape as the protocol has it: -1 for a free extent."""
        return [extent if type(extent) is int else -1 for extent in self.shape]


class Batching(NamedTuple):
    """How calls of a model are joined: ``rows`` at most, after waiting ``delay_us`` at most while a worker is free."""

    rows: int
    delay_us: int = 0


class ModelView(NamedTuple):
    """A model as clients see it. A view never changes: a new version, or a loss, is a new view.

    ``version``: the deployment's number without zeros (``"3"``); ``whole_version``: its name (``"0003-1f2e3d4c5b6a"``).
    ``target``: the model's object in the ``f`` of a CALL, ``[target, "main"]``. ``batching``: None where each call goes
    alone. ``reason``: why it takes no calls; "" where it does.
    """

    name: str
    version: str = ""
    whole_version: str = ""
    kind: str = ""
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    target: int = 0
    batching: Batching | None = None
    reason: str = ""

    @property
    def platform(self) -> str:
        """What runs it, in the protocol's words."""
        kind = self.kind.rpartition(".")[2]
        return "onnxruntime_onnx" if kind == "onnx" else f"rpcsys_{kind or 'module'}"

    @property
    def ready(self) -> bool:
        """Whether it takes calls."""
        return not self.reason

    @property
    def state(self) -> str:
        """Its state in the repository's index."""
        return "READY" if self.ready else "UNAVAILABLE"
