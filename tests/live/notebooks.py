"""Runs notebooks with a kernel of this interpreter: for tests, and to store outputs of docs/notebooks.

python -m tests.live.notebooks FILE.ipynb…      run them and write their outputs into them
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

CELL_S = 60


class ThisInterpreter(AsyncKernelManager):
    """Starts ipykernel in this interpreter: no kernel need be installed for a user."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def executed(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of a run in ``folder``. Raises where a cell fails, or takes longer than CELL_S."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_S, resources={"metadata": {"path": str(folder)}}, kernel_manager_class=ThisInterpreter
    )
    client.execute(env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    return notebook


def main() -> None:
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(Path(name), Path(folder))
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of the run
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, name)


if __name__ == "__main__":
    main()
