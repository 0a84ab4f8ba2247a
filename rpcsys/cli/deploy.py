"""``rpcsys deploy``: put a module on servers that many clients share it from, list what is there, withdraw it."""

from __future__ import annotations

from pathlib import Path

import click

from rpcsys.cli import show
from rpcsys.client.deploying import Deployment
from rpcsys.errors import UsageError, printable
from rpcsys.query.table import say


@click.command(short_help="Put a module on a server, for many clients to call.")
@click.option("--to", "servers", metavar="HOST:PORT", multiple=True, required=True, help="The server; repeatable.")
@click.option("--name", help="What clients call it (default: the file's name, without its ending).")
@click.option("--list", "listing", is_flag=True, help="Say what is deployed there.")
@click.option("--remove", metavar="NAME", help="Withdraw a module.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
def deploy(servers: tuple[str, ...], name: str | None, listing: bool, remove: str | None, file: Path | None) -> None:
    """Have a server serve FILE, a library (.so) or an ONNX model (.onnx), to whoever asks for it by name.

    The server was started with --deploy DIR. What it served under that name finishes the calls that it has; new calls go to
    FILE, or, if FILE cannot be loaded there, to the old one still.
    """
    if (file is not None) + listing + (remove is not None) != 1:
        raise UsageError("one of the three, please: a file to deploy, --list, or --remove NAME")
    for server in servers:
        with Deployment(server) as deployment:
            if file is not None:
                _put(deployment, server, file, name)
            elif remove is not None:
                deployment.remove(remove)
                click.echo(f"{server}: {remove} is withdrawn")
            else:
                _list(deployment, server)


def _put(deployment: Deployment, server: str, file: Path, name: str | None) -> None:
    with show.progress(f"sending {file.name}") as advance:
        put = deployment.put(file, name, progress=advance)
    say(f"{server}: serving {printable(put['name'])} {printable(put['version'])}")


def _list(deployment: Deployment, server: str) -> None:
    rows = deployment.list()
    click.echo(f"{server}:" + ("" if rows else " nothing is deployed"))
    show.rows([(row["name"], _row(row)) for row in rows])


def _row(row: dict[str, object]) -> str:
    load = f"{row['clients']} clients, {row['running']} calls running, {row['waiting']} waiting"
    return f"{row['version']}  {row['file']}  {row['state']}" + (f", {load}" if row["state"] == "serving" else "")
