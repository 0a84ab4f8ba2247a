"""The process that holds one subject and measures it at the harness's requests.

Lines of JSON: a request is ``{"operation", "parameters", "budget_s"}``, a reply ``{"figures": {name: number}}`` or
``{"error": text}``. The first line of output is ``{"ready": "worker"}``, ``{"missing": package}``, or an error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from benchmarks import peers
from benchmarks.peers.subject import Place, Subject


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subject", required=True, choices=sorted(peers.SUBJECTS))
    parser.add_argument("--server-core", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--hide-numpy", action="store_true")
    arguments = parser.parse_args()
    replies = own_stdout()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    place = Place(arguments.server_core, arguments.folder, arguments.hide_numpy)
    subject = started(arguments.subject, place, replies)
    if subject is None:
        return
    try:
        send(replies, {"ready": "worker"})
        for line in sys.stdin:
            send(replies, answer(subject, json.loads(line)))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subject.stop()


def own_stdout() -> TextIO:
    """Standard output for the harness only: the output of libraries goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def started(name: str, place: Place, replies: TextIO) -> Subject | None:
    """Start the subject's server; the subject, or None after a reply with the reason."""
    try:
        subject = peers.load(name)(place)
    except ModuleNotFoundError as error:
        send(replies, {"missing": error.name or name})
        return None
    try:
        subject.start()
    except Exception as error:  # noqa: BLE001 - any error becomes the note of the row
        subject.stop()
        send(replies, {"error": one_line(error)})
        return None
    return subject


def answer(subject: Subject, request: dict[str, Any]) -> dict[str, Any]:
    """Run one round of an operation."""
    try:
        with subject.trial(request["operation"], **request["parameters"]) as trial:
            return {"figures": trial.measure(request["budget_s"])}
    except Exception as error:  # noqa: BLE001 - any error becomes the note of the row
        return {"error": one_line(error)}


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def send(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
