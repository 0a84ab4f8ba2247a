"""What a hostile session tries: one function for each row of the table in docs/security.md.

A function that returns has succeeded; one that raises OSError was refused. It needs the standard library alone: it runs
on a server as ``--import tests.live.hostile``.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from rpcsys.server.session.registry import register

Facts = dict[str, Any]
LIBC = ctypes.CDLL(None, use_errno=True)
ATTEMPTS: dict[str, Callable[[Facts], object]] = {}
NEW_MOUNTS, NEW_USER, PTRACE_SEIZE = 0x00020000, 0x10000000, 0x4206


def attempt(row: str) -> Callable[[Callable[[Facts], object]], None]:
    """Make a decorator for the function that tries ``row`` of the table."""
    return lambda function: ATTEMPTS.__setitem__(row, function)


@register("hostile.attempts")
def attempts(facts: str) -> str:
    """Try everything, each in a process of its own: the error of each row, "" for a success; as JSON.

    ``facts``, JSON too: ``server``, ``zygote`` and ``other`` are PIDs on the board, the other names are paths, but for
    the server's ``port``.
    """
    return json.dumps({row: _tried(function, json.loads(facts)) for row, function in ATTEMPTS.items()})


def _tried(function: Callable[[Facts], object], facts: Facts) -> str:
    reading, writing = os.pipe()
    if not os.fork():
        try:
            function(facts)
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        except BaseException as error:
            os.write(writing, b"!" + repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.wait()
    with open(reading, "rb") as file:
        return file.read().decode()


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(100)


def read_memory(pid: int) -> None:
    with open(f"/proc/{pid}/maps") as lines:
        start = next(int(line.split("-")[0], 16) for line in lines if "[heap]" in line)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(start)
        file.read(100)


def trace(pid: int) -> None:
    check(LIBC.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_long(pid), ctypes.c_long(0), ctypes.c_long(0)))


def mount(place: str) -> None:
    check(LIBC.mount(b"tmpfs", place.encode(), b"tmpfs", ctypes.c_ulong(0), None))


attempt("read the server's memory")(lambda facts: read_memory(facts["server"]))
attempt("read the server's environment")(lambda facts: read(f"/proc/{facts['server']}/environ"))
attempt("read the server's command line")(lambda facts: read(f"/proc/{facts['server']}/cmdline"))
attempt("list the server's open files")(lambda facts: os.listdir(f"/proc/{facts['server']}/fd"))
attempt("trace the server")(lambda facts: trace(facts["server"]))
attempt("signal the server")(lambda facts: os.kill(facts["server"], 0))
attempt("trace the zygote")(lambda facts: trace(facts["zygote"]))
attempt("signal the zygote")(lambda facts: os.kill(facts["zygote"], 0))
attempt("read another session's memory")(lambda facts: read_memory(facts["other"]))
attempt("trace another session")(lambda facts: trace(facts["other"]))
attempt("signal another session")(lambda facts: os.kill(facts["other"], 0))
attempt("read another session's file")(lambda facts: read(facts["file"]))
attempt("read it by `/proc`")(lambda facts: read(f"/proc/{facts['other']}/root{facts['file']}"))
attempt("write where the server's user may")(lambda facts: os.close(os.open(facts["owned"], os.O_RDWR | os.O_APPEND)))
attempt("read what others left in the cache")(lambda facts: read(facts["cached"]))
attempt("become root")(lambda facts: os.setresuid(0, 0, 0))
attempt("mount a file system")(lambda facts: mount("/mnt"))
attempt("change the kernel's settings")(lambda facts: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_RDWR)))
attempt("read the machine's memory")(lambda facts: os.mknod("mem", 0o600 | 0o020000, os.makedev(1, 1)))
attempt("reach a network")(lambda facts: socket.create_connection(("127.0.0.1", facts["port"]), 5).close())


def _read_credential(facts: Facts) -> None:
    if not read(facts["credential"]):
        raise OSError("it is empty")


attempt("read the server's credential")(_read_credential)


@attempt("list other sessions' directories")
def _list_directories(facts: Facts) -> None:
    if facts["of_other"] not in os.listdir(facts["folder"]):
        raise OSError("only its own is there")


@attempt("uncover the credential")
def _uncover(facts: Facts) -> None:
    folder = os.path.dirname(facts["credential"]).encode()
    LIBC.umount2(folder, 2)
    if LIBC.unshare(NEW_USER | NEW_MOUNTS) == 0:
        LIBC.umount2(folder, 2)
        LIBC.mount(b"none", folder, b"none", ctypes.c_ulong(4096 | 32), None)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if read(f"/proc/{pid}/root{facts['credential']}"):
                return
        except OSError:
            pass  # another process may have another view
    _read_credential(facts)


@attempt("become root by a setuid program")
def _setuid_program(facts: Facts) -> None:
    done = subprocess.run([facts["setuid"], "-u"], capture_output=True, text=True, check=False)
    if done.stdout.strip() != "0":
        raise OSError(f"its user is {done.stdout.strip()}")
