"""``rpcsys login`` and ``rpcsys whoami``: become a member of a lab, and see as whom."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rpcsys.cli import options, own_credential, sign_in
from rpcsys.cli.lab import KINDS, moment
from rpcsys.cli.lab_link import ask, lab_link, open_first
from rpcsys.client import answers
from rpcsys.errors import ConfigError, ProtocolError
from rpcsys.link.address import parse_address
from rpcsys.link.credential import Credential
from rpcsys.query import terminal
from rpcsys.tracker.access import is_name
from rpcsys.wire import checks, membership, tokens
from rpcsys.wire.checks import optional, record, rows
from rpcsys.wire.sign_in import PREFIX, parse_line
from rpcsys.wire.tokens import HolderKind, Invitation, Token

MAX_TYPED = 4 * tokens.MAX_INVITATION  # characters, with the spaces that a mail puts in between
KEPT_S = 86400.0  # as long as an invitation may be used, so long is the secret kept that was made for it
_SECRET = re.compile("[A-Za-z0-9_-]{43}").fullmatch
_JOINED = record(lab=checks.text, member=checks.text, kind=checks.text)
_WHO = record(
    **dict.fromkeys(("lab", "member", "kind"), checks.text),
    groups=rows(checks.text),
    keys=rows(checks.text),
    joined=checks.seconds,
    **dict.fromkeys(("expires", "used"), optional(checks.seconds)),
)

_LOGIN = """Become a member of a lab, with the invitation that its keeper has sent.

\b
rpcsys login            paste it; it is not shown
rpcsys login <FILE

Where the lab's keeper trusts an issuer (OIDC), sign in there instead, with the line that `rpcsys lab line` prints, and
later on with the tracker's address. The membership ends after some hours.

\b
rpcsys login rpcsys-lab:…
rpcsys login HOST:PORT

The credential is ~/.config/rpcsys/labs/LAB.json, for you on this machine: for another one, ask for an invitation with
another name. If the connection breaks, type it again with the same invitation.
"""


@click.command(help=_LOGIN, short_help="Become a member of a lab.")
@click.argument("lab", required=False, metavar="[LINE|HOST:PORT]")
@click.option("--out", type=options.FILE, metavar="FILE",
              help="The credential's file, such as a board's /etc/rpcsys/lab.json.")  # fmt: skip
def login(lab: str | None, out: Path | None) -> None:
    """The command; `_LOGIN` describes it."""
    if lab is not None:
        sign_in.become_member(sign_in.line_of(lab), out)
        return
    text = _read()
    if text.strip().startswith(PREFIX):
        sign_in.become_member(parse_line(text), out)
    else:
        _join(tokens.parse_invitation(text), out)


def _join(invitation: Invitation, out: Path | None) -> None:
    """Become a member by an invitation."""
    addresses = [parse_address(address) for address in invitation.addresses]
    attempt = _attempt(invitation)
    try:
        secret = _secret(attempt)
    except OSError as error:
        raise ConfigError(f"cannot write {attempt}: {error.strerror}; nothing was sent, so try again") from None
    stranger = Credential("of this invitation", "", invitation.addresses, invitation.pins, "")
    joining = {"invitation": f"{invitation.id}.{invitation.secret}", "hash": tokens.hash_of(secret)}
    with open_first(addresses, stranger, joining) as link:
        answer, by_spare = link.tracker, link.by_spare
    own = _own(invitation, secret, answer)
    place = str((out or Path(own_credential.path_of(own.lab))).absolute())
    again = "type rpcsys login again with the same invitation"
    own_credential.keep_joined(place, own, answer, by_spare, again)
    _clean(attempt)
    terminal.say(f"you are {own.member} in lab {own.lab}; type next: export RPCSYS_TRACKER={own.trackers[0]}")


def _own(invitation: Invitation, secret: str, answer: dict[str, Any]) -> Credential:
    """The new member's credential. Raises `ProtocolError`: the tracker's answer has no names for it."""
    found = answers.from_tracker(_JOINED, answer, "answer")
    if not is_name(found["lab"]) or found["kind"] not in KINDS:
        raise ProtocolError("the tracker has not said which lab this is")
    token = Token(HolderKind(found["kind"]), invitation.id, secret)
    return Credential(found["lab"], found["member"], invitation.addresses, invitation.pins, token.text)


# The secret that this machine makes


def _attempt(invitation: Invitation) -> str:
    """Where the secret is that was made for an invitation, until the credential is there."""
    return os.path.join(os.path.dirname(own_credential.path_of("any")), f"joining-{invitation.id}")


def _secret(attempt: str) -> str:
    """The secret of this join; after an attempt that broke off it is the same, and so is the join. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        secret = Path(attempt).read_text("ascii", "replace").strip()
        if _SECRET(secret):
            return secret
    secret = tokens.new_secret()
    own_credential.keep(attempt, secret + "\n")
    return secret


def _clean(attempt: str) -> None:
    """Remove the secret of an attempt that succeeded, and of those whose invitations are too old."""
    for path in Path(attempt).parent.glob("joining-*"):
        with contextlib.suppress(OSError):
            if str(path) == attempt or time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()


# Reading an invitation


def _read() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.read(MAX_TYPED)
    text = ""
    with _without_echo(sys.stdin.fileno()):
        click.echo("Paste the invitation (it is not shown): ", nl=False, err=True)
        while len(text) < MAX_TYPED:
            line = sys.stdin.readline()
            text += line
            if not line.strip() or _is_whole(text):
                break
            click.echo("\nThe line is not whole; paste the rest, or an empty line: ", nl=False, err=True)
    click.echo(err=True)
    return text


def _is_whole(text: str) -> bool:
    try:
        tokens.parse_invitation(text)
    except ConfigError:
        return not text.strip().startswith((tokens.INVITATION, PREFIX)) or _is_line(text)
    return True


def _is_line(text: str) -> bool:
    try:
        parse_line(text)
    except ConfigError:
        return False
    return True


@contextlib.contextmanager
def _without_echo(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@click.command(short_help="Show as whom a lab knows you, and what you may do.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@options.tracker
def whoami(as_json: bool, tracker: str | None) -> None:
    """Show the lab, your name and rights in it, since when you are a member, and until when."""
    with lab_link(tracker) as link:
        rights = answers.from_tracker(rows(checks.text), link.tracker.get("rights", []), "rights")
        answer = answers.from_tracker(_WHO, ask(link, membership.WhoAmI(0)), "answer")
    found = {name: answer[name] for name in ("lab", "member", "kind", "groups", "keys", "joined", "expires", "used")}
    if as_json:
        terminal.print_json({**found, "rights": rights})
        return
    shown = {
        **found,
        "kind": KINDS.get(found["kind"], found["kind"]),
        "groups": ", ".join(found["groups"]),
        "keys": ", ".join(found["keys"]),
        "rights": ", ".join(rights),
        **{name: moment(found[name]) for name in ("joined", "expires", "used")},
    }
    if found["kind"] == HolderKind.PERSON.value:
        del shown["keys"]  # those that a board or a proxy may offer
    terminal.print_pairs([(name, text or "-") for name, text in shown.items()])
