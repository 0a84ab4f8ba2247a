"""The group of commands, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import rpcsys
from rpcsys.cli.board import board
from rpcsys.cli.completion import Program, completion, words
from rpcsys.cli.demo import demo
from rpcsys.cli.deploy import deploy
from rpcsys.cli.groups import Commands
from rpcsys.cli.manual import man
from rpcsys.cli.module import module
from rpcsys.cli.operate import drain, enable, lease
from rpcsys.cli.pack import pack
from rpcsys.cli.run import run
from rpcsys.cli.split import split
from rpcsys.errors import RpcsysError, one_line
from rpcsys.query.__main__ import command as query_tracker
from rpcsys.query.table import escape_what_the_terminal_lacks

INTERRUPTED = 130  # what a shell reports of a command ended by Ctrl-C


_HELP = """Lease a device by key, run a model on it, give it back clean.

\b
A lab on this machine:    rpcsys demo
The parts of a real one:  rpcsys tracker
                          rpcsys server --key rpi4 --tracker HOST:9190
Who has what:             rpcsys query, rpcsys query leases
Why does it wait:         rpcsys query --why rpi4
Take a board out:         rpcsys drain NAME, rpcsys enable NAME
A model on a device:      rpcsys run --key rpi4 model.onnx
A model over several:     rpcsys split model.onnx --over cpu:0,cpu:1,key:edge
A module for many:        rpcsys deploy head.so --to HOST:9090
What is in a library:     rpcsys module inspect model.so
A board over ssh:         rpcsys board add root@board --key rpi4
An archive for one:       rpcsys pack --target aarch64-linux-gnu
"""


@click.group(cls=Commands, help=_HELP)
@click.version_option(rpcsys.__version__, prog_name="rpcsys")
def group() -> None:
    """All commands; what they have in common is said in `_HELP`."""


def _daemon(name: str, program: str, summary: str, below: click.Group | None = None) -> None:
    """A command that hands all its arguments, --help too, to another program's own parser.

    The program replaces this process: nothing of this command line stays in a board's memory.
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
        os.execv(sys.executable, [sys.executable, "-m", program, *args])

    command.program = program
    command.group = below
    group.add_command(command)


_daemon("tracker", "rpcsys.tracker", "Serve the queue of requests: one tracker for a lab.")
_daemon("proxy", "rpcsys.proxy", "Join clients with servers that nobody can reach.")
_daemon("server", "rpcsys.server", "Serve this machine as a device.")
_daemon("query", "rpcsys.query", "Print the tracker's servers and queue.", query_tracker)
group.add_command(run)
group.add_command(demo)
group.add_command(split)
group.add_command(deploy)
group.add_command(module)
group.add_command(lease)
group.add_command(pack)
group.add_command(board)
group.add_command(drain)
group.add_command(enable)
group.add_command(completion)
group.add_command(man)


def run_group(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. Every error becomes one line on standard error."""
    escape_what_the_terminal_lacks()
    try:
        status = group.main(args=None if argv is None else list(argv), prog_name="rpcsys", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("rpcsys: interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except RpcsysError as error:
        return _complain(one_line(error), error.exit_status)
    except BrokenPipeError:  # the reader of our output has gone: `rpcsys run … | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


def _complain(line: str, status: int) -> int:
    click.echo(f"rpcsys: error: {line}", err=True)
    return status
