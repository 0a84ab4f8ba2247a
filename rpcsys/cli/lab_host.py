"""``rpcsys lab init``, ``check`` and ``recover``: what is done on the tracker's host, in the lab's folder."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from fnmatch import fnmatchcase
from pathlib import Path

import click

from rpcsys.cli import environment_file, options, own_credential
from rpcsys.errors import ConfigError, UsageError, one_line
from rpcsys.link.address import address_text, parse_address
from rpcsys.link.credential import Credential
from rpcsys.query import terminal
from rpcsys.tracker import access, lab_folder, oidc, policy
from rpcsys.tracker.access import Access, Right
from rpcsys.tracker.audit import RECOVER, AuditEntry, AuditLog
from rpcsys.tracker.lab_folder import KEEPERS, LabFolder
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind

#: The settings of the packages' tracker, and the folder to which that has access.
SETTINGS, SERVICE_FOLDER = Path("/etc/rpcsys/tracker.environment"), Path("/var/lib/rpcsys-tracker/lab")
ROOTS_FOLDER = Path("/var/lib/rpcsys/lab")
FLAGS = "TRACKER_FLAGS"

_DIR = click.option("--dir", "folder", metavar="DIR", type=options.FILE,
                    help="The lab's folder (default: /var/lib/rpcsys/lab as root, that of the service with the "
                    "packages, else ~/.local/share/rpcsys/lab).")  # fmt: skip
_MEMBER = click.option("--member", metavar="NAME", help="Your name in the lab (default: your login name).")


def default_folder() -> Path:
    """Where a lab is if nobody says otherwise."""
    if os.geteuid() == 0:
        return SERVICE_FOLDER if SETTINGS.exists() else ROOTS_FOLDER
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rpcsys" / "lab"


_INIT = """Make a lab: its keys and rules, and you as its first member, a keeper.

\b
rpcsys lab init --host lab-host:9190
rpcsys tracker --lab DIR                    what is said next has the folder
rpcsys lab invite bo                        the line that bo pastes into: rpcsys login

The line of JSON on standard output has lab, pins, member, credential (your file) and spare: a key to keep elsewhere,
with which the lab comes back after its tracker's host was broken into or lost.
"""


@click.command(help=_INIT, short_help="Make a lab, with you as its keeper.")
@_DIR
@click.option("--host", "hosts", metavar="HOST:PORT", multiple=True, required=True,
              help="The tracker's address for desks and boards; repeatable.")  # fmt: skip
@click.option("--name", help="The lab's name (default: this machine's).")
@_MEMBER
@click.option("--open", "open_too", is_flag=True,
              help="Serve clients and servers without credentials, too, until `rpcsys lab close`.")  # fmt: skip
def init(folder: Path | None, hosts: tuple[str, ...], name: str | None, member: str | None, open_too: bool) -> None:
    """The command; `_INIT` describes it."""
    path = (folder or default_folder()).absolute()
    addresses = [address_text(*parse_address(host, options.PORT)) for host in hosts]
    lab = name or socket.gethostname().partition(".")[0]
    founder = _member_name(member)
    place = own_credential.path_of(lab)
    if not access.is_name(lab):
        raise ConfigError(f"{lab!r} is no name for a lab: letters, digits and ._@+-, at most 64; give --name")
    if not (path / lab_folder.SETTINGS).exists():
        _check_own(place, addresses)
    made = lab_folder.create(path, lab, addresses, founder, open_too=open_too)
    _give_to_service(path)
    _keep(made, place, path)
    in_service = folder is None and path == SERVICE_FOLDER and _set_flag(path)
    _print(LabFolder(path), made, place)
    port = parse_address(addresses[0])[1]
    listen = "" if port == options.PORT else f" --port {port}"
    start = "systemctl restart rpcsys-tracker" if in_service else f"rpcsys tracker --lab {path}{listen}"
    add = f"rpcsys board add root@BOARD --key KEY --tracker {addresses[0]}"
    lines = [
        f"lab {lab} is in {path}. Type next:",
        f"  {start}",
        f"  export RPCSYS_TRACKER={addresses[0]}",
        "  rpcsys lab invite NAME     for each member: prints the line to paste into rpcsys login",
        f"  {'rpcsys board secure --all' if open_too else add}",
        f"Move {LabFolder(path).spare_path} to a safe place elsewhere: it brings the lab back if this machine is lost.",
    ]
    if open_too:
        lines.append("Everybody is served, as before, until you type: rpcsys lab close")
    terminal.say("\n".join(lines), err=True)


def _check_own(place: str, addresses: list[str]) -> None:
    """Raises UsageError: the user has a credential for a lab of this name or address."""
    for file in [*([place] if os.path.exists(place) else []), *own_credential.others(addresses, place)]:
        how = "remove it if that lab is gone, or give this one another --name and --host"
        raise UsageError(f"you have a credential for a lab of that name or address, {file}: {how}")


def _member_name(given: str | None) -> str:
    name = given or own_credential.login_name()
    if not access.is_name(name):
        what = f"{given!r} is no name for a member" if given else "your login name can be no member's"
        raise ConfigError(f"{what}: give --member NAME, of letters, digits and ._@+-, at most 64")
    return name


def _keep(made: Credential, place: str, folder: Path) -> None:
    try:
        own_credential.keep(place, made.text())
    except OSError as error:
        how = f"repair that, and type: rpcsys lab recover --dir {folder}"
        raise ConfigError(f"the lab is made, but your credential {place} cannot be written: {error.strerror}; {how}") \
            from None  # fmt: skip


def _print(folder: LabFolder, made: Credential, place: str) -> None:
    terminal.print_json({
        "lab": made.lab, "pins": made.pins, "member": made.member, "credential": place,
        "spare": str(folder.spare_path),
    })  # fmt: skip


def _give_to_service(path: Path) -> None:
    """Give a folder that root has made below another user's, as a service's is, to that user."""
    above = path.parent.stat()
    if os.geteuid() == 0 and above.st_uid != 0:
        for made in (path, *path.iterdir()):
            os.chown(made, above.st_uid, above.st_gid)


def _set_flag(folder: Path) -> bool:
    """Have the packages' tracker use the lab; whether its settings have it now."""
    try:
        text = SETTINGS.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    flags = environment_file.value(text, FLAGS)
    if "--lab" not in flags.split():
        text = environment_file.with_values(text, {FLAGS: f"{flags} --lab {folder}".strip()})
        try:
            environment_file.write(SETTINGS, text)
        except OSError:
            return False
    return f"--lab {folder}" in text


