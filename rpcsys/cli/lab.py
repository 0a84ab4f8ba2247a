"""``rpcsys lab``: the members of a lab, its keys, and its audit log."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rpcsys.cli import options
from rpcsys.cli.lab_link import ask, credential_for, lab_link
from rpcsys.client import answers
from rpcsys.client.listings import whole_summary
from rpcsys.errors import ConfigError, ConnectError, Forbidden, RpcsysError, UsageError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.query import reports, terminal
from rpcsys.tracker import audit as audit_log
from rpcsys.tracker import policy
from rpcsys.wire import checks, membership, tokens
from rpcsys.wire.checks import optional, record, rows
from rpcsys.wire.sign_in import LabLine
from rpcsys.wire.tokens import HolderKind, Token

KINDS = {"p": "person", "b": "board", "x": "proxy"}
_MEMBERS = rows(record(name=checks.text, kind=checks.text, groups=rows(checks.text), keys=rows(checks.text)))
_TIMES = checks.partial(
    **dict.fromkeys(("joined", "expires", "used", "revoked", "invited_until"), optional(checks.seconds))
)
_ENROLLED = record(lab=checks.text, trackers=rows(checks.text), pins=rows(checks.text), token=checks.text)
_NAMED = 20  # peers that are shut out
_MODULES = dict.fromkeys(("init", "check", "recover"), "rpcsys.cli.lab_host")

_HELP = """A lab on a network that nobody trusts: its members, its keys, and who did what.

