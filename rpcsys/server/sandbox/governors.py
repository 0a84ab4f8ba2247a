"""Has CPUs run under the frequency governor ``performance``, and puts back what they had.

A note in the server's folder has what they had. It is written before any change, so that whoever removes the folder
puts the governors back first: the server, or after a kill its zygote or the next server. CPUs that share a policy share
its governor (the kernel's Documentation/admin-guide/pm/cpufreq.rst). A governor that somebody else has changed
meanwhile stays as it is.

Limitation: servers on one board do not know of each other. CPUs that two of them use are put back by the first to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping

ROOT = "/"  # below which sys/ is; tests have their own
PINNED = "performance"
_FILE = "scaling_governor"
NOTE = "governors.json"
MAX_NOTE = 1 << 20  # bytes: a line for each CPU of any machine
_CPUS = "sys/devices/system/cpu"
_POLICY = re.compile(r"cpufreq/policy[0-9]+|cpu[0-9]+/cpufreq")


def complaint(cpus: Iterable[int]) -> str:
    """Why the governors of these CPUs cannot be set, as a sentence with what to do; "" if they can."""
    policies = _policies(cpus)
    if not policies:
        return "this machine shows no frequency governors (no cpufreq in /sys): leave it out, or see its firmware"
    for policy in policies:
        path = os.path.join(_folder(policy), _FILE)
        if PINNED not in _read(policy, "scaling_available_governors").split():
            return f"{path} knows no {PINNED}: load the kernel's module cpufreq_performance"
        if not os.access(path, os.W_OK):
            return f"{path} cannot be written: start the server as root, or let its user write there"
    return ""


def pin(folder: str, cpus: Iterable[int]) -> list[str]:
    """Have these CPUs, and no others that the note in ``folder`` has, run under ``performance``; the problems."""
    noted, wanted = _noted(folder), _policies(cpus)
    had = {policy: _read(policy, _FILE) for policy in wanted if policy not in noted}
    fresh = {policy: governor for policy, governor in had.items() if governor not in ("", PINNED)}
    over = {policy: governor for policy, governor in noted.items() if policy not in wanted}
    problems = _note(folder, {**noted, **fresh}) if fresh else []
    if not problems:  # without a note nobody could put them back
        problems = [_set(policy, PINNED) for policy in fresh]
    problems += [_set(policy, governor) for policy, governor in over.items() if _read(policy, _FILE) == PINNED]
    if over:
        kept = {policy: governor for policy, governor in {**noted, **fresh}.items() if policy in wanted}
        problems += _note(folder, kept)
    return [problem for problem in problems if problem]


def put_back(folder: str) -> list[str]:
    """Put back all governors that the note in ``folder`` has; the problems."""
    return pin(folder, ())


def _folder(policy: str) -> str:
    return os.path.join(ROOT, _CPUS, policy)


def _policies(cpus: Iterable[int]) -> Collection[str]:
    """The policies of these CPUs, as paths below the kernel's folder of CPUs."""
    base = os.path.realpath(os.path.join(ROOT, _CPUS))
    places = (os.path.realpath(os.path.join(base, f"cpu{cpu}", "cpufreq")) for cpu in sorted(set(cpus)))
    found = dict.fromkeys(os.path.relpath(place, base) for place in places if os.path.isdir(place))
    return [policy for policy in found if _POLICY.fullmatch(policy)]


def _read(policy: str, name: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(os.path.join(_folder(policy), name)) as file:
        return file.read(4096).strip()
    return ""


def _set(policy: str, governor: str) -> str:
    """Set a policy's governor; the problem, "" for none."""
    path = os.path.join(_folder(policy), _FILE)
    try:
        with open(path, "w") as file:
            file.write(governor)
    except OSError as error:
        return f"{path} cannot be set to {governor} ({error.strerror})"
    return ""


def _noted(folder: str) -> dict[str, str]:
    """The policies and their governors in the note of ``folder``; a session may have written there what it likes."""
    try:
        with open(os.path.join(folder, NOTE), encoding="utf-8") as file:
            noted = json.loads(file.read(MAX_NOTE))
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = noted.items() if isinstance(noted, dict) else ()
    return {policy: governor for policy, governor in pairs if _POLICY.fullmatch(policy) and _known(policy, governor)}


def _known(policy: str, governor: object) -> bool:
    return isinstance(governor, str) and governor in _read(policy, "scaling_available_governors").split()


def _note(folder: str, policies: Mapping[str, str]) -> list[str]:
    """Write the note, whole or not at all; none for no policies. The problems."""
    path = os.path.join(folder, NOTE)
    try:
        if not policies:
            os.unlink(path)
            return []
        with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(policies, file)
        os.replace(f"{path}.new", path)
    except OSError as error:
        return [f"what the governors were cannot be noted in {path} ({error.strerror})"]
    return []
