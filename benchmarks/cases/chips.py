"""Several chips of one board: what a change of stage costs, and the pace of a pipeline inside one board."""

from __future__ import annotations

from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import MICROSECONDS, at_least, at_most_more, each_second


def chips() -> list[Case]:
    graph, alone = (Measured("chips", what, slow=True) for what in ("stages_in_a_graph", "runtimes_own_calls"))
    change = Reading("a stage on another chip", "seconds", MICROSECONDS, {"runtime's own call": at_most_more(50)})
    pipeline, slowest = (Measured("chips", what, slow=True) for what in ("pipeline_in_a_board", "slowest_alone"))
    pace = Reading("two stages, each on its own chip", "seconds", each_second(), {"slower stage": at_least(0.95)})
    return [
        Case("chips-stage-change", graph, {"runtime's own call": (alone,)}, (change,)),
        Case("chips-pipeline", pipeline, {"slower stage": (slowest,)}, (pace,)),
    ]
