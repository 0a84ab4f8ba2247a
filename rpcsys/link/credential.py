"""Credentials of labs: the files that say who this machine is to a tracker, and which tracker is the right one.

A credential is for the addresses in it. Where there is one for an address, nothing is said to it in the clear.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from rpcsys.errors import ConfigError
from rpcsys.link.address import each_address, parse_address
from rpcsys.wire import tokens
from rpcsys.wire.tokens import PIN

VERSION = 1
FILE_OF_BOARD = "/etc/rpcsys/lab.json"
MAX_BYTES = 64 << 10
_ENDING = ".json"
_in_use: List[str] = []  # files that this process uses beside its user's
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Credential(NamedTuple):
    """A member's right to a lab: the tracker's addresses (HOST:PORT) and pins, and the member's token.

    ``next_token``: the one that replaces it, until the tracker knows that one (:mod:`rpcsys.link.renewal`), or empty.
    ``path``: of its file, empty for one that has none.
    """

    lab: str
    member: str
    trackers: Tuple[str, ...]
    pins: Tuple[str, ...]
    token: str
    next_token: str = ""
    path: str = ""

    def __repr__(self) -> str:
        return f"<credential of {self.member} in lab {self.lab}>"

    def text(self) -> str:
        """Its file's content."""
        fields = {"version": VERSION, **self._asdict()}
        del fields["path"]
        if not self.next_token:
            del fields["next_token"]
        return json.dumps(fields, indent=1) + "\n"


