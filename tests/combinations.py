"""Parameters of tests that run in very many combinations: the usual ones, and the others before a release alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: Of the sample networks: one with residuals, one that joins branches, one that mixes channels.
NETWORKS = {"resnet50", "squeezenet", "shufflenet"}


def usual(values: Iterable[Any], is_usual: Callable[[Any], bool]) -> list[Any]:
    """All values as parameters, a tuple as one of several arguments; those that are not usual are for releases."""
    marks = {True: (), False: pytest.mark.release}
    several = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [pytest.param(*arguments, marks=marks[is_usual(value)]) for value, arguments in several]
