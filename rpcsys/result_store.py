"""The results of an auto-tuner's measurements, kept in one file, so that none is made twice.

The file is an SQLite database, which several processes may use at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rpcsys.errors import UsageError

#: Part of each identity: a change of what identifies a measurement, or of how it is made, forgets earlier results.
FORM = 1
MAX_RESULTS = 1_000_000  # kept in one file, a few hundred MB; beyond, the oldest are dropped
MAX_BYTES = 1 << 30  # of results; most have three or four numbers, but some may have hundreds
IN_MEMORY = ":memory:"  # the path of a store that ends with its process
_COUNT_AFTER = 1000  # results that are kept between two counts
_WAIT_S = 10.0  # for another process that writes
_TABLES = """
create table if not exists measured (
    identity text primary key, kept real not null, seconds text not null, about text not null
) without rowid;
create index if not exists measured_by_age on measured (kept);
"""


def identity(facts: Mapping[str, Any]) -> str:
    """A hash of all that a measurement depends on."""
    text = json.dumps([FORM, facts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def users_file() -> Path:
    """The file of this user: ``rpcsys/measured.sqlite`` in ``$XDG_CACHE_HOME``, by default ``~/.cache``."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder) / "rpcsys" / "measured.sqlite"


class ResultStore:
    """Results in the file at ``path``, which is made if need be. For any number of threads and processes.

    Every method raises `UsageError` for a file that cannot be used; ``advice`` is what its reader is to do.
    """

    def __init__(
        self, path: str | os.PathLike[str], max_results: int = MAX_RESULTS, max_bytes: int = MAX_BYTES,
        advice: str = "give the runner another file (store=PATH), or none (store=None)",
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._advice = advice
        self._until_count = 0
        self._lock = threading.Lock()
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=_WAIT_S, check_same_thread=False, isolation_level=None)
            try:
                self._database.execute("pragma journal_mode = wal")
                self._database.execute("pragma synchronous = normal")
                self._database.executescript(_TABLES)
            except BaseException:
                self._database.close()
                raise

    def find(self, identities: Iterable[str]) -> dict[str, list[float]]:
        """The seconds of those that are kept, by identity."""
        found = {}
        with self._lock, self._explained():
            for each in identities:
                row = self._database.execute("select seconds from measured where identity = ?", (each,)).fetchone()
                if row is not None:
                    found[each] = _seconds(row[0])
        return {each: seconds for each, seconds in found.items() if seconds}

    def keep(self, identity: str, seconds: list[float], about: Mapping[str, Any]) -> None:
        """Keep a result, in place of an earlier one; ``about`` describes it to people who look into the file."""
        self.keep_all({identity: seconds}, about)

    def keep_all(self, results: Mapping[str, list[float]], about: Mapping[str, Any]) -> None:
        """Keep results by their identities, all or none; as `keep`."""
        now, described = time.time(), json.dumps(about, sort_keys=True)
        rows = [(identity, now, json.dumps(seconds), described) for identity, seconds in results.items()]
        with self._lock, self._explained(), self._database:  # which commits, or rolls back
            self._database.execute("begin immediate")
            self._database.executemany("insert or replace into measured values (?, ?, ?, ?)", rows)
            self._until_count -= len(rows)
            if self._until_count <= 0:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest results above the limits; counting takes long, so this is done now and then."""
        self._until_count = max(1, min(_COUNT_AFTER, self._max_results // 10))
        (count,) = self._database.execute("select count(*) from measured").fetchone()
        room = self._max_bytes / max(1, self._used())
        surplus = max(0, count - self._max_results, count - int(count * room))
        oldest = "select identity from measured order by kept limit ?"
        self._database.execute(f"delete from measured where identity in ({oldest})", (surplus,))

    def _used(self) -> int:
        """Bytes of the file that hold something."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._database.execute(f"pragma {name}").fetchone()[0] for name in names)
        return int((pages - free) * size)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock:
            self._database.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            what = f"the results in {self.path} cannot be used ({error})"
            raise UsageError(f"{what}; {self._advice}") from None


def _seconds(text: str) -> list[float]:
    """The results in a row; none in one that something else has written."""
    try:
        values = [float(value) for value in json.loads(text)]
        return values if all(map(math.isfinite, values)) else []
    except (TypeError, ValueError):
        return []
