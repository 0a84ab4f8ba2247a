"""Running a model from the command line: its inputs, and its time on a device.

numpy is imported where there are arrays: most commands, and the daemons that they start, have none.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpcsys.client import TimingResult
from rpcsys.client.remote import RemoteModule
from rpcsys.errors import UsageError

if TYPE_CHECKING:
    from rpcsys.graph._ir.random_inputs import Arrays

_REQUEST_S = 1.0  # how long one request for times may take: the bar moves about once a second


def random_inputs(specs: Sequence[Mapping[str, Any]], seed: int = 0) -> Arrays:
    """Arrays for a model's inputs, the same for the same seed."""
    from rpcsys.graph._ir.random_inputs import random_inputs

    return random_inputs(specs, seed)


def load_inputs(path: Path) -> Arrays:
    """Every array of an ``.npz`` file by name. Raises `UsageError` for anything else."""
    import numpy as np

    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UsageError(f"{path} holds one array; inputs go by name: numpy.savez(path, name=array)")
        with archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is no .npz file of plain arrays: {error}") from None


def time_model(
    model: RemoteModule, args: Sequence[Any], repeat: int, advance: Callable[[int, int], None]
) -> TimingResult:
    """``repeat`` single runs, each timed on the device; ``advance(done, repeat)`` as they come."""
    results: list[float] = []
    while len(results) < repeat:
        longest = max(results, default=_REQUEST_S)
        count = min(repeat - len(results), max(1, int(_REQUEST_S / max(longest, 1e-6))))
        results += model.time_evaluator("main", number=1, repeat=count)(*args).results
        advance(len(results), repeat)
    return TimingResult(results)
