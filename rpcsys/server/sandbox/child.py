"""A session process: waits on its tether for a client's connection, serves that one session, and exits.

It dies with its init; where it has no PID namespace of its own, with its parent (PR_SET_PDEATHSIG), and there it is
the subreaper of all that daemonises below it, so that none of it can slip away while the session lives.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from typing import Any, NoReturn

from rpcsys.server.sandbox import (
    cgroups,
    ipc_cleanup,
    launch,
    limits,
    messages,
    mount_namespace,
    pid_namespace,
    preload,
    privileges,
    processes,
    work_folders,
)
from rpcsys.server.sandbox.job import DEPLOYER, HOST, RPCSYS, TVM_END, Job


def main(settings: dict[str, Any]) -> NoReturn:
    """A child in an interpreter of its own (``--no-fork``). ``settings["parent"]`` is its parent."""
    tether = socket.socket(fileno=launch.HANDED)
    tether.set_inheritable(False)
    try:
        rooms = _rooms(settings)  # ahead of the imports, which may start threads
        preload.everything(settings, tether)
        if settings["confined"]:
            privileges.bound(privileges.kept(settings["read_only"]))
    except ImportError as error:
        messages.tell(tether, failed=str(error))
        os._exit(1)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the supervisor is gone
    _live(tether, settings, settings["parent"], rooms)


def live(tether: socket.socket, settings: dict[str, Any], parent: int) -> NoReturn:
    """The life of a child that its ``parent`` has just forked."""
    _live(tether, settings, parent, _rooms(settings))


def _rooms(settings: dict[str, Any]) -> mount_namespace.Rooms | None:
    if not settings["isolate"]:
        return None
    processes.note_number()
    pid_namespace.leave(pid_namespace.MOUNTS)
    wanted = ("left", "folder", "keep", "memory", "shared", "read_only", "own_pids")
    rooms = mount_namespace.Rooms(*(settings[name] for name in wanted))
    cgroups.hide(settings["cgroups"])
    return rooms


def _live(
    tether: socket.socket, settings: dict[str, Any], parent: int, rooms: mount_namespace.Rooms | None
) -> NoReturn:
    """Wait for a session, serve it, tell its outcome, exit. Nothing else of Python runs at the exit."""
    status = 1
    try:
        limits.be_ended(limits.FIRST)
        if not settings["own_pids"]:
            processes.die_with_parent(parent)
            processes.become_subreaper()
        processes.leave_without_destructors()
        os.setsid()
        _rehearse()
        messages.tell(tether, ready=True)
        data, descriptor = messages.receive(tether)
        if data:
            job = Job.from_bytes(data)
            if not _furnished(job, settings, rooms):
                _flush()
                os._exit(status)
            if settings["confined"]:
                privileges.drop(privileges.kept(settings["read_only"]))
            outcome = _serve(descriptor, job, tether)
            messages.tell(tether, outcome=outcome)  # at once, so that the next child is made meanwhile
            removed = ipc_cleanup.seen(settings) if rooms else []
            if removed:
                messages.tell(tether, outcome=outcome, removed=removed)
        status = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the supervisor is gone, and the zygote will say so with a signal
    except BaseException:  # noqa: BLE001 - whatever a session raises ends this process, and is told
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _rehearse() -> None:
    from rpcsys.server.session import session

    session.rehearse({})


def _furnished(job: Job, settings: dict[str, Any], rooms: mount_namespace.Rooms | None) -> bool:
    """Whether the session has its place. Not if its folder is gone: somebody killed the server, or removed it."""
    try:
        _furnish(job, settings, rooms)
    except OSError as error:
        sys.stderr.write(f"rpcsys-server: no place for a session: {error}\n")
        return False
    return True


def _furnish(job: Job, settings: dict[str, Any], rooms: mount_namespace.Rooms | None) -> None:
    """Give the session its place: directory and memory (its CPUs it has from the supervisor). A deployed module has a place already."""
    if job.kind in (HOST, DEPLOYER):
        os.chdir(job.workdir)
        return
    if rooms is not None and job.kind != TVM_END:
        rooms.open(os.path.dirname(job.workdir))
    _stay_in(job.workdir)
    if settings["read_only"]:
        os.environ["XDG_CACHE_HOME"] = work_folders.temporary(job.workdir)  # where libraries want to write unasked
    if settings["memory"] is not None:
        limits.allow_memory(settings["memory"])


def _serve(descriptor: int | None, job: Job, tether: socket.socket) -> str:
    """Serve the session; its outcome in a word."""
    if job.kind == HOST:
        from rpcsys.server.models import main

        return main.serve(tether, job)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(True)
    if job.kind == DEPLOYER:
        from rpcsys.server.models import deployer

        return deployer.serve(sock, job, tether)
    if job.kind == RPCSYS:
        from rpcsys.server.session import session

        def report(told: dict[str, Any]) -> None:
            messages.tell(tether, told.get("printed"), **told)

        return session.serve(sock, job, report, lambda: messages.last(tether))
    if job.options.get("tvm") == "ctypes":
        from rpcsys.server.session import tvm_ctypes

        return tvm_ctypes.serve(sock, job)
    from rpcsys.server.session import tvm_python

    return tvm_python.serve(sock, job)


def _stay_in(workdir: str) -> None:
    """Relative names and temporary files go where they are removed with the session."""
    os.chdir(workdir)
    os.environ["TMPDIR"] = work_folders.temporary(workdir)
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None  # it remembers what it found in the zygote


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
