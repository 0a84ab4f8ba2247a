"""Groups of commands that behave alike, whichever click there is (from 8.1 on)."""

from __future__ import annotations

import click

from rpcsys.errors import UsageError


class Commands(click.Group):
    """A group whose name alone is too little: its help goes to standard error, and the exit status is 2.

    Before 8.2, click would take it for a question, and exit with 0.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop where there is nothing to parse, unless a shell asks what may come."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UsageError.exit_status)
        return super().parse_args(ctx, args)
