"""Writes manual pages from the commands' ``--help`` texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

import rpcsys
from rpcsys.cli.completion import Program, help_of
from rpcsys.cli.options import FilePath
from rpcsys.errors import ConfigError
from rpcsys.query.__main__ import query as query_tracker

COLUMNS = 76  # width of a page's text: a terminal's 80 without man's margin

_HEADING = re.compile(r"^(\w[\w ]*):$")


def page(name: str, summary: str, text: str) -> str:
    """The page ``name(1)``, in man(7)'s language, for a command's help ``text``."""
    usage, _, rest = text.strip().partition("\n\n")
    lines = [
        f'.TH {_roff(name.upper())} 1 "" "rpcsys {rpcsys.__version__}" rpcsys',
        ".SH NAME", f"{_roff(name)} \\- {_roff(summary.rstrip('.'))}",
        ".SH SYNOPSIS", ".nf", *map(_roff, usage.splitlines()), ".fi",
        ".SH DESCRIPTION", ".nf",
    ]  # fmt: skip
    for line in rest.splitlines():
        heading = _HEADING.match(line)
        lines += [".fi", f".SH {heading[1].upper()}", ".nf"] if heading else [_roff(line)]
    return "\n".join([*lines, ".fi", ""])


def _roff(line: str) -> str:
    """Quote a line of text: minus signs are kept, and a dot or quote at the beginning is no request."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def pages(group: click.Group, name: str) -> Iterator[tuple[str, str]]:
    """The name and the text of a page for ``group``, called ``name``, and for each command below it."""
    for words, summary, text in helps(group, name):
        page_name = words.replace(" ", "-")
        yield page_name, page(page_name, summary, text)


def helps(group: click.Group, name: str) -> Iterator[tuple[str, str, str]]:
    """What is typed, the summary and the help of ``group``, called ``name``, and of each command below it."""
    for words, command in _commands(group, (name,)):
        typed = " ".join(words)
        if isinstance(command, Program):
            text = help_of(command.program).replace("-".join(words), typed, 1)  # as it is typed
        else:
            text = command.get_help(click.Context(command, info_name=typed, terminal_width=COLUMNS))
        yield typed, command.get_short_help_str(limit=100), text


def _commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None  # it is listed
            yield from _commands(below, (*words, name))


@click.command(short_help="Write the manual pages of all commands into a folder.")
@click.argument("folder", type=FilePath(file_okay=False))
def man(folder: Path) -> None:
    """Write the manual pages of all commands into FOLDER, such as ~/.local/share/man/man1."""
    os.environ["COLUMNS"] = str(COLUMNS)  # for the daemons' help; in this process only
    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in [*pages(root, "rpcsys"), *pages(query_tracker, "query_tracker")]:
            (folder / f"{name}.1").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from None
