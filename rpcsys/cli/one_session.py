"""The session of a command that uses one board: the shell's hold, a leased board, or a server without a tracker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from rpcsys import progress
from rpcsys.cli import options
from rpcsys.cli.run import parse_labels
from rpcsys.client import Session, attaching, connect, connect_tracker
from rpcsys.errors import SessionLost, UsageError
from rpcsys.link import standing_key
from rpcsys.query import terminal


def of_one_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `opened` takes."""
    wanted = [
        click.option("--key", help="The kind of device to lease (default: the one that this shell holds)."),
        click.option("--label", "labels", metavar="K=V", multiple=True, help="A label that it must have; repeatable."),
        click.option("--server", metavar="HOST:PORT", help="This device server, without a tracker and a lease."),
        click.option("--key-file", type=options.FILE, help="With --server: the file with its key."),
        click.option("--wait-timeout", type=options.Number(0), help="Seconds to wait for a device (else no limit)."),
        options.tracker,
    ]
    return terminal.with_options(*wanted)(function)


@contextlib.contextmanager
def opened(
    key: str | None, labels: Sequence[str], server: str | None, key_file: Path | None, tracker: str | None,
    wait_timeout: float | None,
) -> Iterator[Session]:  # fmt: skip
    """A session with one board. Raises `UsageError` where nothing says which."""
    if key is not None:
        options.check_key(key)
    if server is not None:
        found = standing_key.match_key(str(key_file)) if key_file is not None else key or ""
        with connect(server, key=found) as session:
            yield session
        return
    if key_file is not None:
        raise UsageError("--key-file is for one server: say which, with --server HOST:PORT")
    wanted = parse_labels(labels)
    attached = attaching.to_hold(key, wanted, None)  # without the tracker, which may be away while the hold lasts
    if attached is not None:
        try:
            with attached:
                yield attached
        except SessionLost as error:
            raise attaching.explained(attaching.here(), error) from None
        return
    if key is None and not wanted:
        raise UsageError("give --key, the kind of device to lease (query_tracker lists them), or a --label")
    with connect_tracker(options.tracker_address(tracker)) as connection:
        with progress.steps() as place:
            session = connection.request(key, labels=wanted, wait_timeout=wait_timeout, on_queued=place.say)
        with session:
            yield session
