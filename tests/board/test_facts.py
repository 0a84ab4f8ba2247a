"""The facts about a board, and the decisions that follow from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.board import facts
from rpcsys.board.facts import BoardFacts, Python, Space
from rpcsys.errors import RpcsysError

PI = """Welcome to the board
rpcsys-fact machine aarch64
rpcsys-fact system Linux
rpcsys-fact host pi
rpcsys-fact user 1000
rpcsys-fact python python3 3.6 64 glibc-2.27
rpcsys-fact python python3.9 3.9 64 glibc-2.27
rpcsys-fact folder /tmp tmpfs            51200  0 51200  0% /tmp
rpcsys-fact folder /var/tmp /dev/mmcblk0p2 1000000 400000 600000 40% /
rpcsys-fact base /opt /dev/mmcblk0p2 1000000 400000 600000 40% /
rpcsys-fact sudo free
rpcsys-fact version versions/0.1.0-12345678
rpcsys-fact server rpi4-3
rpcsys-fact server other
"""


def test_parse_reads_the_scripts_output() -> None:
    board = facts.parse(PI)
    assert board == BoardFacts(
        machine="aarch64",
        system="Linux",
        host="pi",
        user=1000,
        pythons=(Python("python3", (3, 6), 64, "glibc-2.27"), Python("python3.9", (3, 9), 64, "glibc-2.27")),
        folders=(Space("/tmp", 51200 << 10), Space("/var/tmp", 600000 << 10)),
        base=Space("/opt", 600000 << 10),
        sudo="free",
        version="0.1.0-12345678",
        servers=("rpi4-3", "other"),
    )


@given(st.text() | st.lists(st.sampled_from(PI.split())).map(" ".join))
def test_any_output_is_parsed(text: str) -> None:
    board = facts.parse("\n".join(f"rpcsys-fact {line}" for line in text.splitlines()) + text)
    assert board.user >= -1
    assert all(space.free is None or space.free >= 0 for space in board.folders)


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_this_machine(shell: str, tmp_path: Path) -> None:
    """The script itself, on a machine whose facts are known."""
    (tmp_path / "etc/rpcsys").mkdir(parents=True)
    (tmp_path / "etc/rpcsys/a b.flags").touch()
    (tmp_path / "opt/rpcsys").mkdir(parents=True)
    (tmp_path / "opt/rpcsys/current").symlink_to("versions/1-ab")
    command = ["busybox", "sh"] if shell == "busybox" else [shell]
    done = subprocess.run(
        [*command, "-c", facts.SCRIPT, "sh", str(tmp_path), "no-such-python", "python3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    board = facts.parse(done.stdout)
    assert (board.system, board.version, board.servers, board.writable) == ("Linux", "1-ab", ("a b",), True)
    assert [python.name for python in board.pythons] == ["python3"]
    assert board.folders[-1].folder == "/var/tmp"
    assert board.base.folder == str(tmp_path / "opt/rpcsys")
    assert all(space.free for space in (*board.folders, board.base))


def test_the_first_python_that_is_new_enough() -> None:
    assert facts.python(facts.parse(PI), "pi", facts.PYTHONS).name == "python3.9"


@pytest.mark.parametrize(
    ("pythons", "asked", "message"),
    [
        ((), facts.PYTHONS, "pi has no python3: install Python 3.8"),
        ((), ("python3.12",), "pi has no python3.12: "),
        ((Python("python3", (3, 7), 32, ""),), facts.PYTHONS, "too old (python3 is 3.7)"),
    ],
)
def test_a_missing_or_old_python_is_an_error(pythons: tuple[Python, ...], asked: tuple[str, ...], message: str) -> None:
    with pytest.raises(RpcsysError) as caught:
        facts.python(BoardFacts(pythons=pythons), "pi", asked)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "bits", "target"),
    [
        ("aarch64", 64, "aarch64-linux-gnu"),
        ("aarch64", 32, "arm-linux-gnueabihf"),
        ("armv7l", 32, "arm-linux-gnueabihf"),
        ("riscv64", 64, "riscv64-linux-gnu"),
        ("x86_64", 64, "x86_64-linux-gnu"),
    ],
)
def test_target(machine: str, bits: int, target: str) -> None:
    board = BoardFacts(machine=machine, system="Linux")
    assert facts.target(board, Python("python3", (3, 9), bits, ""), "pi") == target


@pytest.mark.parametrize(
    ("machine", "system", "message"),
    [
        ("mips", "Linux", "pi is mips with 32 bits; runtimes are packed for aarch64-linux-gnu, "),
        ("i686", "Linux", "pi is i686"),
        ("arm64", "Darwin", "pi runs Darwin; the device server needs Linux"),
        ("", "", "an unknown system"),
    ],
)
def test_an_unknown_machine_is_an_error(machine: str, system: str, message: str) -> None:
    with pytest.raises(RpcsysError) as caught:
        facts.target(BoardFacts(machine=machine, system=system), Python("python3", (3, 9), 32, ""), "pi")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("libc", "version"), [("glibc-2.31", "2.31"), ("-", None), ("", None), ("glibc-", None), ("musl-1.2", None)]
)
def test_glibc(libc: str, version: str | None) -> None:
    assert facts.glibc(Python("python3", (3, 9), 64, libc)) == version


MB = 1_000_000


def test_a_folder_with_enough_free_bytes() -> None:
    board = BoardFacts(folders=(Space("/tmp", 5 * MB), Space("/var/tmp", 9 * MB)), base=Space("/opt", 9 * MB))
    assert facts.folder_with_space(board, 4 * MB, "pi") == "/tmp"
    assert facts.folder_with_space(board, 8 * MB, "pi") == "/var/tmp"
    with pytest.raises(RpcsysError, match=r"^pi has no space: 9\.0 MB are free in /opt, and 10\.0 MB are needed$"):
        facts.folder_with_space(board, 10 * MB, "pi")
    small = BoardFacts(folders=(Space("/tmp", 1), Space("/var/tmp", 2 * MB)), base=Space("/opt", 9 * MB))
    with pytest.raises(RpcsysError, match=r"2\.0 MB are free in /var/tmp"):
        facts.folder_with_space(small, 3 * MB, "pi")
    with pytest.raises(RpcsysError, match="no folder to write to"):
        facts.folder_with_space(BoardFacts(), 1, "pi")
    assert (
        facts.folder_with_space(BoardFacts(folders=(Space("/tmp", None),)), 1, "pi") == "/tmp"
    )  # its free bytes are unknown: it is tried


@pytest.mark.parametrize(
    ("board", "root", "how"),
    [
        (BoardFacts(user=0), "", ""),
        (BoardFacts(user=1000, writable=True), "/home/pi/r", ""),
        (BoardFacts(user=1000, writable=True, sudo="free"), "", "sudo"),
        (BoardFacts(user=1000, sudo="asks"), "/data", "password"),
    ],
)
def test_rights(board: BoardFacts, root: str, how: str) -> None:
    assert facts.rights(board, root, "pi") == how


def test_no_rights() -> None:
    with pytest.raises(RpcsysError, match="may not install on pi, and there is no sudo"):
        facts.rights(BoardFacts(user=1000), "", "pi")
    with pytest.raises(RpcsysError, match="may not write to /data on pi"):
        facts.rights(BoardFacts(user=1000), "/data", "pi")
