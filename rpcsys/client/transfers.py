"""Push and pull: files and folders between the desk and a session's directory, only those that have changed.

A file has changed if its size, its time or its mode is another one. Small files go together, large ones as uploads do.
Time and mode are set before a file has its name: what a broken transfer has moved is not moved again.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from rpcsys.client.files import Progress
from rpcsys.errors import NotSupported, PathError, ProtocolError, RemoteFileError, UsageError, printable

#: Files up to this size are sent together, as many as fit in `BATCH_BYTES` and `BATCH_FILES`.
SMALL = 64 << 10
BATCH_BYTES, BATCH_FILES = 1 << 20, 256
MAX_FILES = 100_000
PART = ".rpcsys-part"  # the ending of a file that is not whole yet
_MODE = 0o777


class TreeEntry(NamedTuple):
    """A file or folder of a tree: its path below the tree's root, "" for that itself. ``mode``: as stat has it."""

    name: str
    mode: int
    size: int
    time_ns: int

    @property
    def folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def changes(self) -> tuple[int, int, int]:
        """What is compared."""
        return self.mode & _MODE, self.size, self.time_ns


class TransferReport(NamedTuple):
    """What a push or pull has done: files and bytes that were copied, files that had not changed, paths left out."""

    files: int
    bytes: int
    unchanged: int
    left_out: tuple[str, ...]


def push(session: Any, local: str, remote: str, progress: Progress | None) -> TransferReport:
    """See `Session.push`."""
    _require(session)
    left_out: list[str] = []
    here = _tree_here(local, left_out)
    if not here:
        raise UsageError(f"there is no file or folder {local!r} here: check the path")
    name = os.path.basename(os.path.abspath(local))
    remote = posixpath.join(remote, name) if remote.endswith("/") else remote or name
    there = {found.name: found for found in _tree_there(session, remote)}
    _check_kinds(here, there, f"{remote} on the board")
    changed = [found for found in here if not found.folder and _differs(found, there.get(found.name))]
    folders = [_below(remote, found.name) for found in here if found.folder and found.name not in there]
    if folders:
        session._builtin("session.make_folders", folders)
    done = _Progress(changed, progress)
    for batch in _batches(changed):
        _send(session, local, remote, batch)
        done.add(batch)
    for found in changed:
        if found.size > SMALL:
            target = _below(remote, found.name)
            session.upload(_below(local, found.name), target + PART, progress=done.within)
            session._builtin("session.place", [[target, found.mode, found.time_ns, target + PART]])
            done.add([found])
    return done.moved(here, left_out)


def pull(session: Any, remote: str, local: str, progress: Progress | None) -> TransferReport:
    """See `Session.pull`."""
    _require(session)
    there = _tree_there(session, remote)
    if not there:
        raise RemoteFileError(f"there is no file or folder {remote!r} on the device; see session.listdir()")
    name = posixpath.basename(posixpath.normpath(remote))
    local = os.path.join(local, name) if not local or local.endswith("/") else local
    here = {found.name: found for found in _tree_here(local, [])}
    _check_kinds(there, here, local)
    changed = [found for found in there if not found.folder and _differs(found, here.get(found.name))]
    done = _Progress(changed, progress)
    try:
        for found in there:
            if found.folder:
                os.makedirs(_below(local, found.name), exist_ok=True)
        for found in changed:
            target = _below(local, found.name)
            if os.path.dirname(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
            _download(session, _below(remote, found.name), target + PART, found.size > SMALL, done.within)
            os.chmod(target + PART, found.mode & _MODE)
            os.utime(target + PART, ns=(found.time_ns, found.time_ns))
            os.replace(target + PART, target)
            done.add([found])
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror or error}") from None
    return done.moved(there, [])


def _download(session: Any, name: str, target: str, resume: bool, progress: Progress) -> None:
    """Download a file; go on behind what a broken download has left, unless the file is another one by now."""
    try:
        session.download(name, target, progress=progress, resume=resume)
    except ProtocolError:
        if not resume or session.closed is not None:
            raise
        session.download(name, target, progress=progress)


