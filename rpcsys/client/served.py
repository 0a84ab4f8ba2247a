"""A module that is deployed on a server, and shared with other clients."""

from __future__ import annotations

from typing import Any, Dict, Optional

from rpcsys.client.remote import RemoteModule, TimeEvaluator
from rpcsys.client.session import Closeable, Session
from rpcsys.errors import ProtocolError, UsageError
from rpcsys.wire.values import Ref

#: The number under which a shared connection knows its module.
_MODULE = 0


class ServedModule(RemoteModule, Closeable):
    """A deployed module, over one connection of its own; a context manager. Made by `connect` with ``serve=``.

    Calls like a `RemoteModule`'s; for any number of threads, whose calls run side by side on the server. Raises `Busy`
    where the server has too much to do (call again in a moment), `SessionLost` when it is gone: then connect again.
    ``deadline_s`` and a future's ``cancel`` end that one call.

    Attributes
    ----------
    name, version : what is deployed; a newer version may have taken its place since
    info : what the server said at the start
    """

    _session: Session

    def __init__(self, session: Session) -> None:
        about = session.info.get("serve")
        if type(about) is not dict:
            session.close()
            raise ProtocolError("the server's HELLO does not say which module it serves")
        fields = ("kind", "functions", "inputs", "outputs")
        super().__init__(
            session, Ref(_MODULE, {field: about[field] for field in fields if field in about}), owned=False
        )
        self.name = str(about.get("name", ""))
        self.version = str(about.get("version", ""))
        self.info: Dict[str, Any] = session.info

    def __repr__(self) -> str:
        return "<served module {} {} at {}:{}>".format(self.name, self.version, *self._session.address)

    def time_evaluator(self, *args: Any, **more: Any) -> TimeEvaluator:
        """Not here: others use the device too."""
        raise UsageError("a shared module is not timed on its server, where others use it too; lease a device for that")

    @property
    def closed(self) -> Optional[Exception]:
        """Why it cannot be used any more, or None."""
        return self._session.closed

    def close(self) -> None:
        """Close the connection. Does nothing the second time."""
        self._session.close()
