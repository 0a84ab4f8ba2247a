"""Finds out facts about a board: one shell script, and a parser for its output. The script needs no Python there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rpcsys.errors import RpcsysError
from rpcsys.module import elf, toolchain

OLDEST_PYTHON = (3, 8)
#: Names to try for a board's Python: an old distribution's python3 may be too old, and a newer one be beside it.
PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(14, 7, -1)))
FOLDERS = ("/tmp", "/var/tmp")  # folders for a temporary archive, besides $TMPDIR
_TAG = "rpcsys-fact"
#: $1 is the root of the installation, further arguments are names of Pythons.
SCRIPT = f"""
root=$1; shift
say() {{ echo "{_TAG} $1 $2"; }}
above() {{ at=$1; while [ ! -d "$at" ]; do at=$(dirname "$at"); done; echo "$at"; }}
left() {{ df -Pk "$1" 2>/dev/null | tail -n 1; }}
say machine "$(uname -m)"
say system "$(uname -s)"
say host "$(uname -n)"
say user "$(id -u)"
for python; do
    command -v "$python" >/dev/null 2>&1 || continue
    say python "$python $("$python" -c '
import platform, sys
bits = 64 if sys.maxsize > 1 << 32 else 32
print("%d.%d %d %s" % (sys.version_info[0], sys.version_info[1], bits, "-".join(platform.libc_ver())))' 2>/dev/null)"
done
for folder in "${{TMPDIR:-}}" {" ".join(FOLDERS)}; do
    [ -n "$folder" ] && [ -d "$folder" ] && [ -w "$folder" ] && say folder "$folder $(left "$folder")"
done
base=$(above "$root/opt/rpcsys")
say base "$base $(left "$base")"
[ ! -w "$base" ] || say writable "$base"
if command -v sudo >/dev/null 2>&1; then
    if sudo -n true 2>/dev/null; then say sudo free; else say sudo asks; fi
