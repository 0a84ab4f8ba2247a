"""``.vmfb`` files: equal to IREE's own Python, all entry points, threads and drivers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("iree.runtime")

import iree.runtime as rt

from rpcsys.errors import ModelError
from rpcsys.module import load_module
from rpcsys.module.kinds import iree
from tests.device_files import ROOT
from tests.module import runtime_models as models


@pytest.mark.parametrize("name", models.CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_those_of_iree(name: str, threads: int) -> None:
    """One thread is the driver local-sync, several are local-task."""
    path = models.compiled(name, ".vmfb")
    own = rt.load_vm_flatbuffer(path.read_bytes(), driver="local-sync")
    wanted = own.main(*models.given(name))
    found = load_module(path, threads=threads)(*models.given(name))
    each = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for got, want in each:
        np.testing.assert_array_equal(got, want.to_host())


def test_functions_are_entry_points() -> None:
    module = load_module(models.compiled("both", ".vmfb"))
    assert module.functions == ["main", "twice"]
    assert module.inputs == [{"name": f"input{place}", "dtype": "float32", "shape": [None, 4]} for place in range(2)]
    found = module["twice"](np.array([-1, 0, 1, 2], "i4"))
    assert found.dtype == bool
    assert found.tolist() == [False, False, True, True]


def test_a_driver_that_has_no_device() -> None:
    path = models.compiled("both", ".vmfb")
    with pytest.raises(ModelError, match=r"both\.vmfb is for opencl:0, and IREE runs models on devices of the kind"):
        load_module(path, device="opencl:0")
    with pytest.raises(ModelError, match=r"both\.vmfb cannot be loaded by IREE: [^\n]+\Z"):
        load_module(path, device="rocm:0")


def test_declarations() -> None:
    text = "%input0: tensor<?x4xf32> {iree.abi.output = 0 : index}, %n: i32, %s: tensor<i1>, %c: tensor<2xcomplex<f32>>"
    found = [(value.name, value.dtype or value.type, value.shape) for value in iree._values(text)]
    assert found == [
        ("input0", "float32", [None, 4]), ("n", "i32", []), ("s", "bool", []), ("c", "complex64", [2]),
    ]  # fmt: skip
    with pytest.raises(ModelError, match="has 'x' of bf16, which numpy lacks"):
        list(iree._values("%x: tensor<4xbf16>"))


_ENDS = """
import sys, numpy
from rpcsys.module import load_module
module = load_module(sys.argv[1], threads=2)
x = numpy.ones((3, 4), "f4")
kept = module(x, x)
print(kept[0].sum())
"""


def test_a_process_ends_well_while_results_are_held() -> None:
    words = [sys.executable, "-c", _ENDS, models.compiled("both", ".vmfb")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "24.0\n"), done.stderr
