"""Which modules can be profiled, and what the others say."""

from __future__ import annotations

import pytest

from rpcsys.errors import ProfileNotSupported, RemoteFunctionError
from rpcsys.module.module import Module
from rpcsys.module.profiler import OperatorRun, Profiler


class _Noting(Module):
    def own_profiler(self, name: str, folder: str) -> Profiler:
        return Profiler("here", self.function(name), lambda skip: [[OperatorRun(folder, "", "", "", 0, 0.0, 1.0)]])


def test_the_module_with_the_function_is_profiled() -> None:
    root = Module("root", {"other": abs}, [_Noting("noting", {"main": abs})])
    profiler = root.profiler("main", "/folder")
    assert profiler.call(-5) == 5
    assert profiler.runs(0)[0][0].name == "/folder"


def test_what_has_no_profiler_says_so() -> None:
    with pytest.raises(ProfileNotSupported, match=r"kind plain tells no times of operators; time it whole"):
        Module("plain", {"main": abs}).profiler("main", "/folder")
    with pytest.raises(RemoteFunctionError, match="no function 'none'"):
        Module("plain", {"main": abs}).profiler("none", "/folder")
