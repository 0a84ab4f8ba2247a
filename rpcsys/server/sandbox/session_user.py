"""Users for sessions (``--session-user``): a session reaches neither the memory nor the files of its server.

Each slot has a user of its own (``auto``), and each deployed version, whose module is clients' code, too. Their numbers
belong to no account: they lie above those that systemd gives to containers (systemd.io/UIDS-GIDS) and below 2**31.
Deployers run no code of clients, and stay the server's user.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import ConfigError
from rpcsys.server.sandbox import privileges, processes

AUTO, NONE = "auto", "none"  # for each slot a user of its own; the server's user
GROUPS = ("video", "render")  # of the devices of accelerators
FIRST = 0x70000000
BLOCKS, BLOCK = 1024, 64  # a server has one block: a user for each slot
CACHE = FIRST + BLOCKS * BLOCK  # the group of the cache's folders, which all sessions share
MODELS = range(0x74000000, 0x78000000)


class User(NamedTuple):
    """A user, a group and more groups, as the kernel numbers them."""

    uid: int
    gid: int
    groups: Tuple[int, ...] = ()


class SessionUsers:
    """The users of one server's sessions and model hosts.

    ``name``: `AUTO` for each slot's own, else one user for all. ``groups``: names of more groups, None for those of
    `GROUPS` that exist. Raises `ConfigError`.
    """

    def __init__(self, name: str, groups: Optional[Sequence[str]] = None, *, cache: bool = False) -> None:
        if os.geteuid():
            raise ConfigError(f"--session-user {name} needs root: only root can give its sessions another user")
        self.own = name == AUTO  # whether no other process has the user of a slot
        self._groups = (*_numbers(groups), *([CACHE] if cache else []))
        if self.own:
            first, self._claim = _claimed()
            self._uids: Sequence[int] = range(first, first + BLOCK)
        else:
            account = _account(name)
            self._groups += tuple(os.getgrouplist(name, account.pw_gid))
            self._uids, self._gid = [account.pw_uid], account.pw_gid

    @property
    def uids(self) -> Sequence[int]:
        """The numbers of sessions' users."""
        return self._uids

    def of_slot(self, slot: int) -> User:
        """The user of the sessions of a slot."""
        if self.own:
            return User(self._uids[slot], self._uids[slot], self._groups)
        return User(self._uids[0], self._gid, self._groups)

    def of_model(self, folder: str) -> User:
        """The user of a deployed version's hosts; its group, alone, may then read ``folder``. Raises OSError.

        The folder's group keeps the number: after a restart the version has the same user.
        """
        user = self.of_slot(0)
        if self.own:
            given = os.stat(folder).st_gid
            number = given if given in MODELS else MODELS[int.from_bytes(os.urandom(4), "big") % len(MODELS)]
            user = User(number, number, self._groups)
        os.chown(folder, -1, user.gid)
        os.chmod(folder, 0o750)
        return user


def become(user: User, home: str) -> None:
    """Make ``user`` the user of this process for good, without capabilities; ``home``: for HOME. Raises OSError.

    The kernel clears the signal of `processes.die_with_parent` meanwhile.
    """
    prepare(user)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    privileges.renounce()
    # The change of user cleared it: without it a process cannot open what is its own in /proc.
    processes.set_dumpable(True)
    os.environ.update(HOME=home, XDG_CACHE_HOME=home)


def prepare(user: User) -> None:
    """Do the part of :func:`become` that is alike for each slot; ahead of it, this makes it quicker. Raises OSError."""
    os.setgroups(user.groups)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ.update(USER="rpcsys", LOGNAME="rpcsys")


def try_out(user: User, paths: Iterable[str]) -> None:
    """Become ``user``, and check that it may read the files and enter the folders ``paths``. Raises OSError."""
    become(user, "/")
    for path in paths:
        if not os.access(path, os.X_OK if os.path.isdir(path) else os.R_OK):
            raise PermissionError(0, f"{path} is closed to them")


def files_of_code() -> List[str]:
    """The files of all modules that are imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({file for file in files if isinstance(file, str) and os.path.isfile(file)})


def _claimed() -> Tuple[int, socket.socket]:
    """The first number of a block that no other server of this machine has, and what holds it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for block in range(BLOCKS):
        try:
            holder.bind(f"\0rpcsys-session-users-{block}")
            return FIRST + block * BLOCK, holder
        except OSError:
            pass  # another server has it
    holder.close()
    raise ConfigError(f"--session-user {AUTO}: {BLOCKS} servers of this machine have all numbers for users")


def _numbers(groups: Optional[Sequence[str]]) -> Tuple[int, ...]:
    import grp

    here = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    for name in groups or ():
        if name not in here:
            raise ConfigError(f"--session-groups {name}: there is no such group here; make it (groupadd {name})")
    return tuple(here[name] for name in (GROUPS if groups is None else groups) if name in here)


def _account(name: str) -> Any:
    import pwd

    try:
        account = pwd.getpwnam(name)
    except KeyError:
        how = f"make it (useradd -r {name}), or let each slot have its own: --session-user {AUTO}"
        raise ConfigError(f"--session-user {name}: there is no such user here; {how}") from None
    if account.pw_uid == 0:
        how = f"give another name, or {AUTO}, or {NONE} if sessions are to run as root"
        raise ConfigError(f"--session-user {name}: a session of root reaches all of its server; {how}")
    return account
