"""Networks: in a session, offloaded, served to many, in libraries, planned and in pipelines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import models
from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import (
    MB,
    MICROSECONDS,
    MILLISECONDS,
    Unit,
    at_least,
    at_most,
    each_second,
    ours_at_least,
    ours_at_most,
    within,
)

LIBRARY_SIZES = (500 * MB, 5 * MB)
#: Bytes to the server and back: Mask R-CNN's features as float32 and as int8, with its results; and a small network's.
OFFLOADED = {
    "4.2MB": (84 * 256 * 7 * 7 * 4, 84 * 28 * 28 * 4),
    "1.1MB": (84 * 256 * 7 * 7, 84 * 28 * 28 * 4),
    "150kB": (150_528, 4000),
}


def inference(folder: Path) -> Case:
    """Ours against a local run plus a raw exchange of the same bytes."""
    model = (("path", str(folder / models.SQUEEZENET)),)
    sizes = (("there", models.INPUT_BYTES), ("back", models.OUTPUT_BYTES))
    sum_of = (Measured("local", "inference", model), Measured("raw", "exchange", sizes))
    reading = Reading("squeezenet inference", "seconds", MILLISECONDS, {"local run + raw": at_most(1.2)})
    return Case(
        "inference",
        Measured("rpcsys", "inference", model),
        {"local run + raw": sum_of, "local run": sum_of[:1]},
        (reading,),
    )


def compiled_function(folder: Path) -> Case:
    """A tuner's work: send an input, run a compiled function, receive the output."""
    parameters = (("path", str(folder / models.ADD_LIBRARY)), ("size", MB))
    ours, tvm = (Measured(who, "compiled_function", parameters) for who in ("rpcsys", "tvm"))
    what = "TVM-compiled function, 1 MB in and out"
    reading = Reading(what, "seconds", each_second(), {"tvm": at_least(10)})
    return Case("compiled-function", ours, {"tvm": (replace(tvm, slow=True),)}, (reading,))


def offloaded_calls() -> list[Case]:
    return [offloaded_case(name, *sizes) for name, sizes in OFFLOADED.items()]


def offloaded_case(name: str, there: int, back: int) -> Case:
    """A call of a deployed module that does nothing, against the same bytes over a raw socket: the cost of offloading.

    Below a megabyte the call itself is a large part of the cost: no goal.
    """
    sizes = (("there", there), ("back", back))
    ours, raw = (Measured(who, "exchange", sizes) for who in ("offloading", "raw"))
    reading = Reading(f"offloaded call, {name}", "seconds", MICROSECONDS, {"raw": at_most(1.2)} if there >= MB else {})
    return Case(f"offloaded-call-{name}", ours, {"raw": (raw,)}, (reading,))


def served(folder: Path) -> Case:
    """Eight clients of one deployed network on its own core, against the network alone on that core."""
    model = (("path", str(folder / models.RESNET50)),)
    ours = Measured("serving", "served", (*model, ("clients", 8)), apart=True)
    alone = Measured("local", "network", model)
    reading = Reading("resnet50 for eight clients", "seconds", each_second(), {"alone": at_least(0.95)})
    return Case("served-eight-clients", ours, {"alone": (alone,)}, (reading,))


def libraries(folder: Path) -> list[Case]:
    """One library for a model: its loading time does not depend on its size, and writing it costs about a copy."""
    large, small = ((("size", size),) for size in LIBRARY_SIZES)
    load = Case(
        "library-load",
        Measured("libraries", "load", large),
        {"5 MB": (Measured("libraries", "load", small),)},
        (Reading("500 MB library loaded", "seconds", MILLISECONDS, {"5 MB": ours_at_most(5)}),),
    )
    copied = {"copied": (Measured("libraries", "copy", large),)}
    written = [
        Case(
            f"library-{operation}",
            Measured("libraries", operation, large),
            copied,
            (Reading(what, "seconds", MILLISECONDS, {"copied": at_most(times)}),),
        )
        for operation, what, times in (
            ("export", "500 MB library written", 2.5),
            ("link", "500 MB library linked with code", 10),
        )
    ]
    network = (("path", str(folder / models.RESNET50)),)
    onnx = Case(
        "library-load-network",
        Measured("libraries", "load_network", network),
        {"local session": (Measured("local", "load_network", network),)},
        (Reading("resnet50 loaded", "seconds", MILLISECONDS, {"local session": at_most(1.2)}),),
    )
    return [load, *written, onnx]


def planned(folder: Path) -> Case:
    """The planner's expected time for its cuts, against the measured time of a pipeline."""
    network = (("path", str(folder / models.RESNET50)),)
    ours, measured = (Measured("plans", what, network, slow=True) for what in ("expected", "measured"))
    what = "resnet50, automatic cuts: slowest stage expected"
    reading = Reading(what, "seconds", MILLISECONDS, {"measured": within(0.1)})
    return Case("automatic-cuts", ours, {"measured": (measured,)}, (reading,))


def pipelines(folder: Path) -> list[Case]:
    """A network in two parallel stages: a pipeline with its defaults, and one with a stage on a leased device."""
    network = (("path", str(folder / models.RESNET50)),)
    local, device, in_turn, slowest, whole = (
        Measured("pipelines", what, network)
        for what in ("side_by_side", "on_a_device", "in_turn", "slowest_alone", "whole")
    )
    goals = {"slowest stage": at_least(0.95), "stages in turn": at_least(1.9), "onnxruntime": at_least(0.97)}
    pace = Reading("resnet50 in two stages", "seconds", each_second(), goals)
    even = Unit("of an even share", 1.0, more_is_better=True)
    half = {"stages in turn": ours_at_least(0.5)}
    peers = {"slowest stage": (slowest,), "stages in turn": (in_turn,), "onnxruntime": (whole,)}
    away = Reading("the same, a stage on a leased device", "seconds", each_second(), {"both here": at_least(0.9)})
    return [
        Case("pipeline", local, peers, (pace,)),
        Case(
            "pipeline-shares",
            replace(local, slow=True),
            {"stages in turn": (replace(in_turn, slow=True),)},
            (Reading("the smaller stage's time", "least_share", even, half),),
        ),
        Case("pipeline-device", device, {"both here": (local,)}, (away,)),
    ]
