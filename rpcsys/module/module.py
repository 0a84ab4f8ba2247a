"""A module: functions by name, and the modules it imports. One module, with all below it, is a model."""

from __future__ import annotations

import threading
from typing import Any, Callable, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError

Function = Callable[..., Any]
_NAMED = 20  # functions that a message names


class Module:
    """One node of a tree of modules; two may import the same third.

    ``module["name"]`` is a function of this module or, where it has none of that name, of what it imports, in
    order. Calling the module runs ``main``. A context manager, which closes it.
    """

    #: Functions that are methods, by name. A module does not hold these, or it would hold itself: dropped, it is gone
    #: at once, with the memory of a network.
    METHODS: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        kind: str,
        functions: Optional[Mapping[str, Function]] = None,
        imports: Iterable[Module] = (),
        *,
        inputs: Sequence[Dict[str, Any]] = (),
        outputs: Sequence[Dict[str, Any]] = (),
    ) -> None:
        self.kind = kind  # what saves and loads it (``"rpcsys.onnx"``)
        self.imports: Tuple[Module, ...] = tuple(imports)
        #: Of its own ``main``, where known: dicts with name, dtype and shape (a free extent is its name or None).
        self.inputs: List[Dict[str, Any]] = list(inputs)
        self.outputs: List[Dict[str, Any]] = list(outputs)
        self._functions: Dict[str, Function] = dict(functions or {})
        self._closed = False

    def __repr__(self) -> str:
        return "<module {} ({})>".format(self.kind, ", ".join(self.functions[:_NAMED]))

    @property
    def functions(self) -> List[str]:
        """The names that can be asked for: its own functions, then those of what it imports."""
        names = {name: None for module in walk(self) for name in module.names()}
        return list(names)

    def names(self) -> List[str]:
        """Names of its own functions."""
        return [*self.METHODS, *self._functions]

    def own(self, name: str) -> Optional[Function]:
        """Its own function ``name``, or None."""
        method = self.METHODS.get(name)
        return self._functions.get(name) if method is None else getattr(self, method)

    def function(self, name: str) -> Function:
        """The function ``name``, of this module or of what it imports. Raises `RemoteFunctionError`."""
        found = None if self._closed else self.own(name)
        if found is None:
            found = self._of(name).own(name)
        assert found is not None
        return found

    __getitem__ = function

    def __call__(self, *args: Any) -> Any:
        """Run ``main``. One output is the array, several are a tuple."""
        return self.function("main")(*args)

    def run(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Run ``main`` by names: the wanted outputs, all if None.

        Outputs without names are ``output``, or ``output0``, ``output1``, … Raises `RemoteArgumentError` for names
        it does not have, and where no names are known.
        """
        return self._of("main").run_main(inputs, outputs)

    def run_main(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """`run` of its own ``main``."""
        main = self.own("main")
        assert main is not None
        result = main(*self._by_place(inputs))
        several = isinstance(result, (tuple, list))
        results = list(result) if several else [result]
        names = [value["name"] for value in self.outputs]
        if len(names) != len(results):
            names = [f"output{place}" for place in range(len(results))] if several else ["output"]
        named = dict(zip(names, results))
        for name in outputs or ():
            if name not in named:
                raise RemoteArgumentError("main has no output {!r}; it has {}".format(name, ", ".join(named)))
        return {name: named[name] for name in (named if outputs is None else outputs)}

    def _by_place(self, inputs: Mapping[str, Any]) -> List[Any]:
        names = [value["name"] for value in self.inputs]
        if not names:
            how = 'call it from Python: model["NAME"](x, rpcsys.empty(shape, dtype))'
            raise RemoteArgumentError(f"a native function takes its arguments by place, not by name; {how}")
        if sorted(names) != sorted(inputs):
            got = ", ".join(inputs) or "nothing"
            raise RemoteArgumentError("main takes {}, and got {}".format(", ".join(names), got))
        return [inputs[name] for name in names]

    def _of(self, name: str) -> Module:
        """The module that the function ``name`` belongs to. Raises `RemoteFunctionError`."""
        self.check_open()
        for module in walk(self):
            if module.own(name) is not None:
                return module
        known = self.functions
        has = ", ".join(known[:_NAMED]) + (", …" if len(known) > _NAMED else "")
        raise RemoteFunctionError("the module has no function {!r}; it has {}".format(name[:200], has or "none"))

    def check_open(self) -> None:
        """Raise `RemoteFunctionError` after `close`."""
        if self._closed:
            raise RemoteFunctionError("the module was closed; load it anew")

    def describe(self) -> Dict[str, Any]:
        """What a client is told of it: kind, functions, and the inputs and outputs of ``main``."""
        functions = self.functions
        main = self._of("main") if "main" in functions else self
        return {"kind": self.kind, "functions": functions, "inputs": main.inputs, "outputs": main.outputs}

    def attach(self, imports: Iterable[Module]) -> None:
        """Import these modules, in the place of any others."""
        self.imports = tuple(imports)

    def link(self) -> None:
        """Called once all that this one imports is there and linked; a kind that needs its imports takes them here."""

    def close(self) -> None:
        """Let go of what this module and all it imports hold: mappings, connections. Twice does no harm."""
        for module in walk(self):
            if not module._closed:
                module._closed = True
                module.release()

    def release(self) -> None:
        """Let go of what this module itself holds. A kind that holds something says here how."""
        self._functions = {}

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def walk(root: Module) -> Iterator[Module]:
    """Every module of the tree once: the root, then each import in order with all that is below it."""
    seen = set()
    todo = [root]
    while todo:
        module = todo.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            todo.extend(reversed(module.imports))


class _Process:
    threads: Optional[int] = None  # what one call may compute with, where nothing else is said; None for all there is


class _RunningCall(threading.local):
    stops: Optional[List[Callable[[], None]]] = None  # what stops the call of this thread; None where nobody would


process = _Process()
running_call = _RunningCall()
