"""``rpcsys pack``: the device runtime for one kind of board, as one archive."""

from __future__ import annotations

from pathlib import Path

import click

from rpcsys.cli import show
from rpcsys.module import toolchain

_HELP = """Pack what a board needs to serve, for boards that have Python 3.8 or later and nothing else.

\b
On the board:  tar xf rpcsys-device.tar.gz
               ./rpcsys-device/bin/rpcsys-server --tracker HOST:PORT --key KEY
               sudo ./rpcsys-device/install.sh --tracker HOST:PORT --key KEY
"""


@click.command(help=_HELP, short_help="Pack the device runtime for one kind of board.")
@click.option("--target", required=True, help=f"The kind of board: {', '.join(toolchain.names())}.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("rpcsys-device.tar.gz"),
    show_default=True,
    help="Where to.",
)
@click.option(
    "--libraries", "folder", metavar="DIR", type=click.Path(path_type=Path), help="TVM's libraries from a build folder."
)
@click.option("--from-wheels", is_flag=True, help="TVM's libraries from PyPI's wheels for the board's platform.")
@click.option(
    "--with-libraries",
    "drivers",
    metavar="A.so:B.so",
    multiple=True,
    help="Drivers to be loaded in TVM's sessions; repeatable.",
)
@click.option(
    "--glibc", metavar="VERSION", help="Refuse libraries that need a newer C library than the board's, such as 2.27."
)
def pack(
    target: str, output: Path, folder: Path | None, from_wheels: bool, drivers: tuple[str, ...], glibc: str | None
) -> None:
    """The command; what it is for is said in `_HELP`."""
    from rpcsys.pack import build

    named = [Path(path) for text in drivers for path in text.split(":") if path]
    packed = build.pack(target, output, folder=folder, from_wheels=from_wheels, drivers=named, glibc=glibc)
    for remark in packed.remarks:
        click.echo(f"rpcsys: warning: {remark}", err=True)
    click.echo(f"{packed.path}: {show.megabytes(packed.size)} for {target}")
    needs = {"Python": "python", "glibc": "glibc", "libstdc++": "glibcxx"}
    wanted = [(f"needs {name}", packed.manifest[key]) for name, key in needs.items()]
    show.rows([(name, f"{version} or later") for name, version in wanted if version])
    show.rows([("libraries", ", ".join(packed.manifest["libraries"]) or "none of TVM's")])
