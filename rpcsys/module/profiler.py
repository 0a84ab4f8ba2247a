"""A runtime's own profiler: a function of a module that can be called, and the operators that ran in its calls."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple

from rpcsys.errors import RemoteArgumentError

#: Runs of operators in one profile: a model of 200 operators, 1,000 times.
MAX_OPERATORS = 200_000


class OperatorRun(NamedTuple):
    """One run of one operator; times are microseconds, ``begin`` since that of the call."""

    name: str
    type: str
    provider: str  # what of the runtime ran it, "" where that is not told
    shapes: str  # of its inputs, as the runtime writes them, "" where they are not told
    thread: int
    begin: float
    duration: float  # with the operators that ran inside it


class Profiler(NamedTuple):
    """A model that was opened to be profiled; calls of others do not use it. One thread calls it."""

    runtime: str
    call: Callable[..., Any]
    #: Ends the profile: the operators of each call behind the first so many. Raises `ProfileNotSupported`, and as
    #: ``call`` does, `RemoteArgumentError` for more than `MAX_OPERATORS`.
    runs: Callable[[int], List[List[OperatorRun]]]


def check_count(noted: int) -> None:
    """Raise `RemoteArgumentError` for more runs of operators than a profile may have."""
    if noted > MAX_OPERATORS:
        what = f"the profile has more than {MAX_OPERATORS} runs of operators"
        raise RemoteArgumentError(f"{what}; take fewer runs, or a smaller input")
