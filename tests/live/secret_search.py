"""Searches logs, files, recorded bytes and processes for what is secret: in plain, in hexadecimal and in base64."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil

_WORD = 8  # of 16 bytes in a row, 8 are aligned
_SHORTEST = 12  # bytes of a secret: fewer are found by chance


class Secrets:
    """What must not be found, by name. :meth:`found_in` names what is there."""

    def __init__(self) -> None:
        self._forms: dict[str, set[bytes]] = {}
        self._words: dict[str, np.ndarray] = {}

    def add(self, name: str, value: bytes | str) -> None:
        """A secret, which is searched for as a whole."""
        data = value.encode() if isinstance(value, str) else value
        assert len(data) >= _SHORTEST, name
        self._forms.setdefault(name, set()).update(_forms(data))

    def add_large(self, name: str, data: bytes) -> None:
        """A file of which no 16 bytes in a row may be found; those with few different bytes do not count."""
        words = {data[at : at + _WORD] for at in range(0, len(data) - _WORD + 1, _WORD)}
        telling = b"".join(sorted(word for word in words if len(set(word)) >= 6))
        self._words[name] = np.unique(np.frombuffer(telling, "<u8"))
        assert len(self._words[name]), name

    def __iter__(self) -> Iterator[str]:
        return iter({**self._forms, **self._words})

    def found_in(self, data: bytes | str) -> set[str]:
        """The names of what occurs in ``data``, in any form."""
        raw = data.encode(errors="surrogateescape") if isinstance(data, str) else bytes(data)
        found = {name for name, forms in self._forms.items() if any(form in raw for form in forms)}
        for shift in range(_WORD):
            words = np.frombuffer(raw[shift : shift + (len(raw) - shift) // _WORD * _WORD], "<u8")
            found.update(name for name, known in self._words.items() if np.isin(words, known).any())
        return found

    def found_in_files(self, paths: Iterable[Path]) -> dict[str, set[str]]:
        """The same for files, and all files below folders, by path; where nothing is found, there is no entry."""
        files = (file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
        return {str(file): found for file in files if (found := self.found_in(file.read_bytes()))}


def _forms(data: bytes) -> Iterator[bytes]:
    """``data``, and what a larger text with it in hexadecimal or base64 has of it."""
    yield data
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for before in range(3):
        text = base64.b64encode(bytes(before) + data)
        whole = text[(8 * before + 5) // 6 : (8 * (before + len(data))) // 6]  # without digits that neighbours share
        yield whole
        yield whole.translate(bytes.maketrans(b"+/", b"-_"))


class ProcessesSeen:
    """What ``ps`` shows of all processes below one while it is entered: command lines and environments."""

    EVERY_S = 0.02

    def __init__(self, root: int) -> None:
        self.seen: dict[bytes, str] = {}  # the text, and whose it was first
        self.names: set[str] = set()
        self._root = psutil.Process(root)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> ProcessesSeen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self.EVERY_S):
            for process in self._root.children(recursive=True):
                with contextlib.suppress(OSError, psutil.Error):
                    self.names.add(name := process.name())
                    for what in ("cmdline", "environ"):
                        self.seen.setdefault(Path(f"/proc/{process.pid}/{what}").read_bytes(), f"{what} of {name}")

    def found(self, secrets: Secrets) -> dict[str, set[str]]:
        """What each process has shown that it must not."""
        return {name: found for text, name in self.seen.items() if (found := secrets.found_in(text))}
