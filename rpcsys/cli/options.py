"""Options and arguments of several commands: a tracker's address, a file; and the class of command groups."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rpcsys.errors import UsageError
from rpcsys.link.address import DEFAULT_TRACKER, parse_address, tracker_defaults

FILE = click.Path(path_type=Path)
PORT = DEFAULT_TRACKER[1]

_WHERE = "The tracker's address (default: RPCSYS_TRACKER, or 127.0.0.1:9190)."
tracker = click.option("--tracker", metavar="HOST:PORT", help=_WHERE)


def tracker_address(text: str | None, default_port: int | None = None) -> tuple[str, int]:
    """The address from `--tracker`, else from the environment. Raises ConfigError."""
    return tracker_defaults() if text is None else parse_address(text, default_port)


class CommandGroup(click.Group):
    """A group that needs a command: without one it prints its help to standard error and exits with status 2.

    Before 8.2, click would exit with 0. ``modules`` maps the names of commands to the modules that have them; each
    module is imported when its command is used.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._modules = dict(modules or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules:
            self.add_command(getattr(importlib.import_module(self._modules.pop(cmd_name)), cmd_name))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop without arguments, unless a shell requests completions."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UsageError.exit_status)
        return super().parse_args(ctx, args)
