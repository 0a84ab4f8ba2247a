"""Profiles of Relax programs: TVM's virtual machine says each function that it calls, and when that returns.

These are kernels, the machine's own functions (``vm.builtin.…``), and functions of the program.
"""

from __future__ import annotations

import re
import threading
import time
from typing import Any, Callable, Dict, List, Tuple

from rpcsys.errors import ProfileNotSupported
from rpcsys.ffi import device_arrays
from rpcsys.ffi.tvm import VirtualMachine
from rpcsys.module.kinds.native_call import adapted
from rpcsys.module.profiler import MAX_OPERATORS, OperatorRun, Profiler, check_count

RUNTIME = "TVM's virtual machine"
_NUMBERED = re.compile(r"\d+\Z")  # TVM tells functions of one name apart by numbers


def profiler(machine: VirtualMachine, name: str, device: str) -> Profiler:
    """The function ``name`` of a machine that nobody else uses. Raises `NativeError`."""
    calls = _Calls(device)
    machine.watch(calls.enter, calls.leave)
    function = adapted(machine.function(name), device, writes=False)

    def call(*args: Any) -> Any:
        calls.begin()
        return function(*args)

    return Profiler(RUNTIME, call, calls.runs)


class _Calls:
    """What ran in each call. On a device, each function is waited for: else its time would be that of its start."""

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        self._calls: List[List[OperatorRun]] = []
        self._under_way: List[Tuple[str, float]] = []
        self._shapes: Dict[str, str] = {}  # of the first call of each function
        self._began = 0.0
        self._count = 0

    def begin(self) -> None:
        """A call of the program begins. Raises as `check_count`."""
        check_count(self._count)
        self._under_way = []
        self._calls.append([])
        self._began = self._clock()

    def enter(self, name: str, arguments: Callable[[], List[Any]]) -> None:
        """The machine is about to call a function."""
        if name not in self._shapes:
            self._shapes[name] = " ".join(filter(None, map(_shape, arguments())))
        self._under_way.append((name, self._clock()))

    def leave(self) -> None:
        """The function that was called last has returned."""
        if self._device:
            device_arrays.synchronise(self._device)
        now = self._clock()
        name, began = self._under_way.pop()
        self._count += 1
        if self._count > MAX_OPERATORS:
            return
        self._calls[-1].append(
            OperatorRun(name, _NUMBERED.sub("", name), self._device or "cpu:0", self._shapes[name],
                        threading.get_native_id(), (began - self._began) * 1e6, (now - began) * 1e6)
        )  # fmt: skip

    def runs(self, skip: int) -> List[List[OperatorRun]]:
        """The functions of each call behind the first ``skip``. Raises `ProfileNotSupported`."""
        if self._calls and not any(self._calls):
            raise ProfileNotSupported(
                "the program calls nothing by TVM's machine; compile it with exec_mode='bytecode'"
            )
        return self._calls[skip:]


def _shape(value: Any) -> str:
    """``float32[4,8]``; "" for what is no array."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return "" if shape is None or dtype is None else "{}[{}]".format(dtype, ",".join(map(str, shape)))
