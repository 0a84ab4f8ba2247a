"""The cases as data: operations, subjects and goals."""

from __future__ import annotations

from pathlib import Path

from benchmarks.case import Case
from benchmarks.cases import calls, chips, closed_labs, inference, labs, networks, relays, replicas, tuning


def all_cases(folder: Path) -> list[Case]:
    """All cases. ``folder`` is the folder of the models."""
    return [
        *calls.null_calls(),
        *calls.pipelined_calls(),
        *calls.arrays(),
        *calls.bare_arrays(),
        *calls.plain_arrays(),
        *calls.two_sessions(),
        networks.inference(folder),
        networks.compiled_function(folder),
        *networks.offloaded_calls(),
        networks.served(folder),
        *labs.openings(),
        *labs.sessions(),
        labs.candidate(folder),
        *labs.trackers(),
        *tuning.tuning(),
        *networks.libraries(folder),
        networks.planned(folder),
        *networks.pipelines(folder),
        *chips.chips(),
        *relays.relays(),
        *relays.through_proxy(),
        relays.pairing(),
        *closed_labs.sessions(),
        *closed_labs.links(),
        *closed_labs.openings(),
        *closed_labs.trackers(),
        *closed_labs.boards(),
        *closed_labs.forwarded(),
        *inference.inference(),
        *replicas.rates(),
        *replicas.faults(),
        replicas.many_boards(),
    ]