fi
say version "$(readlink "$root/opt/rpcsys/current" 2>/dev/null)"
for file in "$root"/etc/rpcsys/*.flags; do
    [ ! -f "$file" ] || say server "$(basename "$file" .flags)"
done
exit 0
"""


class Python(NamedTuple):
    """A Python on the board."""

    name: str
    version: tuple[int, int]
    bits: int
    libc: str  # such as ``glibc-2.31``


class Space(NamedTuple):
    """A folder of the board and its free bytes; None if these are unknown."""

    folder: str
    free: int | None


class BoardFacts(NamedTuple):
    """The facts that the script reports."""

    machine: str = ""
    system: str = ""
    host: str = ""
    user: int = -1
    pythons: tuple[Python, ...] = ()
    folders: tuple[Space, ...] = ()
    base: Space = Space("/opt", None)
    writable: bool = False
    sudo: str = ""  # ``free``, ``asks`` (for a password) or empty
    version: str = ""  # the installed version
    servers: tuple[str, ...] = ()  # the names of the servers that are configured there


_PYTHON = re.compile(r"(\S+) (\d+)\.(\d+) (32|64) (\S*)")
#: A folder, then df's line: device, blocks, used blocks, free blocks, used share, mount point.
_SPACE = re.compile(r"(.+?) \S+ +\d+ +\d+ +(-?\d+) +\S+ /.*")


def parse(printed: str) -> BoardFacts:
    """Parse the script's output; other lines, such as a login shell's, are skipped."""
    answers: dict[str, list[str]] = {}
    for line in printed.splitlines():
        tag, _, rest = line.partition(" ")
        if tag == _TAG:
            name, _, value = rest.partition(" ")
            answers.setdefault(name, []).append(value.strip())
    first = {name: values[0] for name, values in answers.items()}
    user = first.get("user", "")
    return BoardFacts(
        **{name: first[name] for name in ("machine", "system", "host", "sudo") if name in first},
        user=int(user) if user.isascii() and user.isdigit() and len(user) < 12 else -1,
        pythons=tuple(filter(None, map(_python, answers.get("python", [])))),
        folders=tuple(map(_space, answers.get("folder", []))),
        base=_space(first.get("base", "/opt")),
        writable="writable" in first,
        version=first.get("version", "").rpartition("/")[2],
        servers=tuple(filter(None, answers.get("server", []))),
    )


def _python(text: str) -> Python | None:
    found = _PYTHON.fullmatch(text) or _PYTHON.fullmatch(text + " ")
    if found is None or max(len(found[2]), len(found[3])) > 4:
        return None
    return Python(found[1], (int(found[2]), int(found[3])), int(found[4]), found[5])


def _space(text: str) -> Space:
    found = _SPACE.fullmatch(text)
    if found is None or len(found[2]) > 15:
        return Space(text.partition(" ")[0], None)
    return Space(found[1], max(0, int(found[2]) << 10))


def python(board: BoardFacts, host: str, candidates: Sequence[str]) -> Python:
    """The Python for the server: the first one that is new enough. Raises RpcsysError."""
    for each in board.pythons:
        if each.version >= OLDEST_PYTHON:
            return each
    names = candidates[0] if len(candidates) == 1 else "python3"
    how = "install Python 3.8 or later there (Debian: apt-get install python3), or name one with --python"
    if not board.pythons:
        raise RpcsysError(f"{host} has no {names}: {how}")
    has = ", ".join(f"{each.name} is {each.version[0]}.{each.version[1]}" for each in board.pythons)
    raise RpcsysError(f"Python on {host} is too old ({has}): {how}")


def target(board: BoardFacts, found: Python, host: str) -> str:
    """The toolchain file for the board. Raises RpcsysError."""
    if board.system != "Linux":
        text = f"{host} runs {board.system or 'an unknown system'}; the device server needs Linux"
        raise RpcsysError(text)
    targets = {(each.machine, each.bits): each.name for each in map(toolchain.target, toolchain.names())}
    if machine(board, found) not in targets:
        known = ", ".join(targets.values())
        raise RpcsysError(f"{host} is {board.machine} with {found.bits} bits; runtimes are packed for {known}")
    return targets[machine(board, found)]


def machine(board: BoardFacts, found: Python) -> tuple[str, int]:
    """The machine and word size of its Python's libraries: a 64-bit machine may run a 32-bit Python."""
    family = elf.machine_of(board.machine)
    return ("arm" if (family, found.bits) == ("aarch64", 32) else family), found.bits


def glibc(found: Python) -> str | None:
    """The version of the board's C library, if it is glibc and reports one."""
    kind, _, version = found.libc.partition("-")
    return version if kind == "glibc" and re.fullmatch(r"\d{1,4}\.\d{1,4}", version) else None


def folder_with_space(board: BoardFacts, needed: int, host: str) -> str:
    """A temporary folder with ``needed`` bytes free, which the root must have, too. Raises RpcsysError."""
    if board.base.free is not None and board.base.free < needed:
        raise RpcsysError(_full(host, board.base, needed))
    for space in board.folders:
        if space.free is None or space.free >= needed:
            return space.folder
    if not board.folders:
        raise RpcsysError(f"{host} has no folder to write to; is its disk mounted read-only? Set TMPDIR there")
    raise RpcsysError(_full(host, max(board.folders, key=lambda space: space.free or 0), needed))


def _full(host: str, space: Space, needed: int) -> str:
    free = (space.free or 0) / 1e6
    return f"{host} has no space: {free:.1f} MB are free in {space.folder}, and {needed / 1e6:.1f} MB are needed"


def rights(board: BoardFacts, root: str, host: str) -> str:
    """How to get permission to install: ``sudo``, ``password`` (for sudo), or empty for none. Raises RpcsysError."""
    if board.user == 0 or (root and board.writable):
        return ""
    if board.sudo:
        return "sudo" if board.sudo == "free" else "password"
    where = f"write to {root}" if root else "install"
    how = "connect as root, or choose a folder that this user may write to: --root DIR"
    raise RpcsysError(f"this user may not {where} on {host}, and there is no sudo: {how}")
