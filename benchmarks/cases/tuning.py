"""Auto-tuning: candidates measured each second."""

from __future__ import annotations

from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import at_least, each_second


def tuning() -> list[Case]:
    tvm = {"tvm": (Measured("tuning-tvm", "candidates", apart=True, slow=True),)}
    one, four = (Measured("tuning-boards", "boards", (("number", number),), apart=True) for number in (1, 4))
    return [
        Case("tuning", Measured("tuning", "candidates", apart=True), tvm, (reading("rpcsys.tvm.Runner", 20),)),
        Case(
            "tuning-tvm-runner",
            Measured("tuning-tvm-of-rpcsys", "candidates", apart=True, slow=True),
            tvm,
            (reading("TVM's RPCRunner of ours", 7),),
        ),
        Case(
            "tuning-four-boards",
            four,
            {"one board": (one,)},
            (Reading("candidates, four boards", "seconds", each_second(), {"one board": at_least(3.6)}),),
        ),
    ]


def reading(what: str, times: float) -> Reading:
    return Reading(f"candidates, {what}", "seconds", each_second(), {"tvm": at_least(times)})
