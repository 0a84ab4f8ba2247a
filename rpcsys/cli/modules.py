"""``rpcsys deploy`` and ``rpcsys module``: modules that servers share among clients, and the contents of a library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rpcsys import progress
from rpcsys.cli import options
from rpcsys.client.deploying import Deployment
from rpcsys.client.tracker import connect_tracker
from rpcsys.errors import RpcsysError, UnknownKey, UsageError, printable
from rpcsys.link import standing_key
from rpcsys.link.address import DEFAULT_TRACKER, each_address, parse_address, tracker_defaults
from rpcsys.module import external, inspection
from rpcsys.module.formats import FORMATS
from rpcsys.query import terminal


@click.command(short_help="Put a module on a server, for many clients to call.")
@click.option("--to", "servers", metavar="HOST:PORT|NAME", multiple=True, help="The server; repeatable.")
@click.option("--key", metavar="KEY", help="All servers of this key that the tracker has, in place of --to.")
@click.option("--tracker", metavar="HOST:PORT", help="The tracker by which servers are found; --to then has names.")
@click.option("--key-file", type=options.FILE, help="The file with the servers' key (their --standing-key).")
@click.option("--name", help="The module's name for clients (default: the file's name, without its ending).")
@click.option("--list", "listing", is_flag=True, help="List the modules that are deployed there.")
@click.option("--remove", metavar="NAME", help="Withdraw a module.")
@click.option("--rollback", metavar="NAME", help="Put back the version before the present one.")
@click.argument("file", type=options.FILE, required=False)
def deploy(
    servers: tuple[str, ...],
    key: str | None,
    tracker: str | None,
    key_file: Path | None,
    name: str | None,
    listing: bool,
    remove: str | None,
    rollback: str | None,
    file: Path | None,
) -> None:
    """Let a server serve FILE, a library (.so) or a model (.onnx, .tflite, …), to all clients that call it by name.

    The server needs --deploy DIR. An older module of that name finishes its calls; new calls go to FILE. If the server
    cannot load FILE, the older module stays. The server keeps it until the next one: --rollback NAME puts it back.

    With several servers, each is tried, and a line has its outcome. In a lab, servers are named as its tracker names
    them, with --tracker or RPCSYS_TRACKER: rpcsys deploy head.onnx --to edge-1.
    """
    if (file is not None) + listing + (remove is not None) + (rollback is not None) != 1:
        raise UsageError("give one of these: a file to deploy, --list, --remove NAME, or --rollback NAME")
    if file is not None:  # these raise now, before any server gets something
        options.check_file(file, "file")
        external.files_of(file)
    if bool(servers) == (key is not None):
        raise UsageError("say to which servers: --to HOST:PORT or NAME, or --key KEY for all of a key")
    servers, connect = _reached(servers, key, tracker, key_file)

    def act(server: str) -> None:
        with connect(server) as deployment:
            if file is not None:
                with progress.bar(f"sending {file.name}", "B") as advance:
                    put = deployment.put(file, name, progress=advance)
                terminal.say(f"{server}: serving {_version(put)}")
            elif rollback is not None:
                terminal.say(f"{server}: serving {_version(deployment.rollback(rollback))} again")
            elif remove is not None:
                deployment.remove(remove)
                click.echo(f"{server}: {remove} is withdrawn")
            else:
                rows = deployment.list()
                click.echo(f"{server}:" + ("" if rows else " nothing is deployed"))
                terminal.print_pairs([(row["name"], _deployed(row)) for row in rows])

    _each(servers, act)


def _reached(
    servers: tuple[str, ...], key: str | None, tracker: str | None, key_file: Path | None
) -> tuple[tuple[str, ...], Callable[[str], Deployment]]:
    """The servers, and what opens a connection for deploying on one: through a tracker, or to its address."""
    names = each_address(tracker_defaults()) != (DEFAULT_TRACKER,) and any(":" not in server for server in servers)
    if key is None and tracker is None and not names:
        for server in servers:
            parse_address(server)
        standing = "" if key_file is None else standing_key.match_key(str(key_file))
        return servers, lambda server: Deployment(server, key=standing)
    if key_file is not None:
        raise UsageError("--key-file is for servers without a tracker: give their addresses, --to HOST:PORT")
    if key is not None:
        options.check_key(key)
    found = connect_tracker(options.tracker_address(tracker))
    click.get_current_context().call_on_close(found.close)
    if key is not None:
        servers = tuple(row["name"] for row in found.summary().get("servers", ()) if row["key"] == key)
        if not servers:
            raise UnknownKey(f"no server offers {key!r} now: query_tracker shows the keys")
    return servers, found.deployment


def _each(servers: Sequence[str], act: Callable[[str], None]) -> None:
    """Call ``act`` for each server, also after an error; each error is a line. Exits if there was one."""
    context, statuses = click.get_current_context(), []
    for server in servers:
        try:
            act(server)
        except RpcsysError as error:
            if len(servers) == 1:
                raise
            statuses.append(terminal.fail_with(error, context.find_root().info_name or "rpcsys", f"{server}: "))
    if statuses:
        context.exit(max(statuses))


def _version(put: Mapping[str, Any]) -> str:
    return f"{printable(put['name'])} {printable(put['version'])}"


def _deployed(row: Mapping[str, Any]) -> str:
    calls = terminal.counted(row["running"], "call")
    load = f"{terminal.counted(row['clients'], 'client')}, {calls} running, {row['waiting']} waiting"
    return f"{row['version']}  {row['file']}  {row['state']}" + (f", {load}" if row["state"] == "serving" else "")


@click.group(cls=options.CommandGroup)
def module() -> None:
    """Inspect libraries of modules."""


@module.command()
@click.argument("file", type=options.FILE)
@click.option("--json", "as_json", is_flag=True, help="All of it, with whole hashes, as one JSON object.")
def inspect(file: Path, as_json: bool) -> None:
    """Show the modules in FILE, a shared library for any machine: kinds, sizes, functions, targets, hashes.

    Nothing is loaded, and no code of the library runs.
    """
    options.check_file(file, "library")
    if file.suffix in FORMATS:
        raise UsageError(f"{file} is a model, and this shows libraries (.so); type: rpcsys split --help")
    found = inspection.inspect(file)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else str(found))
