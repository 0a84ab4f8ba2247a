"""Damage to a tracker's file, as disks, kills and people cause it. Each takes the path and a random generator."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from rpcsys.tracker.tables import COLUMNS

PAGE = 4096

Damage = Callable[[Path, random.Random], None]


def journal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def flipped(path: Path, chance: random.Random, count: int = 40) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(min(count, len(data))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def flipped_head(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(5):
        data[chance.randrange(200)] = chance.randrange(256)
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def zeroed(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(3):
        page = chance.randrange(len(data) // PAGE)
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    path.write_bytes(data)


def swapped(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    pages = [data[start : start + PAGE] for start in range(0, len(data), PAGE)]
    for _ in range(3):
        one, other = chance.randrange(1, len(pages)), chance.randrange(1, len(pages))
        pages[one], pages[other] = pages[other], pages[one]
    path.write_bytes(b"".join(pages))


def random_page(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    page = chance.randrange(len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = chance.randbytes(PAGE)
    path.write_bytes(data)


def flipped_journal(path: Path, chance: random.Random) -> None:
    if journal(path).exists():
        flipped(journal(path), chance)


def cut_journal(path: Path, chance: random.Random) -> None:
    if journal(path).exists():
        cut(journal(path), chance)


def without_journal(path: Path, chance: random.Random) -> None:
    journal(path).unlink(missing_ok=True)


def bad_index(path: Path, chance: random.Random) -> None:
    path.with_name(path.name + "-shm").write_bytes(chance.randbytes(32768))


def random_journal(path: Path, chance: random.Random) -> None:
    journal(path).write_bytes(chance.randbytes(40_000))


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def no_database(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"no database\n" * 1000)


def others(path: Path, chance: random.Random) -> None:
    """A file of another program, one without a table, and one with other columns."""
    if chance.random() < 0.5:
        path.unlink()
        journal(path).unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as file:
        table = chance.choice(sorted(COLUMNS))
        file.execute(f"DROP TABLE IF EXISTS {table}")
        file.execute(f"CREATE TABLE {table} (something)")
        file.commit()


def wrong_values(path: Path, chance: random.Random) -> None:
    """A wrong value in every column of some rows, where the table accepts it."""
    odd = [None, b"\xff\x00", "", "x" * 300_000, "a\nb", -1, 2**63 - 1, -(2**63), 1e308, float("inf"), float("nan")]
    odd += [
        "{",
        "[]",
        '{"lease": NaN}',
        json.dumps({"lease": 5}),
        "[" * 50_000,
        "true",
        "\udc00".encode("utf-8", "replace").decode(),
    ]
    with contextlib.closing(sqlite3.connect(path)) as file:
        for table, columns in COLUMNS.items():
            for column in columns:
                found = file.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
                if not found or column == "id":
                    continue
                row = list(chance.choice(found))
                row[columns.index(column)] = chance.choice(odd)
                if "id" in columns:
                    row[0] = None
                places = ", ".join("?" * len(columns))
                with contextlib.suppress(sqlite3.Error):
                    file.execute(f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({places})", row)
        file.commit()


def wrong_details(path: Path, chance: random.Random) -> None:
    """A wrong value in each field of the live records."""
    odd = [None, [], {}, "", "\u202e", -1, 10**30, 1e308, True, "x" * 100_000, {"a": {"b": []}}]
    with contextlib.closing(sqlite3.connect(path)) as file:
        for kind, about, details in file.execute("SELECT kind, about, details FROM present").fetchall():
            plain = json.loads(details)
            plain[chance.choice(sorted(plain))] = chance.choice(odd)
            file.execute(
                "UPDATE present SET details = ? WHERE kind = ? AND about = ?", (json.dumps(plain), kind, about)
            )
        file.commit()


ALL: tuple[Damage, ...] = (
    *(flipped, flipped_head, cut, zeroed, swapped, random_page, flipped_journal, cut_journal, without_journal),
    *(bad_index, random_journal, empty, no_database, others, wrong_values, wrong_details),
)
