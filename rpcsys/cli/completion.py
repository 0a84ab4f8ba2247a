"""Words that a shell completes: click's own completion, and the flags of programs that click does not parse."""

from __future__ import annotations

import contextlib
import importlib
import io
import re

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_RPCSYS_COMPLETE"
"""Where click looks for what a shell asks; the name follows from that of the command."""

_FLAG = re.compile(r"^ {2}(?:-\w, )?(--[\w-]+)", re.MULTILINE)


def help_of(program: str) -> str:
    """What ``python -m program --help`` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(f"{program}.__main__").main(["--help"])
    return printed.getvalue()


class Program(click.Command):
    """A command that hands its arguments to ``program``, whose help says what flags there are."""

    program: str

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        flags = dict.fromkeys(_FLAG.findall(help_of(self.program)))
        return [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Has the shell complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


_HELP = """Print what has SHELL complete the commands and flags of rpcsys.

\b
bash  rpcsys completion bash >~/.local/share/bash-completion/completions/rpcsys
zsh   rpcsys completion zsh >~/.zfunc/_rpcsys   (a folder in your $fpath)
fish  rpcsys completion fish >~/.config/fish/completions/rpcsys.fish
"""


@click.command(help=_HELP, short_help="Print what has a shell complete these commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """The command; what it is for is said in `_HELP`."""
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    click.echo(kind(root, {}, "rpcsys", VARIABLE).source())
