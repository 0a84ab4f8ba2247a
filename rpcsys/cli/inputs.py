"""What a model is fed on the command line: arrays of an .npz file, or seeded random ones (`rpcsys.graph.feeds`)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from rpcsys.errors import UsageError
from rpcsys.graph.feeds import Arrays, random

__all__ = ["Arrays", "load", "random"]


def load(path: Path) -> Arrays:
    """Every array of an ``.npz`` file by name. Raises `UsageError` for anything else."""
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
