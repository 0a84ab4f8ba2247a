"""A child of the zygote: waits on its control socket for a job, does it, and exits.

It dies with its init. Without an init it dies with its parent, and is the subreaper of its daemonised descendants.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import traceback
from typing import Any, NoReturn

from rpcsys.errors import NativeError
from rpcsys.ffi import library
from rpcsys.server.sandbox import (
    cgroups,
    ipc_cleanup,
    launch,
    limits,
    messages,
    network_namespace,
    pid_namespace,
    preload,
    privileges,
    processes,
    session_user,
    work_folders,
)
from rpcsys.server.sandbox.messages import CANARY, DEPLOYER, FRONT, HOST, RPCSYS, TVM_END, Job
from rpcsys.server.sandbox.mount_namespace import MountNamespace

REHEARSE_S = 0.02  # a client that comes right after another one does not wait for a rehearsal


def main(settings: dict[str, Any]) -> NoReturn:
    """Run a child in a fresh interpreter (``--no-fork``)."""
    control = socket.socket(fileno=launch.HANDED)
    control.set_inheritable(False)
    try:
        namespace = enter_namespaces(settings)  # before the imports, which may start threads
        preload.everything(settings, control)
        if settings["confined"]:
            privileges.bound(privileges.kept(settings["read_only"]))
    except ImportError as error:
        messages.send_json(control, failed=str(error))
        os._exit(1)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the supervisor is gone
    run(control, settings, namespace)


def enter_namespaces(settings: dict[str, Any]) -> MountNamespace | None:
    """Leave the host's namespaces, if sessions have their own; return the new mount namespace."""
    if not settings["isolate"]:
        return None
    processes.note_host_pid()
    pid_namespace.leave(pid_namespace.MOUNTS | (pid_namespace.NETWORK if settings["no_network"] else 0))
    if settings["no_network"]:
        network_namespace.raise_loopback()
    wanted = ("host_mounts", "folder", "keep", "memory", "shared", "read_only", "own_pids", "secret", "closed")
    namespace = MountNamespace(*(settings[name] for name in wanted))
    cgroups.hide(settings["cgroups"])
    return namespace


def run(control: socket.socket, settings: dict[str, Any], namespace: MountNamespace | None) -> NoReturn:
    """Wait for a job, do it, report its outcome, and exit without Python's exit handlers.

    ``settings["parent"]``: the PID of this process's parent.
    """
    status = 1
    try:
        limits.set_oom_score(limits.OOM_FIRST)
        if not settings["own_pids"]:
            processes.die_with_parent(settings["parent"])
            processes.become_subreaper()
        os.setsid()
        messages.send_json(control, ready=True)
        if settings["rehearse"] and not _readable_within(control, REHEARSE_S):
            _rehearse(settings)
        data, descriptor = messages.receive(control)
        status = _do(Job.from_bytes(data), descriptor, control, settings, namespace) if data else 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the supervisor is gone, so the zygote kills this process
    except NativeError as error:  # of a library that does not load
        sys.stderr.write(f"rpcsys-server: {error}\n")
    except BaseException:  # noqa: BLE001 - any exception is printed and ends this process
        traceback.print_exc()
    finally:
        processes.exit_at_once(status)


def _readable_within(sock: socket.socket, seconds: float) -> bool:
    poll = select.poll()  # select() writes to twenty pages of the stack
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _do(
    job: Job, descriptor: int | None, control: socket.socket, settings: dict[str, Any], namespace: MountNamespace | None
) -> int:
    try:
        _enter_folder(job, settings, namespace)
    except OSError as error:  # the folder is gone: the server was killed, or the folder removed
        sys.stderr.write(f"rpcsys-server: no place for a session: {error}\n")
        return 1
    _restrict(job, settings)
    limits.keep_freed_memory()
    outcome = _serve(descriptor, job, control)
    messages.send_json(control, outcome=outcome)  # at once, so that the zygote already makes the next child
    removed = ipc_cleanup.seen(settings) if namespace else []
    if removed:
        messages.send_json(control, outcome=outcome, removed=removed)
    return 0


def _enter_folder(job: Job, settings: dict[str, Any], namespace: MountNamespace | None) -> None:
    """Enter the job's directory and set a session's memory limit; the supervisor sets its CPUs."""
    if settings["memory"] is not None and job.kind == CANARY:
        limits.allow_memory(settings["memory"])
    if job.kind in (HOST, DEPLOYER, FRONT, CANARY):
        os.chdir(job.workdir)
        return
    if namespace is not None and job.kind != TVM_END:
        namespace.open(os.path.dirname(job.workdir))
    os.chdir(job.workdir)
    temporary = work_folders.temporary(job.workdir)  # removed with the session
    os.environ["TMPDIR"] = temporary
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None  # else it keeps the zygote's value
    if settings["read_only"]:
        os.environ["XDG_CACHE_HOME"] = temporary  # where libraries write by default
    if settings["memory"] is not None:
        limits.allow_memory(settings["memory"])


def _restrict(job: Job, settings: dict[str, Any]) -> None:
    """Take the job's user, or drop the capabilities that a session of root, or in a user namespace, does not need."""
    if job.user is not None:
        home = "/tmp" if job.kind in (HOST, CANARY) else work_folders.temporary(job.workdir)
        session_user.become(session_user.User(*job.user), home)
        if not settings["own_pids"]:
            processes.die_with_parent(settings["parent"])
    elif settings["confined"]:
        privileges.drop(privileges.kept(settings["read_only"]) if os.geteuid() == 0 else frozenset())


def _rehearse(settings: dict[str, Any]) -> None:
    """Do ahead what a session does first, as far as it changes nothing: in a new process each first time is slow."""
    package = sys.modules.get(preload.TVM_PACKAGE)  # its import takes memory, which sessions of our own do not need
    if package is not None and package.ready():
        from rpcsys.server.session import tvm_ctypes, tvm_session

        tvm_session.prepare(tvm_ctypes.library_runtime())
    else:
        from rpcsys.server.session import session

        session.rehearse()
        preload.rehearse_opening(settings)
    if settings["confined"]:
        privileges.drop(privileges.ALL)
    if settings["user"] is not None:
        session_user.prepare(session_user.User(*settings["user"]))
        processes.set_dumpable(True)


def _serve(descriptor: int | None, job: Job, control: socket.socket) -> str:
    library.beside(job.options.get("load_library", ()))
    if job.kind == HOST:
        from rpcsys.server.models import host

        return host.serve(control, job)
    if job.kind == FRONT:
        from rpcsys.server import front

        return front.serve(control)
    if job.kind == CANARY:
        from rpcsys.server.canary import run

        return run.serve(control, job)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(True)
    if job.kind == DEPLOYER:
        from rpcsys.server.models import deployer

        return deployer.serve(sock, job, control)
    if job.kind == RPCSYS:
        from rpcsys.server.session import session

        def report(fields: dict[str, Any]) -> None:
            messages.send_json(control, fields.get("printed"), **fields)

        return session.serve(sock, job, report, lambda: messages.last(control), control)
    from rpcsys.server.session.tvm_package import ready
    from rpcsys.server.session.tvm_session import package_runtime, serve

    if job.options.get("tvm") == "ctypes" or ready():
        from rpcsys.server.session.tvm_ctypes import library_runtime

        return serve(sock, job, library_runtime())
    return serve(sock, job, package_runtime())
