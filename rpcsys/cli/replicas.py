"""``rpcsys replicas setup``: the settings of etcd and of the tracker, on each host of a lab with replicas."""

from __future__ import annotations

import contextlib
import difflib
import shutil
import socket
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

import click

from rpcsys import data
from rpcsys.cli import environment_file, options, replica_settings
from rpcsys.cli.replica_settings import EngineHost
from rpcsys.errors import ConfigError, UsageError
from rpcsys.tracker import tables

ETCD, TRACKER = Path("etc/default/etcd"), Path("etc/rpcsys/tracker.environment")
_STATE = Path("var/lib/rpcsys-tracker/tracker.sqlite")
_Changes = list[tuple[Path, str, str]]


@click.group(cls=options.CommandGroup, short_help="Several trackers of one lab: the others take over.")
def replicas() -> None:
    """Set up trackers that take over from each other, and etcd, which they share.

    `query_tracker replicas` shows them.
    """


_SETUP = """Write the settings of etcd and of the tracker on this machine, one of the HOSTs.

\b
apt install etcd-server rpcsys-tracker     on each of them, and then:
rpcsys replicas setup lab-1 lab-2 lab-3    the same on each
rpcsys replicas setup lab-1 lab-2 --engine lab-3

What changes is shown before it is written; the file before is kept beside it, as .old. What else stands there stays.
HOSTs are names or addresses by which the machines, the boards and the clients reach each other.
"""


@replicas.command(help=_SETUP, short_help="Write the settings of etcd and the tracker on this host.")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@click.option("--engine", "engines", metavar="HOST", multiple=True,
              help="A machine with a member of etcd and without a tracker; repeatable.")  # fmt: skip
@click.option("--this", metavar="HOST", help="Which of them is this machine (default: found by its addresses).")
@click.option("--lab-name", default="lab", show_default=True, metavar="NAME", help="The lab's name in etcd.")
@click.option("--dry-run", is_flag=True, help="Show what changes, and write nothing.")
@click.option("--yes", is_flag=True, help="Write without a question.")
@click.option("--root", type=options.FilePath(file_okay=False), default="/", hidden=True)
def setup(
    hosts: tuple[str, ...], engines: tuple[str, ...], this: str | None, lab_name: str, dry_run: bool, yes: bool,
    root: Path,
) -> None:  # fmt: skip
    """The command; `_SETUP` describes it."""
    hosts, engines = (tuple(host.strip("[]") for host in named) for named in (hosts, engines))
    replica_settings.check_hosts(hosts, engines, lab_name)
    addresses = {host: _address(host) for host in (*hosts, *engines)}
    own = _this(addresses, this)
    also = _loopback_as_others_see_it(addresses, own)
    members = [EngineHost(host, address) for host, address in addresses.items()]
    replica_settings.check_members(members)
    settings = replica_settings.etcd_settings(members, EngineHost(own, addresses[own]), also)
    before = _read(root / ETCD)
    _check_data(root, before, settings)
    changes = [(root / ETCD, before, environment_file.with_values(before, settings))]
    alone = False
    if own in hosts:
        changes.append(_tracker_change(root / TRACKER, [*hosts, *engines], own, lab_name))
        alone = not replica_settings.is_replica(_flags(changes[-1][1])) and _has_history(root / _STATE)
    _apply([change for change in changes if change[1] != change[2]], own, dry_run, yes)
    if not dry_run:
        _say_next(own in hosts, alone, own)


def _read(path: Path) -> str:
    try:
        return environment_file.read(path)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text: move it away, and type this again") from None


def _flags(text: str) -> str:
    return environment_file.value(text, replica_settings.FLAGS)


def _tracker_change(path: Path, hosts: Sequence[str], own: str, lab: str) -> tuple[Path, str, str]:
    before = _read(path)
    base = before or (data.folder("systemd") / TRACKER.name).read_text("utf-8")
    flags = replica_settings.tracker_flags(_flags(base), hosts, own, lab)
    return path, before, environment_file.with_values(base, {replica_settings.FLAGS: flags})


# --- which machine is which --------------------------------------------------------------------