\b
Make one:              rpcsys lab init --host lab-host:9190
A member:              rpcsys lab invite bo --group compiler
A board:               rpcsys board add root@board --key rpi4
Who is in it:          rpcsys lab members
Somebody leaves:       rpcsys lab revoke bo
"""


@click.group(cls=options.CommandGroup, modules=_MODULES, help=_HELP, short_help="Members, keys and log of a lab.")
def lab() -> None:
    """The group; `_HELP` describes it."""


def lasting(_ctx: click.Context | None, _param: click.Parameter | None, value: str | None) -> float | None:
    """The seconds of a duration such as 90d. Raises click.BadParameter."""
    seconds = None if value is None else policy.seconds(value)
    if value is not None and seconds is None:
        raise click.BadParameter(f"{value!r} is no duration: write 30min, 12h or 90d")
    return seconds


# Members

_KEYS = click.option("--key", "keys", multiple=True, metavar="KEY",
                     help="A key that the board or proxy may offer; repeatable.")  # fmt: skip
_AGAIN = click.option("--again", is_flag=True, help="Replace an invitation of that name that waits.")


@lab.command(short_help="Print an invitation for a new member.")
@click.argument("name")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group to be in; repeatable.")
@click.option("--expires", "lasts_s", callback=lasting, metavar="90d", help="How long the membership lasts.")
@click.option("--board", is_flag=True, help="For a board, with its --key.")
@click.option("--proxy", is_flag=True, help="For a proxy.")
@_KEYS
@_AGAIN
@options.tracker
def invite(
    name: str, groups: tuple[str, ...], lasts_s: float | None, board: bool, proxy: bool, keys: tuple[str, ...],
    again: bool, tracker: str | None,
) -> None:  # fmt: skip
    """Print one line, with which NAME becomes a member by `rpcsys login`, once and within 24 hours.

    Whoever has the line can use it: send it as you would send a password.
    """
    if board and proxy:
        raise UsageError("--board and --proxy: give one of them, for an invitation is for one")
    kind = HolderKind.BOARD if board else HolderKind.PROXY if proxy else HolderKind.PERSON
    with lab_link(tracker) as link:
        answer = ask(link, membership.Invite(0, name, kind, keys, groups, lasts_s, again))
    click.echo(answers.from_tracker(checks.sentence, answer.get("invitation"), "invitation"))


@lab.command(short_help="Make the credential of a board or a proxy.")
@click.option("--board", metavar="NAME", help="The board's name: it registers under this one.")
@click.option("--proxy", metavar="NAME", help="The proxy's name.")
@_KEYS
@click.option("--out", type=options.FILE, metavar="FILE", help="The file to write (default: standard output).")
@_AGAIN
@options.tracker
def enrol(
    board: str | None, proxy: str | None, keys: tuple[str, ...], out: Path | None, again: bool, tracker: str | None
) -> None:
    """Make a board or a proxy a member, and print its credential, a file for that machine alone.

    On a board it is /etc/rpcsys/lab.json, mode 600; its server, or the proxy, is started with --lab and that file.
    `rpcsys board add` does all of this by itself.
    """
    if (board is None) == (proxy is None):
        raise UsageError("give one of these: --board NAME, or --proxy NAME")
    if out is not None and out.exists():
        raise UsageError(f"--out {out}: it is there already; choose another name, or remove it")
    name = board if board is not None else str(proxy)
    made = enrolled(tracker, name, HolderKind.PROXY if board is None else HolderKind.BOARD, keys, again)
    if out is None:
        click.echo(made.text(), nl=False)
        return
    try:
        credential.write(str(out.absolute()), made)
    except OSError as error:
        how = f"type: rpcsys lab revoke {name}, and try again elsewhere"
        raise ConfigError(f"{name} is enrolled, and {out} cannot be written: {error.strerror}; {how}") from None
    program = "the proxy" if board is None else "its server"
    how = f"move it to that machine, mode 600, and start {program} there with --lab and this file"
    click.echo(f"{out} is the credential of {name}: {how}", err=True)


def enrolled(
    tracker: str | None, name: str, kind: HolderKind, keys: tuple[str, ...], again: bool = False
) -> Credential:
    """Make a board or a proxy a member; return its credential. Asks again if the connection breaks meanwhile."""
    secret = tokens.new_secret()
    message = membership.Enrol(0, name, kind, tokens.hash_of(secret), keys, again)
    try:
        with lab_link(tracker) as link:
            answer = ask(link, message)
    except ConnectError:
        with lab_link(tracker) as link:
            answer = ask(link, message)
    found = answers.from_tracker(_ENROLLED, answer, "enrolment")
    token = Token(kind, found["token"], secret)
    return Credential(found["lab"], name, tuple(found["trackers"]), tuple(found["pins"]), token.text)


def board_credential(tracker: str, name: str, keys: tuple[str, ...]) -> Credential:
    """Enrol a board, which is there and has no credential any more if it was enrolled before."""
    try:
        return enrolled(tracker, name, HolderKind.BOARD, keys, again=True)
    except Forbidden:
        if not revoke_board(tracker, name):
            raise
        return enrolled(tracker, name, HolderKind.BOARD, keys, again=True)


def revoke_board(tracker: str, name: str) -> bool:
    """End the membership of a board; whether there was one of that name."""
    with lab_link(tracker) as link:
        for row in _members(link):
            if row["name"] == name and row["kind"] == HolderKind.BOARD.value and not row.get("revoked"):
                ask(link, membership.Revoke(0, name))
                return True
    return False


@lab.command(short_help="Print the lab's line, for people who sign in.")
@options.tracker
def line(tracker: str | None) -> None:
    """Print the tracker's addresses and pins in one line, which is no secret, for `rpcsys login`.

    It is for people who sign in at the issuer in the rules ([oidc]). Put it where keepers alone can change it: whoever
    signs in by a false line hands his ID token to somebody else.
    """
    known, _ = credential_for(tracker)
    click.echo(LabLine(known.trackers, known.pins).text)


@lab.command("members", short_help="List the members, and who is invited.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@options.tracker
def members_(as_json: bool, tracker: str | None) -> None:
    """List the members of the lab: people, boards and proxies, those who are gone, and invitations that wait."""
    with lab_link(tracker) as link:
        found = list(_members(link))
        summary = whole_summary(link)
    terminal.print_rows(found, _COLUMNS, as_json)
    if not as_json:
        reports.print_clear(summary)


def _members(link: Link) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        answer = ask(link, membership.ListMembers(0, after))
        yield from map(_checked, answers.from_tracker(_MEMBERS, answer.get("members"), "members"))
        following = answers.from_tracker(checks.text, answer.get("next", ""), "next")
        if following <= after:
            return
        after = following


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    return dict(answers.from_tracker(_TIMES, row, "member"))


def _state(row: dict[str, Any]) -> str:
    now = time.time()
    if row.get("invited_until"):
        return f"invited until {moment(row['invited_until'])}"
    if row.get("revoked"):
        return f"revoked {moment(row['revoked'])}"
    if (row.get("expires") or now) < now:
        return f"expired {moment(row['expires'])}"
    return "to renew its token" if row.get("renew") else "member"


def moment(at: float | None) -> str:
    """A time of the tracker's clock, for people; ``-`` for None."""
    try:
        return (
            "-"
            if at is None
            else dt.datetime.fromtimestamp(at, dt.timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M")
        )
    except (ValueError, OverflowError, OSError):
        return "far away"


_COLUMNS: terminal.Columns = {
    "name": "name",
    "kind": lambda row: KINDS.get(row["kind"], row["kind"]),
    "groups, keys": lambda row: ", ".join([*row["groups"], *row["keys"]]) or "-",
    "joined": lambda row: moment(row.get("joined")),
    "last seen": lambda row: moment(row.get("used")),
    "expires": lambda row: moment(row.get("expires")),
    "state": _state,
}


@lab.command(short_help="End memberships, with their connections and leases.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@options.tracker
def revoke(names: tuple[str, ...], tracker: str | None) -> None:
    """End the membership of NAME, or an invitation that waits. Its connections and leases end within 2 seconds."""
    with lab_link(tracker) as link:
        for name in names:
            ask(link, membership.Revoke(0, name))
            terminal.say(f"{name} is no member any more")


@lab.command(short_help="Have members make themselves new tokens.")
@click.argument("name", metavar="NAME|'*'")
@options.tracker
def renew(name: str, tracker: str | None) -> None:
    """Have NAME, or with '*' every member, make itself a new token when it connects next.

    The old one is valid until the new one was used. A token that was stolen is ended by `rpcsys lab revoke` alone:
    whoever has it can renew it, too.
    """
    with lab_link(tracker) as link:
        asked = ask(link, membership.RenewToken(0, name)).get("asked")
    count = terminal.counted(answers.from_tracker(answers.count, asked, "asked"), "member")
    click.echo(f"{count} will have a new token; rpcsys lab members shows who is still to connect")


# The lab's keys and doors


@lab.command(short_help="Put the tracker's spare key in service.")
@click.option("--spare", "file", type=options.FilePath(exists=True, dir_okay=False), metavar="FILE",
              help="The spare key, if it is not in the lab's folder.")  # fmt: skip
@click.option("--force", is_flag=True, help="Also if members would be locked out.")
@options.tracker
def rotate(file: Path | None, force: bool, tracker: str | None) -> None:
    """Put the tracker's spare key in service, and make a new spare: after its key may have been read by others.

    Members follow by themselves when they connect next. One who misses two rotations has to be invited again; the
    tracker names those, and refuses without --force.
    """
    spare = "" if file is None else options.read_text(file, "a key")
    with lab_link(tracker) as link:
        answer = ask(link, membership.Rotate(0, spare, force))
    pins = answers.from_tracker(rows(checks.text), answer.get("pins"), "pins")
    where = answers.from_tracker(checks.sentence, answer.get("spare", ""), "spare")
    terminal.print_json({"pins": pins, "spare": where})
    terminal.say(f"members follow when they connect next; move the tracker's file {where} to a safe place", err=True)


@lab.command("open", short_help="Serve clients and servers without credentials, too.")
@options.tracker
def open_(tracker: str | None) -> None:
    """Serve those without a credential, too, as a tracker without a lab does, until `rpcsys lab close`."""
    _set_open(tracker, True, "everybody who reaches the tracker is served, until you type: rpcsys lab close")


@lab.command(short_help="Serve members only.")
@options.tracker
def close(tracker: str | None) -> None:
    """Serve members only, and whom [tvm] in policy.toml lets in. Leases go on. Who is shut out now is named."""
    _set_open(tracker, False, "members alone are served, and whom [tvm] in policy.toml lets in")


def _set_open(tracker: str | None, wanted: bool, text: str) -> None:
    shut_out: list[str] = []
    with lab_link(tracker) as link:
        if not wanted:
            found = reports.in_clear(whole_summary(link))
            shut_out = [reports.clear_name(row) for row in found if not row["allowed"]]
        ask(link, membership.SetOpen(0, wanted))
    click.echo(text)
    if shut_out:
        count = terminal.counted(len(shut_out), "peer")
        named = ", ".join(dict.fromkeys(shut_out[:_NAMED])) + (" and others" if len(shut_out) > _NAMED else "")
        terminal.say(f"{count} without a credential shut out: {named}; rpcsys lab open lets them in again", err=True)


# The audit log


@lab.command(short_help="Show who did what.")
@click.option("--since", type=reports.when, help="Not before: 90m, 2h or 7d ago, or 2026-11-20 [12:00].")
@click.option("--verify", is_flag=True, help="Check that no line was changed, removed or added.")
@click.option("--head", metavar="HASH", default="",
              help="With --verify: a hash that was kept elsewhere, such as one of the tracker's log.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the lines as they are in the file.")
@options.tracker
def audit(since: float | None, verify: bool, head: str, as_json: bool, tracker: str | None) -> None:
    """Show the audit log: who came in, leased, changed and was refused what.

    Each line has the hash of the one before. A log that was written anew from its beginning is found with --head alone.
    """
    if head and not (verify and membership.is_hash(head)):
        raise UsageError("--head needs --verify, and is a hash of 64 digits")
    with lab_link(tracker) as link:
        if verify:
            _verify(link, head)
            return
        for line in _lines(link):
            _show(line, since, as_json)


def _verify(link: Link, head: str) -> None:
    found = audit_log.verify((line.encode("utf-8", "surrogateescape") for line in _lines(link)), head)
    if found.broken:
        raise RpcsysError(f"line {found.broken} of the audit log does not fit: {found.why}; see the copies of the file")
    click.echo(f"{terminal.counted(found.lines, 'line')}, none changed; the last one's hash is {found.head}")


def _lines(link: Link) -> Iterator[str]:
    start = 1
    while start:
        answer = ask(link, membership.Audit(0, start))
        yield from answers.from_tracker(rows(checks.sentence), answer.get("lines"), "lines")
        following = answers.from_tracker(answers.count, answer.get("next", 0), "next")
        start = following if following > start else 0


def _show(line: str, since: float | None, as_json: bool) -> None:
    try:
        fields = json.loads(line)
        at = float(fields["at"])
    except (ValueError, KeyError, TypeError, RecursionError):
        fields, at = None, float("inf")
    if since is not None and at < since:
        return
    if as_json:
        terminal.say(line)
    elif fields is None:
        terminal.say(f"(no entry: {line[:80]})")
    else:
        who = terminal.who(str(fields.get("who")), str(fields.get("from")))
        result = f"  ({fields['result']})" if fields.get("result") else ""
        terminal.say(f"{moment(at)}  {who}  {fields.get('did')} {fields.get('on', '')}".rstrip() + result)
