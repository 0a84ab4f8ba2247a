"""Writes a tree of modules as the pieces of a blob, and loads a tree from one."""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence

from rpcsys.errors import ModelError, UsageError
from rpcsys.module import registry
from rpcsys.module.formats import how_to_install
from rpcsys.module.layout import LIBRARY, Buffer, FormatError, Record, encode, in_order
from rpcsys.module.module import Module, walk
from rpcsys.module.registry import Context

#: Why a file is not loaded with a number of threads; follows its name.
NO_THREADS = (
    "has no number of threads to set: models that onnxruntime, OpenVINO, LiteRT or IREE run have one (for TVM's code "
    "set TVM_NUM_THREADS where its server starts); leave the threads out"
)


class CarriedModule(Module):
    """A module of a kind that TVM alone loads, as its bytes, to be exported."""

    def __init__(self, kind: str, data: Buffer, imports: Iterable[Module] = ()) -> None:
        super().__init__(kind, imports=imports)
        self.data = data


def save(root: Module) -> List[Buffer]:
    """The tree's blob, in pieces. Raises `UsageError` for modules that cannot be saved, and for circular imports."""
    modules = list(walk(root))
    numbers = {id(module): number for number, module in enumerate(modules)}
    nodes = [(module.kind, tuple(numbers[id(child)] for child in module.imports)) for module in modules]
    try:
        in_order([Record(*node) for node in nodes])
    except FormatError:
        raise UsageError("the modules import each other in a circle; a tree of modules has none") from None
    kinds: Dict[str, registry.Kind] = {}
    for kind in {module.kind for module in modules if not isinstance(module, CarriedModule)} - {LIBRARY}:
        try:
            kinds[kind] = registry.find(kind)
        except FormatError:
            known = ", ".join(registry.known())
            raise UsageError(f"nothing here saves a module of kind {kind!r}; known are {known}") from None

    def saved(number: int, offset: int) -> Sequence[Buffer]:
        module = modules[number]
        return [module.data] if isinstance(module, CarriedModule) else kinds[module.kind].save_to_bytes(module, offset)

    return encode(nodes, saved)


def load(records: Sequence[Record], context: Context) -> Module:
    """Load a tree, attached and linked; returns its root. Raises `ModelError`, in one line, and closes all modules."""
    made: List[Module] = []
    kind = ""
    try:
        for record in records:
            kind = record.kind
            if record.data is None:
                made.append(context.library())
            else:
                made.append(registry.find(kind).load_from_bytes(record.data, context))
        order = list(in_order(records))
        for number in order:  # what a module places on a device has its own imports by then
            made[number].attach(made[each] for each in records[number].imports)
        kind = made[0].kind
        if context.device:
            made[0].place(context.device)
        if context.threads and not made[0].use_threads(context.threads):
            raise ModelError(f"{context.name} {NO_THREADS}")
        for number in order:
            kind = made[number].kind
            made[number].link()
    except Exception as error:  # noqa: BLE001 - a kind's loader may be another package's
        for module in made:
            module.close()
        raise _model_error(error, kind, context.name) from None
    return made[0]


def _model_error(error: Exception, kind: str, name: str) -> ModelError:
    if isinstance(error, ModelError):
        return error
    if isinstance(error, FormatError):
        text = f"{name} {error}"
    elif isinstance(error, ImportError) and registry.needs(kind):
        needs = registry.needs(kind)
        text = f"{name} holds a module of kind {kind!r}, which needs {' and '.join(needs)} here ({error}); "
        text += how_to_install(kind) or "type: python3 -m pip install " + " ".join(needs)
    else:
        said = " ".join(str(error).split())[:400] or type(error).__name__
        text = f"{name} cannot be loaded: its module of kind {kind!r} says: {said}"
    return ModelError(text)
