"""``rpcsys deploy`` and ``rpcsys module``: modules on servers that many clients share, and what is in a library."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rpcsys.cli import options
from rpcsys.client.deploying import Deployment
from rpcsys.errors import UsageError, printable
from rpcsys.module import inspection
from rpcsys.query import terminal


@click.command(short_help="Put a module on a server, for many clients to call.")
@click.option("--to", "servers", metavar="HOST:PORT", multiple=True, required=True, help="The server; repeatable.")
@click.option("--name", help="What clients call it (default: the file's name, without its ending).")
@click.option("--list", "listing", is_flag=True, help="Say what is deployed there.")
@click.option("--remove", metavar="NAME", help="Withdraw a module.")
@click.argument("file", type=options.FILE, required=False)
def deploy(servers: tuple[str, ...], name: str | None, listing: bool, remove: str | None, file: Path | None) -> None:
    """Have a server serve FILE, a library (.so) or an ONNX model (.onnx), to whoever asks for it by name.

    The server was started with --deploy DIR. What it served under that name finishes the calls that it has; new calls
    go to FILE, or, if FILE cannot be loaded there, to the old one still.
    """
    if (file is not None) + listing + (remove is not None) != 1:
        raise UsageError("one of the three, please: a file to deploy, --list, or --remove NAME")
    for server in servers:
        with Deployment(server) as deployment:
            if file is not None:
                with terminal.progress(f"sending {file.name}") as advance:
                    put = deployment.put(file, name, progress=advance)
                terminal.say(f"{server}: serving {printable(put['name'])} {printable(put['version'])}")
            elif remove is not None:
                deployment.remove(remove)
                click.echo(f"{server}: {remove} is withdrawn")
            else:
                rows = deployment.list()
                click.echo(f"{server}:" + ("" if rows else " nothing is deployed"))
                terminal.print_pairs([(row["name"], _deployed(row)) for row in rows])


def _deployed(row: dict[str, object]) -> str:
    load = f"{row['clients']} clients, {row['running']} calls running, {row['waiting']} waiting"
    return f"{row['version']}  {row['file']}  {row['state']}" + (f", {load}" if row["state"] == "serving" else "")


@click.group(cls=options.CommandGroup)
def module() -> None:
    """Look into the libraries that models are shipped as."""


@module.command()
@click.argument("file", type=options.FILE)
@click.option("--json", "as_json", is_flag=True, help="All of it, with whole hashes, as one JSON object.")
def inspect(file: Path, as_json: bool) -> None:
    """Show the modules in FILE, a shared library for any machine: kinds, sizes, functions, targets, hashes.

    Nothing is loaded, and no code of the library runs.
    """
    found = inspection.inspect(file)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else str(found))
