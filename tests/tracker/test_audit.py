"""The audit log: a chain of lines that shows each change, and what a kill and a full disk leave of it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.tracker import audit
from rpcsys.tracker.audit import AuditEntry, AuditLog, AuditReader, verify

ENTRIES = [
    AuditEntry(1_800_000_000.1234, "ann", "10.0.0.7", "login"),
    AuditEntry(1_800_000_001.0, "ann", "10.0.0.7", "lease", "rpi4-3"),
    AuditEntry(1_800_000_002.0, "bo", "10.0.0.8", "lease", "jetson-3", "bo may not lease jetson-3"),
    AuditEntry(1_800_000_003.0, "mo", "10.0.0.9", "revoke", "ann"),
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    with contextlib.closing(AuditLog(tmp_path)) as log:
        yield log


def lines(log: AuditLog) -> list[bytes]:
    return log.path.read_bytes().splitlines(keepends=True)


def test_lines_are_a_chain(log: AuditLog) -> None:
    log.write(ENTRIES[:1])
    log.write(ENTRIES[1:])
    found = [json.loads(line) for line in lines(log)]
    assert found[0] == {"at": 1800000000.123, "who": "ann", "from": "10.0.0.7", "did": "login", "prev": "0" * 64}
    assert found[2]["result"] == "bo may not lease jetson-3"
    assert found[1]["prev"] == audit.hash_of(lines(log)[0][:-1])
    assert verify(lines(log)) == (4, log.head, 0, "")
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_the_chain_goes_on_after_a_restart(tmp_path: Path, log: AuditLog) -> None:
    log.write(ENTRIES)
    with contextlib.closing(AuditLog(tmp_path)) as again:
        assert again.head == log.head
        again.write(ENTRIES)
        assert verify(lines(again)) == (8, again.head, 0, "")


@given(st.data())
def test_each_change_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A byte changed in any line but the last is found there or in the next line; a removed or doubled one, too."""
    head, whole = audit.FIRST, []
    for entry in ENTRIES:
        whole.append(audit.line_of(entry, head))
        head = audit.hash_of(whole[-1])
    number = data.draw(st.integers(0, len(whole) - 2))
    what = data.draw(st.sampled_from(["changed", "removed", "doubled", "swapped"]))
    if what == "changed":
        place = data.draw(st.integers(0, len(whole[number]) - 1))
        byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[number][place]))
        whole[number] = whole[number][:place] + bytes([byte]) + whole[number][place + 1 :]
    elif what == "removed":
        del whole[number]
    elif what == "doubled":
        whole.insert(number, whole[number])
    else:
        whole[number : number + 2] = reversed(whole[number : number + 2])
    found = verify(line + b"\n" for line in whole)
    assert found.broken in (number + 1, number + 2)
    assert found.why


def test_a_log_that_was_cut_or_made_anew_is_found_by_a_kept_hash(log: AuditLog) -> None:
    log.write(ENTRIES)
    kept = log.head
    assert verify(lines(log), kept).broken == 0
    assert verify(lines(log)[:-1]).broken == 0  # a chain alone does not show it
    cut = verify(lines(log)[:-1], kept)
    assert (cut.broken, cut.why) == (4, "no line has the hash that was kept: lines were removed or replaced")
    log.write(ENTRIES)
    assert verify(lines(log), kept).broken == 0
    assert verify([], kept).broken == 1
    assert verify([], audit.FIRST) == verify([]) == (0, audit.FIRST, 0, "")


@pytest.mark.parametrize(
    "line", [b"", b"[]\n", b"7\n", b"{}\n", b"\xff\n", b'{"prev": 7}\n', b"[" * 10_000, b"x" * 100_000]
)
def test_other_lines_are_no_chain(line: bytes) -> None:
    found = verify([line])
    assert (found.broken, found.lines) == (1, 1)
    assert found.why


def test_long_texts_are_cut(log: AuditLog) -> None:
    log.write([AuditEntry(1.0, "\n" * 100_000, "\U0001f600" * 100_000, "x" * 100_000, "y" * 100_000, "z" * 100_000)])
    assert all(len(line) <= audit.MAX_LINE for line in lines(log))
    assert verify(lines(log)).broken == 0


def test_a_full_disk_leaves_the_chain_whole(log: AuditLog) -> None:
    log.write(ENTRIES)
    before = log.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.write(ENTRIES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.path.read_bytes() == before
    log.write(ENTRIES)
    assert verify(lines(log)).broken == 0


@pytest.mark.parametrize("rest", [b"", b"{", b'{"at":1', b"\xff" * 1000])
def test_what_a_kill_leaves_of_a_line_is_removed(tmp_path: Path, log: AuditLog, rest: bytes) -> None:
    log.write(ENTRIES)
    with log.path.open("ab") as file:
        file.write(rest)
    with contextlib.closing(AuditLog(tmp_path)) as again:
        again.write(ENTRIES)
        assert verify(lines(again)) == (8, again.head, 0, "")


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / audit.FILE).write_bytes(b"x" * 1_000_000)
    with pytest.raises(ConfigError, match="is no audit log"):
        AuditLog(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot write .*No such file"):
        AuditLog(tmp_path / "none")


WRITES = """
import sys
import threading
from rpcsys.tracker.audit import AuditLog, AuditEntry
log = AuditLog(sys.argv[1])
for number in range(100_000):
    log.write([AuditEntry(float(number), "ann", "10.0.0.7", "lease", str(number))])
    print(number, flush=True)
"""


def test_a_kill_loses_no_line_that_was_written(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(50):
        reported = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    reported = int(rest[-1]) if rest else reported
    with contextlib.closing(AuditLog(tmp_path)) as log:
        found = verify(lines(log))
        assert found.broken == 0
        assert found.lines in (reported + 1, reported + 2)


def test_pages_have_all_lines_once(log: AuditLog) -> None:
    log.write(AuditEntry(float(number), "ann", "10.0.0.7", "x" * (number % 1000)) for number in range(1000))
    written = [line.decode().rstrip("\n") for line in lines(log)]
    reader = AuditReader(log.path.parent)
    for limit in (1000, 7, 1):
        found, start = reader.page(1, limit)
        for _ in range(2000):
            if not start:
                break
            more, start = reader.page(start, limit)
            found += more
        assert found == written
    assert reader.page(500, 3) == (written[499:502], 503)
    assert reader.page(1000, 3) == (written[999:], 0)
    assert reader.page(1001, 3) == reader.page(2**53, 3) == ([], 0)


def test_a_page_is_of_bounded_size_and_keeps_what_is_no_text(log: AuditLog) -> None:
    damaged = [b"\xff" * 10, b"y" * (audit.MAX_LINE * 3), b"z" * audit.MAX_LINE, b"", b"cut"]
    log.path.write_bytes(b"\n".join(damaged))
    reader, found, start = AuditReader(log.path.parent), [], 1
    while start:
        page, start = reader.page(start, 1000)
        assert len(json.dumps(page)) < 800_000
        found += page
    assert [line.encode("utf-8", "surrogateescape") for line in found] == [
        damaged[0], damaged[1][: audit.MAX_LINE + 1], damaged[2], b"",
    ]  # fmt: skip


def test_two_threads_write_one_chain(log: AuditLog) -> None:
    def write() -> None:
        for entry in ENTRIES * 20:
            log.write([entry])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = verify(lines(log))
    assert (found.lines, found.broken, found.head) == (320, 0, log.head)
