"""Benchmarks: rpcsys and its peers, side by side in one run.

::

    python -m benchmarks                      every case
    python -m benchmarks null-call arrays     the cases with these prefixes
    python -m benchmarks --list               the names of the cases

The processes::

    harness   schedules the rounds and makes rows of the replies     one process, idle during a round
    worker    holds one subject (ours or a peer) and measures it     one process per subject
    server    the other end, started by its worker                   one process per worker

- ``cases`` is data: the operations, their peers, and the goals.
- ``peers/`` has one file for each subject; ``peers/subject.py`` defines what a subject is.
- ``processes`` starts a process pinned to a core, waits for its ready line, and ends it with its parent.
- ``figures`` is the arithmetic: medians, ratios, goals, the table. No process, no clock.
"""
