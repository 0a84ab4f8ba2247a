"""Options and arguments of several commands: a tracker's address, a file; and the class of command groups."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rpcsys.errors import ConfigError, UsageError
from rpcsys.link.address import DEFAULT_TRACKER, parse_tracker, tracker_defaults
from rpcsys.wire import pinned_keys
from rpcsys.wire.keys import is_key


class FilePath(click.Path):
    """A path that is not empty: "" would be the working folder, and mostly is a shell's variable without a value."""

    def __init__(self, **more: Any) -> None:
        super().__init__(path_type=Path, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises click.BadParameter."""
        if value == "":
            self.fail("the name is empty; is a variable of the shell not set?", param, ctx)
        return super().convert(value, param, ctx)


class FileOrUrl(FilePath):
    """A path, or a URL as it is written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or the URL as text. Raises click.BadParameter."""
        return value if "://" in value else super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number of a range, and a number it is: neither nan nor inf."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click.BadParameter."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number to count with", param, ctx)
        return found


FILE = FilePath()
PORT = DEFAULT_TRACKER[1]

_WHERE = "The tracker's address, or its replicas', with commas (default: RPCSYS_TRACKER, or 127.0.0.1:9190)."
tracker = click.option("--tracker", metavar="HOST:PORT", help=_WHERE)


def check_file(path: Path, what: str) -> None:
    """Raise `UsageError` unless ``path`` is a file; ``what`` it should be."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the path of a {what}")
    if not path.is_file():
        raise UsageError(f"no such {what}: {path}; check the path")


def read_text(path: Path, what: str) -> str:
    """The text in a file, which should be ``what``. Raises UsageError: it cannot be read, or is no text."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not {what}: choose another file") from None


def check_output(path: Path, suffix: str, what: str, given: Path | None) -> None:
    """Raise `UsageError` for a file to write with another suffix, without a folder, or that is the one ``given``."""
    if path.suffix != suffix:
        raise UsageError(f"-o {path}: {what} written as {suffix}; type: -o {path.name}{suffix}")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}")
    if given is not None and path.exists() and path.samefile(given):
        raise UsageError(f"-o {path}: {given} would be overwritten; choose another name")


def check_key(key: str) -> None:
    """Raise `ConfigError` unless ``key`` can be a device's key, and `UsageError` if it has a secret."""
    if not is_key(key):
        raise ConfigError(f"--key {key!r}: a key has no space, comma or bracket, and at most 255 characters")
    pinned = pinned_keys.parse(key)
    if pinned is not None and pinned.secret:
        how = "put it into a file, mode 600, for rpcsys run --key-file FILE"
        raise UsageError(f"--key: the secret of a server's key is visible to everybody on this machine (ps): {how}")


def tracker_address(text: str | None, default_port: int | None = None) -> tuple[str, int]:
    """The address from `--tracker`, or `Addresses`, else from the environment. Raises ConfigError."""
    return tracker_defaults() if text is None else parse_tracker(text, default_port)


class CommandGroup(click.Group):
    """A group that needs a command: without one it prints its help to standard error and exits with status 2.

    Before 8.2, click would exit with 0. ``modules`` maps the names of commands to the modules that have them; each
    module is imported when its command is used. ``meant`` maps names that users may type to the commands that there
    are.
    """

    def __init__(
        self, *args: Any, modules: Mapping[str, str] | None = None, meant: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._modules = dict(modules or {})
        self._meant = dict(meant or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules:
            self.add_command(getattr(importlib.import_module(self._modules.pop(cmd_name)), cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that ``args`` begin with. For an unknown one, the error has the nearest that there is."""
        name = args[0]
        if self.get_command(ctx, name) is None and not (ctx.resilient_parsing or name.startswith("-")):
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            meant = self._meant.get(name) or next(iter(near), "")
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {meant!r}?" if meant else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop without arguments, unless a shell requests completions."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UsageError.exit_status)
        return super().parse_args(ctx, args)
