"""The deployments on the disk. They survive restarts; after a crash each is its old or its new version.

A replaced version is kept until the next replacement by other files, so that it can be put back. Versions that no
``current`` names are removed at the start, and by the next replacement of that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

from rpcsys.errors import ConfigError, RemoteFileError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_VERSION = re.compile(r"([0-9]{4,9})-([0-9a-f]{12})\Z")


def is_name(name: Any) -> bool:
    """Whether a module may have that name: at most 100 letters, digits, ``. _ -``, beginning with a letter or digit."""
    return isinstance(name, str) and _NAME.match(name) is not None and name not in ("incoming", "lock")


class Version(NamedTuple):
    """One deployed version."""

    name: str
    version: str
    file: str  # its name in the version's folder
    sha256: str


class Store:
    """The folder of deployed modules. Methods raise the disk's OSError.

    ::

        ROOT/lock                     held by the server that serves ROOT
        ROOT/incoming/…               uploads under way
        ROOT/NAME/lock                held while NAME is replaced
        ROOT/NAME/current             one line of JSON: the version that is served, and the one before it;
                                      written beside it, then renamed
        ROOT/NAME/0003-1f2e3d…/FILE   a version: its number, and the beginning of its SHA-256; files that FILE names
                                      lie beside it
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def open(self) -> int:
        """Prepare the folder, and lock it while the returned descriptor is open. Raises `ConfigError`."""
        incoming = os.path.join(self.root, "incoming")
        try:
            os.makedirs(incoming, exist_ok=True)
            lock = _locked(os.path.join(self.root, "lock"))
        except OSError as error:
            how = "give a folder in which this user may write"
            raise ConfigError(f"--deploy {self.root}: {error.strerror}; {how}") from None
        if lock is None:
            raise ConfigError(f"--deploy {self.root}: another server serves what is deployed there")
        for entry in os.listdir(incoming):
            _remove(os.path.join(incoming, entry))
        for name in self._names():
            self.tidy(name)
        return lock

    def current(self) -> list[Version]:
        """The current version of each deployment."""
        return [version for version in map(self.find, self._names()) if version is not None]

    def find(self, name: str) -> Optional[Version]:
        """The current version of ``name``; None if there is none."""
        return self._version(name, self._about(name))

    def earlier(self, name: str) -> Optional[Version]:
        """The version of ``name`` that the current one replaced; None if it is not kept."""
        return self._version(name, self._about(name).get("earlier"))

    def _about(self, name: str) -> dict[str, Any]:
        try:
            with open(os.path.join(self.root, name, "current"), encoding="utf-8") as file:
                about = json.loads(file.read(8192))
        except (OSError, ValueError):
            return {}
        return about if type(about) is dict else {}

    def _version(self, name: str, about: Any) -> Optional[Version]:
        try:
            version = Version(name, *(str(about[field]) for field in Version._fields[1:]))
        except (KeyError, TypeError):
            return None
        return version if _VERSION.match(version.version) and os.path.isfile(self.path(version)) else None

    def path(self, version: Version) -> str:
        """The path of a version's file."""
        return os.path.join(self.root, version.name, version.version, os.path.basename(version.file))

    def _names(self) -> list[str]:
        return sorted(filter(is_name, os.listdir(self.root)))

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[None]:
        """Hold the lock for replacing ``name``. Raises `RemoteFileError` if another process holds it."""
        os.makedirs(os.path.join(self.root, name), exist_ok=True)
        lock = _locked(os.path.join(self.root, name, "lock"))
        if lock is None:
            text = f"{name!r} is being replaced by another client; try again when that is done"
            raise RemoteFileError(text, retryable=True)
        try:
            yield
        finally:
            os.close(lock)

    def stage(self, name: str, source: str, file: str, sha256: str, beside: Iterable[str] = ()) -> Version:
        """Make a version of the file ``source``, which is moved; call it while `replacing`.

        ``beside``: the files that it names, as paths from its folder; they are moved, too.
        """
        folder = os.path.join(self.root, name)
        numbers = [int(found[1]) for found in map(_VERSION.match, os.listdir(folder)) if found]
        version = Version(name, f"{max(numbers, default=0) + 1:04d}-{sha256[:12]}", file, sha256)
        path = self.path(version)
        os.mkdir(os.path.dirname(path))
        for each in beside:
            _moved(os.path.join(os.path.dirname(source), each), os.path.join(os.path.dirname(path), each))
        _moved(source, path)
        _sync(folder)
        return version

    def switch(self, version: Version) -> None:
        """Make ``version`` the current one, and keep the one before it that is another; call it while `replacing`."""
        folder = os.path.join(self.root, version.name)
        fresh = os.path.join(folder, "current.new")
        before = self.find(version.name)
        if before is not None and self._alike(before, version):
            before = self.earlier(version.name)
        about = _fields(version) if before is None else {**_fields(version), "earlier": _fields(before)}
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(json.dumps(about) + "\n")
        _sync(fresh)
        os.rename(fresh, os.path.join(folder, "current"))
        _sync(folder)

    def _alike(self, one: Version, other: Version) -> bool:
        """Whether two versions are the same file, with the same files beside it: weights can be others."""
        old, new = (os.path.dirname(self.path(version)) for version in (one, other))
        found = [os.path.join(folder, name) for folder, _, names in os.walk(new) for name in names]
        beside = [os.path.relpath(path, new) for path in found if path != self.path(other)]
        return one.sha256 == other.sha256 and not any(filecmp.cmpfiles(old, new, beside, shallow=False)[1:])

    def withdraw(self, name: str) -> None:
        """End the deployment ``name``; `tidy` removes its files. Raises FileNotFoundError if there is none."""
        os.unlink(os.path.join(self.root, name, "current"))
        _sync(os.path.join(self.root, name))

    def prune(self, name: str) -> None:
        """Remove all versions of ``name`` but the current one and the one before it.

        Call it while no other process replaces ``name``.
        """
        folder = os.path.join(self.root, name)
        keep = {"current", "lock"} | {one.version for one in (self.find(name), self.earlier(name)) if one}
        for entry in set(os.listdir(folder)) - keep:
            _remove(os.path.join(folder, entry))

    def tidy(self, name: str) -> None:
        """`prune` ``name``, and remove its folder if nothing is deployed; call it as the last while `replacing`."""
        self.prune(name)
        if self.find(name) is None:
            away = tempfile.mkdtemp(dir=os.path.join(self.root, "incoming"))
            os.rename(os.path.join(self.root, name), away)  # at once: another client may deploy by that name now
            _remove(away)


def _fields(version: Version) -> dict[str, str]:
    return {name: value for name, value in version._asdict().items() if name != "name"}


def _locked(path: str) -> Optional[int]:
    """Make and lock a file, until the returned descriptor is closed; None if another process has it locked."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(path)):  # it is not one that `tidy` has moved away
            return lock
    os.close(lock)
    return None


def _moved(old: str, new: str) -> None:
    """Move a file, through to the disk; the folder it goes to is made."""
    _sync(old)
    os.makedirs(os.path.dirname(new), exist_ok=True)
    os.rename(old, new)
    _sync(os.path.dirname(new))


def _sync(path: str) -> None:
    """Write a file's data, or a folder's entries, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)
