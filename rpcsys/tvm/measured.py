"""What is known of candidates from earlier measurements, and how one is told from another."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import rpcsys
from rpcsys.client import Session
from rpcsys.errors import UsageError, one_line
from rpcsys.result_store import ResultStore, identity
from rpcsys.tvm.lab_results import LabResults
from rpcsys.tvm.tuning_state import Candidate

#: The packages and parts of a board whose versions may change how fast a candidate is.
VERSIONS = ("tvm", "tvm_ffi", "libc", "kernel", "driver")
_log = logging.getLogger("rpcsys.tuning")


def board_of(session: Session, key: str) -> dict[str, Any]:
    """What a measurement depends on, of the board of a session: its key, its kind, and the versions on it."""
    info = session.info
    machine, versions = info.get("machine", {}), info.get("capabilities", {}).get("versions", {})
    return {
        "key": key,
        "arch": machine.get("arch", ""),
        "cores": machine.get("cores", 0),
        "devices": [device.get("title", "") for device in session.devices],
        "versions": {name: versions.get(name, "") for name in VERSIONS},
    }


class KnownResults:
    """The results in ``store``, of measurements with the ``options`` of `rpcsys.client.candidates`.

    ``again``: earlier results are not used, but replaced. Without a store nothing is known or kept.
    """

    def __init__(self, store: ResultStore | LabResults | None, options: Mapping[str, Any], again: bool = False) -> None:
        self._store = store
        self._options = dict(options)
        self._again = again

    def find(self, candidates: Iterable[Candidate], board: Mapping[str, Any]) -> dict[Candidate, list[float]]:
        """The seconds of those candidates that were measured before on such a board. Raises nothing."""
        if self._store is None or self._again:
            return {}
        identities = {}
        for candidate in candidates:
            try:
                identities[candidate] = identity(self._facts(candidate, board))
            except UsageError:
                continue  # its file cannot be read; that is told when it is sent
        try:
            known = self._store.find(identities.values())
        except UsageError as error:
            self._give_up(error)
            return {}
        return {candidate: known[each] for candidate, each in identities.items() if each in known}

    def keep(self, candidate: Candidate, board: Mapping[str, Any], seconds: list[float]) -> None:
        """Keep a result. Raises nothing: a measurement is not lost because its result cannot be kept."""
        if self._store is not None:
            try:
                facts = self._facts(candidate, board)
                self._store.keep(identity(facts), seconds, facts)
            except UsageError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    def _facts(self, candidate: Candidate, board: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "code": candidate.artefact.digest,
            "device": candidate.device,
            "arguments": [[dtype, list(shape)] for dtype, shape in candidate.arguments],
            "options": self._options,
            "board": board,
            "rpcsys": rpcsys.__version__,
        }

    def _give_up(self, error: UsageError) -> None:
        _log.warning("%s; results are not kept", one_line(error))
        self._store = None