def parse(text: str, where: str) -> Credential:
    """Read a credential. Raises `ConfigError`, with ``where`` and without its token: it is not whole, or too new."""
    try:
        fields = json.loads(text)
        version = fields["version"]
        newer = type(version) is int and version > VERSION
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(where) from None
    if newer:
        raise ConfigError(f"{where} was written by a newer rpcsys: upgrade this one, or type rpcsys login here")
    try:
        found = Credential(
            _text(fields["lab"]),
            _text(fields["member"]),
            _texts(fields["trackers"], 32),
            _texts(fields["pins"], 2),
            _text(fields["token"]),
            _text(fields["next_token"]) if "next_token" in fields else "",
        )
        for token in filter(None, (found.token, found.next_token)):
            tokens.parse(token)
        for address in found.trackers:
            parse_address(address)
        if version != VERSION or len(found.pins) != 2 or not all(map(PIN, found.pins)):
            raise ValueError
    except (ConfigError, ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(where) from None
    return found


def _damaged(where: str) -> ConfigError:
    return ConfigError(f"{where} is no whole credential of a lab: remove it, and ask for an invitation (rpcsys login)")


def _text(value: Any) -> str:
    """A printable text. Raises ValueError: anything else."""
    if type(value) is not str or not 0 < len(value) <= 256 or not value.isprintable():
        raise ValueError
    return value


def _texts(value: Any, most: int) -> Tuple[str, ...]:
    if type(value) is not list or not 1 <= len(value) <= most:
        raise ValueError
    return tuple(_text(each) for each in value)


# Files


def folder() -> str:
    """The folder of this user's credentials, one file for each lab: ``$XDG_CONFIG_HOME/rpcsys/labs``."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "rpcsys", "labs")


def path_of(lab: str) -> str:
    """The path of this user's credential for a lab."""
    return os.path.join(folder(), lab + _ENDING)


def read(path: str) -> Credential:
    """Read a credential's file, or what :func:`rewrite` made of it elsewhere.

    Raises `ConfigError`: it is absent, damaged, or others may read it.
    """
    found = _read(path)
    kept = _kept_for(path)
    if kept and os.path.exists(kept):
        later = _read(kept)
        if (later.lab, _id(later)) == (found.lab, _id(found)):  # an enrolment since then has made another ID
            return later._replace(path=path)
    return found


def again(held: Credential) -> Credential:
    """A credential as its file has it now: another process may have renewed it. Raises as :func:`read` does."""
    return read(held.path) if held.path else held


def _id(one: Credential) -> str:
    return tokens.parse(one.token).id


def _read(path: str) -> Credential:
    try:
        with open(path, "rb") as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > MAX_BYTES:
        raise _damaged(path)
    return parse(data.decode("utf-8", "replace"), path)._replace(path=path)


def check(path: str) -> None:
    """Check that a file can be read, and by its owner alone; nothing is read. Raises `ConfigError`."""
    try:
        with open(path, "rb") as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise _unreadable(path, error) from None


def _check_mode(path: str, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077 and not _handed_by_systemd(path):
        raise ConfigError(f"others may read the credential {path}: type chmod 600 {path}")


def _unreadable(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the credential {path}: {error.strerror}; check its path and rights")


def _handed_by_systemd(path: str) -> bool:
    """Whether systemd passed the file (LoadCredential=): its mode has the bits of an access list for this service."""
    handed = os.environ.get("CREDENTIALS_DIRECTORY", "")
    return handed != "" and os.path.dirname(os.path.abspath(path)) == os.path.abspath(handed)


def write(path: str, credential: Credential) -> None:
    """Write a credential's file, as :func:`write_text` does. Raises OSError."""
    write_text(path, credential.text())


def write_text(path: str, text: str) -> None:
    """Write a file for its owner alone; a kill leaves the old file or the new one. Raises OSError."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def rewrite(changed: Credential) -> None:
    """Replace a credential's file or, where that is read-only, have its like in the service's own folder.

    Raises OSError: neither can be written.
    """
    try:
        write(changed.path, changed)
    except OSError as error:
        kept = _kept_for(changed.path)
        if not kept or error.errno not in _READ_ONLY:
            raise
        write(kept, changed)


def _kept_for(path: str) -> str:
    """Where a service has what it makes of the file ``path``: in systemd's StateDirectory=. Empty: it has none."""
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return os.path.join(state, os.path.basename(path)) if state else ""


# Which one is for an address


def use(path: str) -> None:
    """Have this process find the credential in a file, beside those of its user."""
    _in_use.append(path)


def use_no_more(path: str) -> None:
    """Undo a :func:`use`."""
    _in_use.remove(path)


def for_tracker(host: str, port: int) -> Optional[Credential]:
    """The credential for the tracker at an address; None: this machine has none.

    ``RPCSYS_CREDENTIAL`` (a credential's text) and ``RPCSYS_LAB`` (the path of its file) are asked first, then what
    :func:`use` has named, this user's files, and the board's. Raises `ConfigError`: one is damaged, or two of this
    user's are for the address.
    """
    wanted = _normal(host, port)
    for one in _given():
        if wanted in addresses(one.trackers):
            return one
    found = {path: one for path, one in _of_this_user() if wanted in addresses(one.trackers)}
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(sorted(found))} are both for {host}:{port}: remove one")
    if found:
        return next(iter(found.values()))
    if not os.access(FILE_OF_BOARD, os.R_OK):
        return None
    board = read(FILE_OF_BOARD)
    return board if wanted in addresses(board.trackers) else None


def for_replicas(tracker: Tuple[str, int]) -> Optional[Credential]:
    """As :func:`for_tracker`, for the first address of a tracker that there is a credential for."""
    return next(filter(None, (for_tracker(*each) for each in each_address(tracker))), None)


def held() -> List[Credential]:
    """This machine's credentials for any tracker: those of the environment, else this user's, else the board's.

    Raises `ConfigError`: one is damaged.
    """
    found = [*_given()] or [one for _, one in _of_this_user()]
    return found or ([read(FILE_OF_BOARD)] if os.access(FILE_OF_BOARD, os.R_OK) else [])


def _given() -> Iterator[Credential]:
    text, path = os.environ.get("RPCSYS_CREDENTIAL"), os.environ.get("RPCSYS_LAB")
    if text:
        yield parse(text, "RPCSYS_CREDENTIAL")
    if path:
        yield read(path)
    for path in _in_use:
        yield read(path)


def _of_this_user() -> Iterator[Tuple[str, Credential]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for name in sorted(os.listdir(folder())):
            if name.endswith(_ENDING):
                path = os.path.join(folder(), name)
                yield path, read(path)


def addresses(trackers: Iterable[str]) -> Set[Tuple[str, int]]:
    """Addresses (HOST:PORT) in the form in which they are compared."""
    return {_normal(*parse_address(address)) for address in trackers}


def _normal(host: str, port: int) -> Tuple[str, int]:
    """An address in the form in which two are compared: names of hosts have no case."""
    return host.lower().rstrip("."), port
