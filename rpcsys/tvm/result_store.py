"""The results of an auto-tuner's measurements, kept in one file, so that none is made twice.

The file is an SQLite database, which several processes may use at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
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

    Every method raises `UsageError` for a file that cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], max_results: int = MAX_RESULTS) -> None:
        self.path = Path(path)
        self._max_results = max_results
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
        row = (identity, time.time(), json.dumps(seconds), json.dumps(about, sort_keys=True))
        with self._lock, self._explained():
            self._database.execute("insert or replace into measured values (?, ?, ?, ?)", row)
            self._until_count -= 1
            if self._until_count <= 0:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest results above the limit; counting takes long, so this is done now and then."""
        self._until_count = max(1, min(_COUNT_AFTER, self._max_results // 10))
        (count,) = self._database.execute("select count(*) from measured").fetchone()
        oldest = "select identity from measured order by kept limit ?"
        surplus = max(0, count - self._max_results)
        self._database.execute(f"delete from measured where identity in ({oldest})", (surplus,))

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
            raise UsageError(f"{what}; give the runner another file (store=PATH), or none (store=None)") from None


def _seconds(text: str) -> list[float]:
    """The results in a row; none in one that something else has written."""
    try:
        values = json.loads(text)
        return [float(value) for value in values]
    except (TypeError, ValueError):
        return []
