"""A module: functions by name, and the modules it imports. One module with all modules below it is a model."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from rpcsys.errors import ModelError, ProfileNotSupported, RemoteArgumentError, RemoteFunctionError
from rpcsys.module.profiler import Profiler
from rpcsys.wire.by_name import inputs_by_name, output_names
from rpcsys.wire.device_names import CPU, parse

Function = Callable[..., Any]
_NAMED = 20  # functions that a message names


class Module:
    """One node of a tree of modules; two modules may import the same third one.

    ``module["name"]`` is a function of this module or, if it has none of that name, of the modules it imports, in
    order. Calling the module runs ``main``. It is a context manager that closes the module.
    """

    #: Where its functions run, such as ``"opencl:0"``; "" on the CPU, in the thread that calls.
    device = ""
    #: Functions that are methods, by name. A module does not store bound methods, since these would refer to it: so its
    #: memory is freed at once when the last reference to it is dropped.
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
        self.kind = kind  # selects the code that saves and loads it (``"rpcsys.onnx"``)
        self.imports: Tuple[Module, ...] = tuple(imports)
        #: Of its own ``main``, if known: dicts with name, dtype and shape (a free extent is its name or None).
        self.inputs: List[Dict[str, Any]] = list(inputs)
        self.outputs: List[Dict[str, Any]] = list(outputs)
        self._functions: Dict[str, Function] = dict(functions or {})
        self._closed = False

    def __repr__(self) -> str:
        return "<module {} ({})>".format(self.kind, ", ".join(self.functions[:_NAMED]))

    @property
    def functions(self) -> List[str]:
        """All names of functions: its own, then those of the modules it imports."""
        names = {name: None for module in walk(self) for name in module.names()}
        return list(names)

    @property
    def devices(self) -> Tuple[str, ...]:
        """The devices on which its functions run, and those of the modules it imports; none for the CPU alone."""
        return tuple(dict.fromkeys(module.device for module in walk(self) if module.device))

    def names(self) -> List[str]:
        """Names of its own functions."""
        return [*self.METHODS, *self._functions]

    def own(self, name: str) -> Optional[Function]:
        """Its own function ``name``, or None."""
        method = self.METHODS.get(name)
        return self._functions.get(name) if method is None else getattr(self, method)

    def function(self, name: str) -> Function:
        """The function ``name``, of this module or of those it imports. Raises `RemoteFunctionError`."""
        found = None if self._closed else self.own(name)
        if found is None:
            found = self._of(name).own(name)
        assert found is not None
        return found

    __getitem__ = function

    def __call__(self, *args: Any) -> Any:
        """Run ``main``. It returns an array for one output, a tuple for several."""
        return self.function("main")(*args)

    def profiler(self, name: str, folder: str) -> Profiler:
        """The function ``name``, opened once more with its runtime's profiler, which may use a ``folder`` for files.

        Raises `ProfileNotSupported`, and what opening a model raises.
        """
        return self._of(name).own_profiler(name, folder)

    def own_profiler(self, name: str, folder: str) -> Profiler:
        """`profiler` of its own function ``name``. A kind whose runtime has a profiler overrides this."""
        raise ProfileNotSupported(f"a module of kind {self.kind} tells no times of operators; time it whole instead")

    def run(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Run ``main`` by names; returns the wanted ``outputs`` (names, or one), all if None.

        Outputs without names are ``output``, or ``output0``, ``output1``, … Raises `RemoteArgumentError` for unknown
        names, for inputs without names, and if the module has no names.
        """
        main = self._of("main")
        return main.run_main(inputs_by_name(inputs, main.inputs), output_names(outputs))

    def run_main(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """`run` of its own ``main``."""
        main = self.own("main")
        assert main is not None
        result = main(*self._by_place(inputs))
        names = [value["name"] for value in self.outputs]
        several = isinstance(result, tuple) or (isinstance(result, list) and len(names) != 1)  # one list: a sequence
        results = list(result) if several else [result]
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
        """The module that defines the function ``name``. Raises `RemoteFunctionError`."""
        self.check_open()
        for module in walk(self):
            if module.own(name) is not None:
                return module
        known = self.functions
        has = ", ".join(known[:_NAMED]) + (", …" if len(known) > _NAMED else "")
        raise RemoteFunctionError("the module has no function {!r}; it has {}".format(str(name)[:200], has or "none"))

    def check_open(self) -> None:
        """Raise `RemoteFunctionError` after `close`."""
        if self._closed:
            raise RemoteFunctionError("the module was closed; load it again")

    def describe(self) -> Dict[str, Any]:
        """The module's description for a client: kind, functions, and the inputs and outputs of ``main``."""
        functions = self.functions
        main = self._of("main") if "main" in functions else self
        return {"kind": self.kind, "functions": functions, "inputs": main.inputs, "outputs": main.outputs}

    def attach(self, imports: Iterable[Module]) -> None:
        """Import these modules, instead of any others."""
        self.imports = tuple(imports)

    def place(self, device: str) -> None:
        """Run on ``device``, with all modules that it imports; called after `attach` and before `link`.

        A kind that runs on more than the CPU overrides this. Raises `ModelError` for a device that it cannot run on.
        """
        if self.names() and parse(device) != CPU:
            raise ModelError(f"a module of kind {self.kind} runs on the CPU alone, not on {device}")
        for module in self.imports:
            module.place(device)

    def use_threads(self, threads: int) -> bool:
        """Run each call in so many threads, with all modules that it imports; called as `place` is.

        A kind with such a setting overrides this. Returns whether this module, or one that it imports, has one.
        """
        told = [module.use_threads(threads) for module in self.imports]  # all of them
        return any(told)

    def link(self) -> None:
        """Called when all imports are attached and linked; a kind that needs its imports reads them here."""

    def close(self) -> None:
        """Release the mappings and connections of this module and of all it imports. A second call does nothing."""
        for module in walk(self):
            if not module._closed:
                module._closed = True
                module.release()

    def release(self) -> None:
        """Release the resources of this module alone. A kind with resources overrides this."""
        self._functions = {}

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def walk(root: Module) -> Iterator[Module]:
    """Every module of the tree once: the root, then each import in order with all modules below it."""
    seen = set()
    todo = [root]
    while todo:
        module = todo.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            todo.extend(reversed(module.imports))


class _Process:
    threads: Optional[int] = None  # default number of threads of one call; None for one per CPU


class _RunningCall(threading.local):
    #: Functions that stop this thread's call, called by other threads; None where nobody would call them. Each part of
    #: a call that can be stopped adds its own, and removes it at its end.
    stops: Optional[List[Callable[[], None]]] = None
    #: The call's number among those of its session, by which devices order calls, and its place in the queue of the
    #: first one, where it has one already (`rpcsys.module.placement`).
    order: Optional[int] = None
    turn: Any = None

    @contextlib.contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Inside the ``with``, ``stop`` stops this thread's call."""
        if self.stops is None:
            yield
            return
        self.stops.append(stop)
        try:
            yield
        finally:
            self.stops.remove(stop)


process = _Process()
running_call = _RunningCall()
