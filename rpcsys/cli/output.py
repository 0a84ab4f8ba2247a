"""How the commands talk: headings, aligned rows, arrays in a line, progress.

Results go to standard output; progress goes to standard error, and only as a line where that is no terminal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from rpcsys.errors import printable
from rpcsys.query.terminal import MAX_WIDTH

if TYPE_CHECKING:
    import numpy as np


def heading(text: str) -> None:
    """Begin a part of the output."""
    click.echo()
    click.secho(text, bold=True)


def rows(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values, aligned."""
    shown = [(printable(name), printable(value)) for name, value in pairs]
    width = min(MAX_WIDTH, max((len(name) for name, _ in shown), default=0))
    for name, value in shown:
        click.echo(f"  {name:<{width}}  {value}")


def indented(text: str) -> None:
    """Somebody else's text, as part of ours."""
    for line in text.strip("\n").splitlines():
        click.echo(f"  {printable(line)}".rstrip())


def array(value: np.ndarray[Any, Any]) -> str:
    """Type, shape, and what can be said of the numbers in a few words."""
    text = f"{value.dtype} {list(value.shape)}"
    if value.size and value.dtype.kind in "fiu":
        text += f"  min {value.min():.4g}  mean {value.mean():.4g}  max {value.max():.4g}"
    return text


@contextlib.contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; gives ``advance(done, total)``."""
    with click.progressbar(length=1, label=f"  {label}", file=sys.stderr) as bar:

        def advance(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(done - bar.pos)

        yield advance


def megabytes(count: int) -> str:
    """Bytes as MB (10^6)."""
    return f"{count / 1e6:.1f} MB"