class _Progress:
    """Counts what is moved of the ``changed`` files, and reports it."""

    def __init__(self, changed: list[TreeEntry], report: Progress | None) -> None:
        self._changed = changed
        self._total = sum(found.size for found in changed)
        self._done = 0
        self._report = report or (lambda done, total: None)

    def within(self, done: int, _: int) -> None:
        """Report ``done`` bytes of the file that is on its way."""
        self._report(self._done + done, self._total)

    def add(self, moved: list[TreeEntry]) -> None:
        """Count whole files."""
        self._done += sum(found.size for found in moved)
        self._report(self._done, self._total)

    def moved(self, all_found: list[TreeEntry], left_out: list[str]) -> TransferReport:
        """The result, at the end."""
        files = sum(not found.folder for found in all_found)
        return TransferReport(len(self._changed), self._total, files - len(self._changed), tuple(left_out))


def _require(session: Any) -> None:
    if session.info["capabilities"].get("transfers") is not True:
        where = "{}:{}".format(*session.address)
        raise NotSupported(f"the server at {where} is older than push and pull; its keeper upgrades it")


def _differs(found: TreeEntry, other: TreeEntry | None) -> bool:
    return other is None or found.changes != other.changes


def _check_kinds(source: list[TreeEntry], target: dict[str, TreeEntry], where: str) -> None:
    """Raise `UsageError` where a file would take a folder's place, or the other way round."""
    for found in source:
        other = target.get(found.name)
        if other is not None and other.folder != found.folder:
            what = "a folder" if other.folder else "a file"
            raise UsageError(f"{printable(_below(where, found.name))} is {what} already: give another name (NAME/)")


def _below(root: str, name: str) -> str:
    return posixpath.join(root, name) if name else root


def _batches(changed: list[TreeEntry]) -> Iterator[list[TreeEntry]]:
    """The small files, in pieces of one message."""
    batch: list[TreeEntry] = []
    size = 0
    for found in changed:
        if found.size > SMALL:
            continue
        if len(batch) == BATCH_FILES or size + found.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(found)
        size += found.size
    if batch:
        yield batch


def _send(session: Any, local: str, remote: str, batch: list[TreeEntry]) -> None:
    entries, content = [], bytearray()
    for found in batch:
        try:
            with open(_below(local, found.name), "rb") as stream:
                piece = stream.read(2 * SMALL)  # it may have grown meanwhile: then its time is another one
        except OSError as error:
            raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
        entries.append([_below(remote, found.name), found.mode, found.time_ns, len(piece)])
        content += piece
    session._builtin("session.write", entries, bytes(content))


def _tree_here(root: str, left_out: list[str]) -> list[TreeEntry]:
    """The local file or folder with all below it, folders before what is in them; none if there is none."""
    try:
        if not os.path.exists(root):
            return []
        tree = [_found("", os.stat(root))]
        if tree[0].folder:
            tree += _inside(root, "", left_out)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    if len(tree) > MAX_FILES:
        raise UsageError(f"{root} has more than {MAX_FILES} files: take a folder below it")
    return tree


def _inside(path: str, inside: str, left_out: list[str]) -> Iterator[TreeEntry]:
    with os.scandir(path) as entries:
        known = sorted(entries, key=lambda entry: entry.name)
    for entry in known:
        name = _below(inside, entry.name)
        folder = entry.is_dir(follow_symlinks=False)
        if not _is_text(name) or not (folder or entry.is_file()):
            left_out.append(name)
            continue
        yield _found(name, entry.stat())
        if folder:
            yield from _inside(entry.path, name, left_out)


def _is_text(name: str) -> bool:
    """Whether a file's name can be sent: the system allows any bytes."""
    return name.encode(errors="replace").decode() == name


def _found(name: str, about: os.stat_result) -> TreeEntry:
    return TreeEntry(name, about.st_mode, about.st_size, about.st_mtime_ns)


def _tree_there(session: Any, name: str) -> list[TreeEntry]:
    """The same on the board. Raises `PathError` for a board that names a file outside of the folder."""
    said = session._builtin("session.tree", name)
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        tree = [TreeEntry(*each) for each in json.loads(said)]
        if all(map(_is_found, tree)):
            for found in tree:
                _check_inside(found.name)
            return tree
    raise ProtocolError("what the device says of its files makes no sense")


def _is_found(found: TreeEntry) -> bool:
    return type(found.name) is str and all(type(number) is int and number >= 0 for number in found[1:])


def _check_inside(name: str) -> None:
    parts = name.split("/")
    if name and (not all(parts) or "." in parts or ".." in parts or "\0" in name):
        raise PathError(f"the device names a file outside of the folder: {printable(name)}")
