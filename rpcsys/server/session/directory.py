"""A session's directory, and checks of the file names that a client sends: relative paths that stay inside.

Known weakness: a link made after the check is followed. Only the session's code can make one; it may open any file.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rpcsys.errors import PathError, RemoteFileError
from rpcsys.server.cache import PIECE

MAX_NAME = 4096  # Linux's PATH_MAX, in bytes: the kernel refuses longer paths
_PRIVATE = ".rpcsys-"  # the prefix of the server's own files, which a client can neither list nor open


def confine(root: str, name: str, *, entry: bool = False) -> str:
    """The absolute path of ``name`` inside the directory ``root``, links resolved.

    With ``entry``, a link as the last part is not resolved, so that it can be removed. The path need not exist.
    Raises `PathError` for a name that is empty, absolute, too long, no UTF-8, contains NUL, or leads outside.
    """
    if not name or "\0" in name:
        raise PathError("a file's name is empty or contains NUL: give a path like model.so or data/x.bin")
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise PathError("a file's name is no text that UTF-8 can encode") from None
    if length > MAX_NAME:
        raise PathError(f"a file's name is longer than {MAX_NAME} bytes")
    if os.path.isabs(name):
        raise PathError(f"{name}: an absolute path; files of a session have paths relative to its directory")
    base = _resolved(root)
    if name == os.curdir:
        return base
    folder, last = os.path.split(name.rstrip("/"))
    path = os.path.join(base, last)
    entry_of_folder = last not in ("", ".", "..")
    if entry_of_folder and not folder and (entry or not os.path.islink(path)):
        return path
    if entry_of_folder and entry:
        path = os.path.join(os.path.realpath(os.path.join(base, folder)), last)
    else:
        path = os.path.realpath(os.path.join(base, name))
    if path != base and not path.startswith(os.path.join(base, "")):
        raise PathError(f"{name}: leads out of the session's directory; keep to paths inside it")
    return path


@functools.lru_cache(maxsize=8)
def _resolved(root: str) -> str:
    """A session's directory without links, which do not change.

    Python asks for each part of a path. The kernel names the working directory without links: it is the session's.
    """
    with contextlib.suppress(FileNotFoundError):  # it may be removed
        if os.getcwd() == root:
            return root
    return os.path.realpath(root)


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Raise an OSError of the block as `RemoteFileError`, with the system's text."""
    try:
        yield
    except OSError as error:
        raise RemoteFileError(f"{name}: {error.strerror or error}") from None


class Directory:
    """A session's directory, accessed by a client's file names.

    Every method raises `PathError` for a name that leads outside, `RemoteFileError` for an OSError.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str, *, entry: bool = False) -> str:
        """The absolute path of ``name``; see `confine`."""
        path = confine(self.root, name, entry=entry)
        if os.path.basename(path).startswith(_PRIVATE):
            raise RemoteFileError(f"{name}: a name kept for the server")
        return path

    def private(self, number: int) -> str:
        """The absolute path of this process's own file ``number``: sessions of one hold share the directory."""
        return os.path.join(self.root, f"{_PRIVATE}{os.getpid()}-{number}")

    def fresh(self, name: str) -> str:
        """The absolute path of a file to write; its folder is made."""
        path = self.path(name)
        with file_errors(name):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def existing(self, name: str) -> str:
        """The absolute path of the file ``name``, which must exist."""
        path = self.path(name)
        if not os.path.isfile(path):
            raise RemoteFileError(f"there is no file {name!r} on the device; see session.listdir()")
        return path

    def listdir(self, name: str = ".") -> list[str]:
        """Names in a directory, sorted."""
        with file_errors(name):
            return sorted(entry for entry in os.listdir(self.path(name)) if not entry.startswith(_PRIVATE))

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself."""
        with file_errors(name):
            os.unlink(self.path(name, entry=True))

    def pieces(self, name: str) -> tuple[int, Iterator[bytes]]:
        """The size of a file, and its bytes in pieces."""
        with file_errors(name):
            stream = open(self.existing(name), "rb")  # noqa: SIM115 - closed by the generator
        size = os.fstat(stream.fileno()).st_size

        def read() -> Iterator[bytes]:
            with stream, file_errors(name):
                while piece := stream.read(PIECE):
                    yield piece

        return size, read()
