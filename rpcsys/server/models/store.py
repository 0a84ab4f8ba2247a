"""What is deployed, on the disk: it survives restarts, and is old or new after any crash, never half.

What no ``current`` names is removed at the start, and by the next who replaces that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from rpcsys.errors import ConfigError, RemoteFileError

SUFFIXES = (".so", ".onnx")  # files that can be deployed: of libraries and of ONNX models
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_VERSION = re.compile(r"([0-9]{4,9})-([0-9a-f]{12})\Z")


def is_name(name: Any) -> bool:
    """Whether a module may be deployed under that name: letters, digits, ``. _ -``, at most 100, no sign first."""
    return isinstance(name, str) and _NAME.match(name) is not None and name not in ("incoming", "lock")


class Version(NamedTuple):
    """One deployed version."""

    name: str
    version: str
    file: str  # its name in the version's folder
    sha256: str


class Store:
    """The folder of deployed modules. Methods raise OSError where the disk refuses.

    ::

        ROOT/lock                     held by the server that serves ROOT
        ROOT/incoming/…               uploads under way
        ROOT/NAME/lock                held by who replaces NAME
        ROOT/NAME/current             one line of JSON: which version is served; written beside it, then renamed
        ROOT/NAME/0003-1f2e3d…/FILE   a version: its number, and the beginning of its SHA-256
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def open(self) -> int:
        """Make the folder ready, and keep others off it while the returned descriptor is open. Raises `ConfigError`."""
        incoming = os.path.join(self.root, "incoming")
        try:
            os.makedirs(incoming, exist_ok=True)
            lock = _locked(os.path.join(self.root, "lock"))
        except OSError as error:
            raise ConfigError(f"--deploy {self.root}: {error.strerror}") from None
        if lock is None:
            raise ConfigError(f"--deploy {self.root}: another server serves what is deployed there")
        for entry in os.listdir(incoming):
            _remove(os.path.join(incoming, entry))
        for name in self._names():
            self.prune(name)
        return lock

    def current(self) -> list[Version]:
        """What is to be served, by name."""
        return [version for version in map(self.find, self._names()) if version is not None]

    def find(self, name: str) -> Optional[Version]:
        """The version of ``name`` that is to be served; None if there is none."""
        try:
            with open(os.path.join(self.root, name, "current"), encoding="utf-8") as file:
                about = json.loads(file.read(4096))
            version = Version(name, *(str(about[field]) for field in Version._fields[1:]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if _VERSION.match(version.version) and os.path.isfile(self.path(version)) else None

    def path(self, version: Version) -> str:
        """Where the file of a version is."""
        return os.path.join(self.root, version.name, version.version, os.path.basename(version.file))

    def _names(self) -> list[str]:
        return sorted(filter(is_name, os.listdir(self.root)))

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[None]:
        """While nobody else replaces ``name``. Raises `RemoteFileError` if somebody does."""
        os.makedirs(os.path.join(self.root, name), exist_ok=True)
        lock = _locked(os.path.join(self.root, name, "lock"))
        if lock is None:
            text = f"{name!r} is being replaced by somebody else; try again when that is done"
            raise RemoteFileError(text, retryable=True)
        try:
            yield
        finally:
            os.close(lock)

    def stage(self, name: str, source: str, file: str, sha256: str) -> Version:
        """Make a version of the file ``source``, which is moved; to be called while `replacing`."""
        folder = os.path.join(self.root, name)
        numbers = [int(found[1]) for found in map(_VERSION.match, os.listdir(folder)) if found]
        version = Version(name, f"{max(numbers, default=0) + 1:04d}-{sha256[:12]}", file, sha256)
        _sync(source)
        os.mkdir(os.path.join(folder, version.version))
        os.rename(source, self.path(version))
        _sync(os.path.dirname(self.path(version)))
        _sync(folder)
        return version

    def switch(self, version: Version) -> None:
        """Have ``version`` served from now on."""
        folder = os.path.join(self.root, version.name)
        fresh = os.path.join(folder, "current.new")
        with open(fresh, "w", encoding="utf-8") as file:
            about = {name: value for name, value in version._asdict().items() if name != "name"}
            file.write(json.dumps(about) + "\n")
        _sync(fresh)
        os.rename(fresh, os.path.join(folder, "current"))
        _sync(folder)

    def withdraw(self, name: str) -> None:
        """Have nothing of that name served from now on. Raises FileNotFoundError where nothing is."""
        os.unlink(os.path.join(self.root, name, "current"))
        _sync(os.path.join(self.root, name))

    def prune(self, name: str) -> None:
        """Remove the versions of ``name`` that are not served; while nobody replaces it."""
        folder = os.path.join(self.root, name)
        current = self.find(name)
        keep = {"current", "lock"} | ({current.version} if current else set())
        for entry in set(os.listdir(folder)) - keep:
            _remove(os.path.join(folder, entry))


def _locked(path: str) -> Optional[int]:
    """The descriptor of a file that is made and locked until it is closed; None where another process has it locked."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    os.close(lock)
    return None


def _sync(path: str) -> None:
    """Have the disk keep what has been written of a file or of a folder's list."""
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
