"""Deploying modules on a server that was started with ``--deploy``: put, list, roll back, remove.

Any client that reaches such a server may deploy, as any client that reaches a server may run a model on it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Optional, Tuple, Union

from rpcsys.client import answers, capabilities, files, models
from rpcsys.client.connection import open_session
from rpcsys.client.files import Asked
from rpcsys.errors import Interrupted, ProtocolError, UsageError
from rpcsys.link.address import address_text, parse_address
from rpcsys.link.link import Closeable
from rpcsys.wire.checks import integer, record, rows, sentence

if TYPE_CHECKING:
    from rpcsys.client.rows import DeployedRow, DeployedVersion

Path = Union[str, "os.PathLike[str]"]

_COUNT = integer(0, 1 << 63)
PUT = record(name=sentence, version=sentence, file=sentence, sha256=sentence)
DEPLOYED = rows(
    record(
        name=sentence, version=sentence, file=sentence, state=sentence, running=_COUNT, waiting=_COUNT, clients=_COUNT
    )
)


class Deployment(Closeable):
    """A connection to a server's deployed modules; a context manager.

    ``address`` is ``"host:port"`` or ``(host, port)``; ``key``: the server's standing key, if it has one. Raises
    `ServerUnreachable`, `ServerRefused` (no ``--deploy``, or another key), `WrongPin`, `NoTls`.
    """

    def __init__(self, address: Union[str, Tuple[str, int]], *, key: str = "", timeout: float = 60.0) -> None:
        where = parse_address(address) if isinstance(address, str) else address
        self._session = open_session(where, key, serve="", timeout=timeout)

    def put(self, file: Path, name: Optional[str] = None, *, progress: Asked = None) -> DeployedVersion:
        """Deploy ``file``, a library or a model, as ``name`` (default: the file's), in place of an earlier version.

        The files in which a model keeps its weights go with it; ``progress`` counts the bytes of all.
        Returns when new calls go to it: name, version, file and sha256. The old version finishes the calls that run.
        Raises `UsageError` where a file that the model names is missing or outside its folder, `ModelError` for a file
        that the server cannot load; the old version then stays. `Interrupted` is Ctrl-C once all is sent: the server
        may still go on. Any other KeyboardInterrupt has changed nothing.
        """
        path = os.fspath(file)
        if not os.path.isfile(path):
            raise UsageError(f"no such file: {path}")
        base = os.path.basename(path)
        capabilities.check_loadable(path, base, self._session.info.get("capabilities", {}))
        with files.reporting(progress, f"send {base}") as report:
            uploaded = models.send(self._session.upload, models.parts(path, base), report)
        said = self._change("deploy.put", "go live", name or os.path.splitext(base)[0], uploaded)
        put: DeployedVersion = answers.from_device(PUT, said, "deploy.put")
        with open(path, "rb") as stream:
            digest = files.hash_of(path, stream)
        if put.get("sha256") != digest:
            raise ProtocolError(
                f"the server has another file than {path}: it changed while it was sent; deploy it again"
            )
        return put

    def rollback(self, name: str) -> DeployedVersion:
        """Put back the version of ``name`` that the current one replaced; again, and the newer one is back.

        Returns when new calls go to it: name, version, file and sha256. Raises `RemoteFileError` for an unknown name,
        or where no earlier version is kept; `ModelError` if it can no longer be loaded, and nothing has then changed.
        `Interrupted` as `put`.
        """
        said = self._change("deploy.rollback", "go back", name)
        version: DeployedVersion = answers.from_device(PUT, said, "deploy.rollback")
        return version

    def list(self) -> List[DeployedRow]:
        """The deployments: name, version, file, sha256, state; calls running and waiting, and clients."""
        said = self._session._builtin("deploy.list")
        rows: List[DeployedRow] = answers.from_device(DEPLOYED, said, "deploy.list")
        return rows

    def remove(self, name: str) -> None:
        """Remove the deployment ``name``; calls that run finish.

        Raises `RemoteFileError` for an unknown name; `Interrupted` as `put`.
        """
        self._change("deploy.remove", "be withdrawn", name)

    def _change(self, function: str, effect: str, name: str, *args: Any) -> Any:
        """Call a function that changes the deployment ``name``. Raises `Interrupted` for Ctrl-C."""
        try:
            return self._session._builtin(function, name, *args)
        except KeyboardInterrupt:
            where = address_text(*self._session.address)
            shows = f"rpcsys deploy --list --to {where}"
            raise Interrupted(f"{name} may still {effect} at {where}; this shows it: {shows}") from None

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
