"""Shell completion: click's own, plus the flags of programs that click does not parse."""

from __future__ import annotations

import contextlib
import importlib
import io
import re

import click
from click.shell_completion import CompletionItem, get_completion_class

COMMANDS = ("rpcsys", "query_tracker")  # the commands that this package installs

_FLAG = re.compile(r"^ {2}(?:-\w, )?(--[\w-]+)", re.MULTILINE)


def help_of(program: str) -> str:
    """The output of ``python -m program --help``."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(f"{program}.__main__").main(["--help"])
    return printed.getvalue()


class Program(click.Command):
    """A command that passes its arguments to ``program``, whose help lists the flags."""

    program: str

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        flags = dict.fromkeys(_FLAG.findall(help_of(self.program)))
        return [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]


def words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completions for a word of a program's command line that is not a flag: files."""
    return [CompletionItem(incomplete, type="file")]


_HELP = """Print SHELL's completion script for COMMAND: rpcsys (the default) or query_tracker.

\b
bash  rpcsys completion bash >~/.local/share/bash-completion/completions/rpcsys
zsh   rpcsys completion zsh >~/.zfunc/_rpcsys   (a folder in your $fpath)
fish  rpcsys completion fish >~/.config/fish/completions/rpcsys.fish
and   rpcsys completion bash query_tracker >…/query_tracker, and so on
"""


@click.command(help=_HELP, short_help="Print a shell's completion script for these commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.argument("command", type=click.Choice(COMMANDS), default=COMMANDS[0])
def completion(shell: str, command: str) -> None:
    """The command; `_HELP` describes it."""
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    click.echo(kind(root, {}, command, f"_{command.upper()}_COMPLETE").source())