def _address(host: str) -> str:
    """The address of a host, one that other machines can reach if it has one. Raises `ConfigError`."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        how = "correct it, or add its address to /etc/hosts on each host"
        raise ConfigError(f"{host} has no address, by what this machine knows: {how}") from None
    addresses = [ip_address(where[0]) for *_, where in found]
    return str(min(addresses, key=lambda each: (each.is_loopback, each.is_link_local, each.version)))


def _this(addresses: Mapping[str, str], given: str | None) -> str:
    """Which of the hosts this machine is. Raises `UsageError`: none is, or several are."""
    names = ", ".join(addresses)
    if given is not None:
        if given not in addresses:
            raise UsageError(f"--this {given} is none of the hosts: {names}")
        return given
    own = [host for host, address in addresses.items() if _is_own(address)]
    if len(own) != 1:
        how = "say which one it is with --this HOST"
        where = f"{', '.join(own)} are all addresses" if own else f"none of {names} is an address"
        raise UsageError(f"{where} of this machine: {how}")
    return own[0]


def _is_own(address: str) -> bool:
    """Whether the machine has an address: only then can a socket be bound to it."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _loopback_as_others_see_it(addresses: dict[str, str], own: str) -> list[str]:
    """Correct the address of this machine where its own name means its loopback, as Debian's /etc/hosts has it.

    Returns that of the loopback, if so: its tracker finds its etcd there. Raises `ConfigError`: another host's name
    means loopback, or the others are out of reach.
    """
    local = [host for host, address in addresses.items() if ip_address(address).is_loopback]
    if not local or len(local) == len(addresses):  # all on one machine
        return []
    loopback, other = addresses[own], next(host for host in addresses if host not in local)
    if local != [own]:
        wrong = next(host for host in local if host != own)
        raise ConfigError(f"{wrong} is {addresses[wrong]} here, this machine itself: correct that in /etc/hosts")
    with socket.socket(_family(addresses[other]), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((addresses[other], 9))  # sends nothing
        except OSError as error:
            raise ConfigError(f"there is no way to {other}, {addresses[other]}: {error.strerror}") from None
        addresses[own] = probe.getsockname()[0]
    return [loopback]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# --- what is there -----------------------------------------------------------------------------


def _check_data(root: Path, before: str, settings: dict[str, str]) -> None:
    """Leave a member of this cluster the folder that it has.

    Raises `ConfigError` if etcd has data of another cluster, in its folder or in the one that it is to have.
    """
    cluster = environment_file.value(before, replica_settings.CLUSTER)
    known = replica_settings.same_cluster(cluster, settings[replica_settings.CLUSTER])
    if known and environment_file.value(before, replica_settings.NAME) == settings[replica_settings.NAME]:
        del settings[replica_settings.DATA]
        return
    for name in (environment_file.value(before, replica_settings.DATA), replica_settings.DATA_FOLDER):
        folder = root / name.lstrip("/")
        if name and _exists(folder / "member"):
            what = f"{folder} has the data of another etcd ({cluster or 'nothing says which'})"
            how = "to replace one host see docs/replicas.md; to begin anew, stop etcd and move that folder away"
            raise ConfigError(f"{what}: {how}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # as who may not look: nor may this user write
        return False


def _has_history(path: Path) -> bool:
    """Whether a tracker's file has leases."""
    if not _exists(path):
        return False
    try:
        with contextlib.closing(tables.open_for_reading(path)) as file:
            return file.execute("SELECT 1 FROM leases LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True  # who cannot read it is told of it


# --- what changes ------------------------------------------------------------------------------


def _apply(changes: _Changes, own: str, dry_run: bool, yes: bool) -> None:
    """Show the changes and write them, if wanted. Raises `UsageError`: nobody can be asked."""
    if not changes:
        click.echo(f"nothing changes: {own} has these settings")
        return
    for path, before, after in changes:
        was, will, name = before.splitlines(), after.splitlines(), str(path)
        # Without the lines around what changes: one may have a password.
        click.echo("\n".join(difflib.unified_diff(was, will, name, name, n=0, lineterm="")))
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is no terminal to ask at: say --yes to write this, or --dry-run to see it")
        click.confirm("Write this?", abort=True, err=True)
    for path, _, after in changes:
        environment_file.write(path, after)


def _say_next(with_tracker: bool, alone: bool, own: str) -> None:
    units = "etcd rpcsys-tracker" if with_tracker else "etcd"
    lines = [
        "Type next, on all hosts (etcd starts once two of them have it):",
        f"  systemctl enable {units} && systemctl restart {units}",
        "Then, anywhere:",
        f"  query_tracker replicas --host {own}",
    ]
    if alone:
        lines.append("The tracker here has run alone, and the first that leads gives its leases and places to all:")
        lines.append("  start rpcsys-tracker on the others when this one leads")
    if shutil.which("etcd") is None:
        lines.insert(0, "etcd is not installed here: apt install etcd-server")
    click.echo("\n".join(lines), err=True)
