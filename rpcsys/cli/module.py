"""``rpcsys module``: what is inside a model's library."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rpcsys.cli.groups import Commands
from rpcsys.module import inspection


@click.group(cls=Commands)
def module() -> None:
    """Look into the libraries that models are shipped as."""


@module.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All of it, with whole hashes, as one JSON object.")
def inspect(file: Path, as_json: bool) -> None:
    """Show the modules in FILE, a shared library for any machine: kinds, sizes, functions, targets, hashes.

    Nothing is loaded, and no code of the library runs.
    """
    found = inspection.inspect(file)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else str(found))