@click.command(short_help="Check the lab's rules, before the tracker reads them.")
@_DIR
def check(folder: Path | None) -> None:
    """Parse policy.toml in the lab's folder, on the tracker's host, and name the line of a mistake.

    The tracker reads the file by itself when it changes; one with a mistake changes nothing there.
    """
    lab = LabFolder((folder or default_folder()).absolute())
    with contextlib.closing(Members(lab.path)) as members:
        now = time.time()
        groups = {name: member.groups for name, member in members.by_name.items() if member.valid(now)}
        rules = policy.load(lab.policy_path, lab.settings.name, groups)
        known = {*groups, *(each.name for each in members.invited(now))}
    for name in _of_nobody(rules, known):
        click.echo(f"rpcsys: warning: {name!r} is no group, and no member has that name", err=True)
    keepers = ", ".join(rules.keepers(groups))
    counts = [terminal.counted(len(rules.rules), "rule"), terminal.counted(len(groups), "member")]
    terminal.say(f"{lab.policy_path} is right: {', '.join(counts)}; keepers: {keepers or 'nobody'}")
    if rules.oidc is not None and oidc.missing():
        click.echo(f"rpcsys: warning: {oidc.missing()}", err=True)
    if not keepers:
        click.echo(f"rpcsys: warning: nobody is keeper; type: rpcsys lab recover --dir {lab.path}", err=True)


def _of_nobody(rules: Access, members: set[str]) -> list[str]:
    """The names and patterns in rules that fit no member, nor one who is invited."""
    named = {name for rule in rules.rules for one in rule.who for name in rules.groups.get(one, (one,))}
    named -= {access.TVM, access.EVERY_MEMBER}
    return sorted(name for name in named if not any(fnmatchcase(member, name) for member in members))


_RECOVER = """Make you a keeper's credential anew, on the tracker's host: for a lab that has locked its keepers out.

Whoever may write to the lab's folder may do this. A credential that NAME had before ends.

For a copy of the folder on a new host, --spare puts the spare key in service, while no tracker runs. Members follow by
themselves.
"""


@click.command(help=_RECOVER, short_help="Make a keeper's credential, on the tracker's host.")
@click.option("--dir", "folder", metavar="DIR", type=options.FILE, required=True, help="The lab's folder.")
@_MEMBER
@click.option("--spare", type=options.FilePath(exists=True, dir_okay=False), metavar="FILE",
              help="The file that `rpcsys lab init` named as spare: put that key in service.")  # fmt: skip
def recover(folder: Path, member: str | None, spare: Path | None) -> None:
    """The command; `_RECOVER` describes it."""
    path = folder.absolute()
    lab, name = LabFolder(path), _member_name(member)
    place = own_credential.path_of(lab.settings.name)
    others = own_credential.others(lab.settings.addresses, place)
    if others:
        raise UsageError(f"you have a credential for that address already, {others[0]}: remove it, and try again")
    with contextlib.closing(Members(path)) as members, contextlib.closing(AuditLog(path)) as audit:
        alone, now = audit.is_alone(), time.time()
        if spare is not None and not alone:
            raise UsageError("the lab's tracker runs: stop it first; or without a stop: rpcsys lab rotate --spare FILE")
        before = members.by_name.get(name)
        if before is not None and before.kind is not HolderKind.PERSON and before.valid(now):
            raise UsageError(f"{name} is the name of a board or proxy: give yours with --member NAME")
        groups = tuple(dict.fromkeys([KEEPERS, *(before.groups if before else ())]))
        _check_keeper(lab, {**{each.name: each.groups for each in members.by_name.values()}, name: groups}, name)
        if spare is not None:
            lab.rotate(options.read_text(spare, "a key"))
        secret = tokens.new_secret()
        if before is not None and before.valid(now):
            members.revoke(name, now)
        if alone:  # else the running tracker finds the new member, and records it
            audit.write([AuditEntry(now, "", "", RECOVER, name)])
        made = members.enrol(name, HolderKind.PERSON, tokens.hash_of(secret), now, groups=groups, again=True)
    own = lab.credential(name, tokens.Token(HolderKind.PERSON, made.token, secret).text)
    _keep(own, place, path)
    _print(lab, own, place)
    click.echo(f"{name} is keeper of lab {lab.settings.name}; a running tracker knows it in 2 s", err=True)


def _check_keeper(lab: LabFolder, groups: dict[str, tuple[str, ...]], name: str) -> None:
    """Raise `ConfigError` unless the rules make ``name`` a keeper."""
    how = f'its [[allow]] with rights = ["keeper"] must have who = ["{KEEPERS}"]'
    try:
        rules = policy.load(lab.policy_path, lab.settings.name, groups)
    except ConfigError as error:
        raise ConfigError(f"repair the rules first: {one_line(error)}") from None
    if Right.KEEPER not in rules.rights(name):
        raise ConfigError(f"the rules in {lab.policy_path} would not make {name} a keeper: {how}")
