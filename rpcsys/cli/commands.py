"""The ``rpcsys`` command: the group of all commands, including the daemons' and the lab operator's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import rpcsys
from rpcsys.cli import options
from rpcsys.cli.completion import Program, words
from rpcsys.client import connect_tracker
from rpcsys.query.terminal import HELP, run_command

#: What users type for a command of another name.
_MEANT = {
    "undrain": "enable", "disable": "drain", "inspect": "module inspect", "install": "board add",
    "invite": "lab invite", "members": "lab members", "revoke": "lab revoke", "logout": "lab revoke",
    **dict.fromkeys(("status", "list", "queue", "servers"), "query"),
    **{name: f"query {name}" for name in ("leases", "modules", "history", "usage")},
}  # fmt: skip

_HELP = """Lease a device by key, run a model on it, give it back clean.

\b
A lab on this machine:    rpcsys demo
The parts of a real one:  rpcsys tracker
                          rpcsys server --key rpi4 --tracker HOST:9190
Who has what:             rpcsys query, rpcsys query leases
Why does it wait:         rpcsys query --why rpi4
Take a board out:         rpcsys drain NAME, rpcsys enable NAME
A board to work on:       rpcsys shell --key rpi4, rpcsys push, rpcsys pull
A model on a device:      rpcsys run --key rpi4 model.onnx
A program on a device:    rpcsys exec --key rpi4 -t bash
Its ports at this desk:   rpcsys forward --key rpi4 8080
Models on all boards:     rpcsys bench model.onnx --save today.json
Which one is faster:      rpcsys compare old.onnx new.onnx --key rpi4
Where its time goes:      rpcsys profile model.onnx --key rpi4
A model over several:     rpcsys split model.onnx --over cpu:0,cpu:1,key:edge
A module for many:        rpcsys deploy head.so --to HOST:9090
A model for any client:   rpcsys serve model.onnx, rpcsys gateway
What is in a library:     rpcsys module inspect model.so
A board over ssh:         rpcsys board add root@board --key rpi4
An archive for one:       rpcsys pack --target aarch64-linux-gnu
A lab for members only:   rpcsys lab init --host HOST:9190, rpcsys login
Trackers that take over:  rpcsys replicas setup lab-1 lab-2 lab-3

The tracker's address is that of --tracker HOST:PORT, else of the variable RPCSYS_TRACKER, else 127.0.0.1:9190.
"""


#: The modules of commands that are imported when they are used, by the commands' names.
_MODULES = {
    "bench": "rpcsys.cli.bench",
    **dict.fromkeys(("board", "pack"), "rpcsys.cli.board"),
    **dict.fromkeys(("deploy", "module"), "rpcsys.cli.modules"),
    "compare": "rpcsys.cli.compare",
    "completion": "rpcsys.cli.completion",
    "demo": "rpcsys.cli.demo",
    "exec": "rpcsys.cli.exec",
    "forward": "rpcsys.cli.forward",
    **dict.fromkeys(("hold", "holds", "release", "shell"), "rpcsys.cli.hold"),
    "lab": "rpcsys.cli.lab",
    **dict.fromkeys(("login", "whoami"), "rpcsys.cli.login"),
    "man": "rpcsys.cli.manual",
    **dict.fromkeys(("pull", "push"), "rpcsys.cli.transfer"),
    "profile": "rpcsys.cli.profile",
    "query": "rpcsys.query.__main__",
    "replicas": "rpcsys.cli.replicas",
    "run": "rpcsys.cli.run",
    "serve": "rpcsys.cli.serve",
    "split": "rpcsys.cli.split",
}


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from rpcsys.compiled import WITHOUT

        speedups = f"without speedups: {WITHOUT}" if WITHOUT else "with speedups"
        click.echo(f"rpcsys, version {rpcsys.__version__} ({speedups})")
        context.exit()


@click.group(cls=options.CommandGroup, modules=_MODULES, meant=_MEANT, help=_HELP, context_settings=HELP)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
              help="Show the version and exit.")  # fmt: skip
def group() -> None:
    """All commands; `_HELP` describes them."""


def _program(name: str, program: str, summary: str) -> None:
    """Add a command that passes all its arguments, --help too, to another program's own parser.

    The program replaces this process, so that a board's memory holds nothing of this command line.
    """

    @click.command(
        name,
        cls=Program,
        short_help=summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=words)
    def command(args: tuple[str, ...]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        typed = {"RPCSYS_COMMAND": f"rpcsys {name}"}  # its messages begin with that
        os.execve(sys.executable, [sys.executable, "-m", program, *args], {**os.environ, **typed})

    command.program = program
    group.add_command(command)


_program("tracker", "rpcsys.tracker", "Serve the queue of requests: one tracker for a lab.")
_program("proxy", "rpcsys.proxy", "Join clients with servers that they cannot reach.")
_program("server", "rpcsys.server", "Serve this machine as a device.")
_program("gateway", "rpcsys.gateway", "Serve a lab's models to tritonclient, curl and others.")
_program("connect", "rpcsys.forward", "Let TVM's client use a lab from this machine.")


@group.group(cls=options.CommandGroup, short_help="End a lease.")
def lease() -> None:
    """Leases that are granted, as `query_tracker leases` shows them."""


@lease.command("end")
@click.argument("name", metavar="LEASE")
@click.option("--reason", default="", help="The reason to record with the lease.")
@options.tracker
def end_lease(name: str, reason: str, tracker: str | None) -> None:
    """End LEASE of any user: its session is stopped, and the device is free for the next request."""
    with connect_tracker(options.tracker_address(tracker, options.PORT)) as connection:
        connection.end_lease(name, reason)
    click.echo(f"lease {name} ends")


@group.command(short_help="Grant no more leases on a server; its sessions continue.")
@click.argument("server")
@options.tracker
def drain(server: str, tracker: str | None) -> None:
    """Grant no more leases on SERVER. Its sessions continue; `rpcsys enable SERVER` undoes it."""
    with connect_tracker(options.tracker_address(tracker, options.PORT)) as connection:
        changed = connection.drain(server)
    now = "gets no more sessions" if changed else "is drained already"
    click.echo(f"{server} {now}; undo with: rpcsys enable {server}")


@group.command(short_help="Undo a drain, or offer a server again that was set aside.")
@click.argument("server")
@options.tracker
def enable(server: str, tracker: str | None) -> None:
    """Offer SERVER again, after a drain or after it was set aside."""
    with connect_tracker(options.tracker_address(tracker, options.PORT)) as connection:
        changed = connection.enable(server)
    click.echo(f"{server} gets sessions again" if changed else f"{server} was neither drained nor set aside")


def run_group(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Every error becomes one line on standard error."""
    return run_command(group, "rpcsys", argv)
