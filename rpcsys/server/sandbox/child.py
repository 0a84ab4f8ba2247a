"""A child of the zygote: waits on its control socket for a job, does it, and exits.

It dies with its init. Without an init it dies with its parent, and is the subreaper of its daemonised descendants.
"""

from __future__ import annotations

import contextlib
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
    pid_namespace,
    preload,
    privileges,
    processes,
    work_folders,
)
from rpcsys.server.sandbox.messages import DEPLOYER, HOST, RPCSYS, TVM_END, Job
from rpcsys.server.sandbox.mount_namespace import MountNamespace


def main(settings: dict[str, Any]) -> NoReturn:
    """Run a child in a fresh interpreter (``--no-fork``). ``settings["parent"]``: the PID of its parent."""
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
    run(control, settings, settings["parent"], namespace)


def enter_namespaces(settings: dict[str, Any]) -> MountNamespace | None:
    """Leave the host's namespaces, if sessions have their own; return the new mount namespace."""
    if not settings["isolate"]:
        return None
    processes.note_host_pid()
    pid_namespace.leave(pid_namespace.MOUNTS)
    wanted = ("host_mounts", "folder", "keep", "memory", "shared", "read_only", "own_pids")
    namespace = MountNamespace(*(settings[name] for name in wanted))
    cgroups.hide(settings["cgroups"])
    return namespace


def run(control: socket.socket, settings: dict[str, Any], parent: int, namespace: MountNamespace | None) -> NoReturn:
    """Wait for a job, do it, report its outcome, and exit without Python's exit handlers."""
    from rpcsys.server.session import session

    status = 1
    try:
        limits.set_oom_score(limits.OOM_FIRST)
        if not settings["own_pids"]:
            processes.die_with_parent(parent)
            processes.become_subreaper()
        processes.exit_without_destructors()
        os.setsid()
        if settings["rehearse"]:
            session.rehearse()
        messages.send_json(control, ready=True)
        data, descriptor = messages.receive(control)
        status = _do(Job.from_bytes(data), descriptor, control, settings, namespace) if data else 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the supervisor is gone, so the zygote kills this process
    except BaseException:  # noqa: BLE001 - any exception is printed and ends this process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(status)


def _do(
    job: Job, descriptor: int | None, control: socket.socket, settings: dict[str, Any], namespace: MountNamespace | None
) -> int:
    try:
        _enter_folder(job, settings, namespace)
    except OSError as error:  # the folder is gone: the server was killed, or the folder removed
        sys.stderr.write(f"rpcsys-server: no place for a session: {error}\n")
        return 1
    if settings["confined"]:
        privileges.drop(privileges.kept(settings["read_only"]))
    outcome = _serve(descriptor, job, control)
    messages.send_json(control, outcome=outcome)  # at once, so that the zygote already makes the next child
    removed = ipc_cleanup.seen(settings) if namespace else []
    if removed:
        messages.send_json(control, outcome=outcome, removed=removed)
    return 0


def _enter_folder(job: Job, settings: dict[str, Any], namespace: MountNamespace | None) -> None:
    """Enter the job's directory and set a session's memory limit; the supervisor sets its CPUs."""
    if job.kind in (HOST, DEPLOYER):
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


def _serve(descriptor: int | None, job: Job, control: socket.socket) -> str:
    if job.kind == HOST:
        from rpcsys.server.models import host

        return host.serve(control, job)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(True)
    if job.kind == DEPLOYER:
        from rpcsys.server.models import deployer

        return deployer.serve(sock, job, control)
    if job.kind == RPCSYS:
        from rpcsys.server.session import session

        def report(fields: dict[str, Any]) -> None:
            messages.send_json(control, fields.get("printed"), **fields)

        return session.serve(sock, job, report, lambda: messages.last(control))
    from rpcsys.server.session import tvm_session

    if job.options.get("tvm") == "ctypes":
        from rpcsys.server.session.tvm_ctypes import library_runtime

        return tvm_session.serve(sock, job, library_runtime())
    return tvm_session.serve(sock, job, tvm_session.package_runtime())
