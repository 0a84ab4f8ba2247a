"""Benchmarks: rpcsys and its peers, side by side in one run.

::

    python -m benchmarks                      every case
    python -m benchmarks null-call arrays     the cases whose names begin so
    python -m benchmarks --list               what there is

The parts, and what runs where::

    harness   decides who is measured when, and makes rows of the answers     one process, idle meanwhile
    worker    holds one subject (us, or a peer) and measures it when asked    a process for each subject
    server    the other end, started by the worker that talks to it           a process for each worker

- ``cases`` is data: what is measured, against what, and the goal.
- ``peers/`` has one file for each subject; ``peers/subject.py`` says what a subject is.
- ``processes`` starts a process pinned to a core, waits for its ready line, and ends it with its parent.
- ``figures`` is the arithmetic: medians, ratios, goals, the table. No process, no clock.
"""
