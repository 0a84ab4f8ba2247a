"""What a model is fed on the command line: arrays of an .npz file, or seeded random ones.

numpy is imported where there are arrays: most commands, and the daemons that they start, have none.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpcsys.errors import UsageError

if TYPE_CHECKING:
    from rpcsys.graph._ir.random_inputs import Arrays


def random(specs: Sequence[Mapping[str, Any]], seed: int = 0) -> Arrays:
    """Arrays for a model's inputs, the same for the same seed."""
    from rpcsys.graph._ir.random_inputs import random_inputs

    return random_inputs(specs, seed)


def load(path: Path) -> Arrays:
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
