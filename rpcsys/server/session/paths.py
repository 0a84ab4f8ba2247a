"""Keeping a session inside its directory.

A name from a client is a path relative to the session's directory. Whatever leads outside is refused,
also through symbolic links that the session itself has made: another session's files, and the board's,
are not this session's.

Known weakness: a link swapped in between this check and the use of the path wins. The session's own
code, which alone could do that, may open any file of the board anyway; what is confined here is the
*names* a client sends.
"""

from __future__ import annotations

import os

from rpcsys.errors import PathError

MAX_NAME = 4096
"""Linux's PATH_MAX, in bytes: the kernel takes no longer path."""


def confine(root: str, name: str, *, entry: bool = False) -> str:
    """The absolute path of ``name`` inside the directory ``root``, links resolved.

    With ``entry``, a link that ``name`` itself is stays one, wherever it leads: for removing it. The path
    need not exist. ``"."`` is the directory itself. Raises PathError for a name that is empty,
    absolute, too long, no proper text, contains NUL, or leads out of ``root`` by ``..`` or by a symbolic link.
    """
    if not name or "\0" in name:
        raise PathError("a file's name is empty or contains NUL: give a path like model.so or data/x.bin")
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise PathError("a file's name is not text that has a form in UTF-8") from None
    if length > MAX_NAME:
        raise PathError(f"a file's name is longer than {MAX_NAME} bytes")
    if os.path.isabs(name):
        raise PathError(f"{name}: an absolute path; files of a session have paths relative to its directory")
    base = os.path.realpath(root)
    folder, last = os.path.split(name.rstrip("/"))
    if entry and last not in ("", ".", ".."):
        path = os.path.join(os.path.realpath(os.path.join(base, folder)), last)
    else:
        path = os.path.realpath(os.path.join(base, name))
    if path != base and not path.startswith(os.path.join(base, "")):
        raise PathError(f"{name}: leads out of the session's directory; keep to paths inside it")
    return path
