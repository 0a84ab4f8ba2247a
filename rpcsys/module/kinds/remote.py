"""Kind ``rpcsys.remote``: a function that lives on a server. One call is one round trip: inputs there, outputs back.

Nothing connects before the first call. A session that is lost is opened anew, and the call that found it lost is made once
more: such a function should give the same for the same inputs.
"""

from __future__ import annotations

import threading
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from rpcsys import client
from rpcsys.errors import SessionClosed, SessionLost, SessionTimeout, UsageError
from rpcsys.link.address import parse_address
from rpcsys.module import packed
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context

if TYPE_CHECKING:
    from rpcsys.module.names import Names  # for who exports: no board has it

KIND = "rpcsys.remote"
Address = Union[str, Tuple[str, int]]
#: Seconds that a call waits for a server to be free, unless told otherwise.
WAIT_S = 60.0
#: What ends a session but not the server.
_LOST = (SessionLost, SessionTimeout, SessionClosed)


class Place(NamedTuple):
    """Where a function is.

    Attributes
    ----------
    function : its name on the server
    key : of the servers that have it
    tracker : ``host:port`` of the tracker that knows them; or
    address : ``host:port`` of the server itself
    wait_s : seconds to wait for one to be free
    """

    function: str
    key: str = ""
    tracker: str = ""
    address: str = ""
    wait_s: float = WAIT_S

    def complaint(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if not self.function:
            return "a remote function has a name"
        if bool(self.tracker) == bool(self.address):
            return "a remote function is found by a tracker or by an address: give one of the two"
        if self.tracker and not self.key:
            return "a tracker finds a remote function by a key: give one"
        if not 0 < self.wait_s < float("inf"):
            return "wait_s is a number of seconds above 0"
        try:
            parse_address(self.tracker or self.address)
        except UsageError as error:
            return str(error)
        return ""


class RemoteModule(Module):
    """A function of a server as a module: ``main``. Several threads may call it."""

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(
        self,
        place: Place,
        inputs: Sequence[Dict[str, Any]] = (),
        outputs: Sequence[Dict[str, Any]] = (),
        imports: Sequence[Module] = (),
    ) -> None:
        super().__init__(KIND, imports=imports, inputs=inputs, outputs=outputs)
        self.place = place
        self._lock = threading.Lock()
        self._tracker: Optional[client.Tracker] = None
        self._session: Optional[client.Session] = None
        self._function: Optional[client.RemoteFunction] = None

    def release(self) -> None:
        super().release()
        with self._lock:
            self._hang_up()

    def _main(self, *args: Any) -> Any:
        function = self._function
        if function is not None:
            try:
                return function(*args)
            except _LOST:
                with self._lock:
                    if self._function is function:  # else another thread has opened a new one
                        self._hang_up()
        return self._connected()(*args)

    def _connected(self) -> client.RemoteFunction:
        with self._lock:
            if self._function is None:
                self.check_open()
                try:
                    self._session = self._open()
                    self._function = self._session.get_function(self.place.function)
                except BaseException:
                    self._hang_up()
                    raise
            return self._function

    def _open(self) -> client.Session:
        place = self.place
        if place.address:
            return client.connect(place.address, key=place.key, timeout=place.wait_s)
        self._tracker = client.connect_tracker(place.tracker)
        return self._tracker.request(place.key, wait_timeout=place.wait_s)

    def _hang_up(self) -> None:
        held: List[Any] = [self._session, self._tracker]
        self._function = self._session = self._tracker = None
        for one in held:
            if one is not None:
                one.close()


def remote(
    function: str,
    *,
    key: str = "",
    tracker: Address = "",
    address: Address = "",
    wait_s: float = WAIT_S,
    inputs: Sequence[Dict[str, Any]] = (),
    outputs: Sequence[Dict[str, Any]] = (),
) -> RemoteModule:
    """A module whose ``main`` is ``function`` on a server: of ``key`` at a tracker, or at ``address`` (``"host:port"`` or
    ``(host, port)``).

    ``inputs`` and ``outputs`` (dicts with name, dtype and shape) let it be run by names. Raises `UsageError`.
    """
    place = Place(function, key, _text(tracker), _text(address), wait_s)
    complaint = place.complaint()
    if complaint:
        raise UsageError(complaint)
    return RemoteModule(place, inputs, outputs)


def rename(module: Module, names: Names) -> Module:
    """The same place; its inputs and outputs by other names."""
    assert isinstance(module, RemoteModule)
    return RemoteModule(module.place, names.values(module.inputs), names.values(module.outputs))


def _text(address: Address) -> str:
    if isinstance(address, str):
        return address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def save_to_bytes(module: Module, offset: int) -> Sequence[Buffer]:
    """Where the function is; nothing of it."""
    assert isinstance(module, RemoteModule)
    return packed.pack(
        {**module.place._asdict(), "inputs": module.inputs, "outputs": module.outputs}, [], offset
    )


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """The function; nothing is connected. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    texts = [about.get(field) for field in ("function", "key", "tracker", "address")]
    wait_s, inputs, outputs = about.get("wait_s"), about.get("inputs"), about.get("outputs")
    if buffers or not all(isinstance(text, str) for text in texts) or not isinstance(wait_s, (int, float)):
        raise FormatError("is broken (a remote function is not described)")
    function, key, tracker, address = map(str, texts)
    place = Place(function, key, tracker, address, wait_s)
    if place.complaint():
        raise FormatError(f"is broken ({place.complaint()})")
    return RemoteModule(place, packed.declared(inputs), packed.declared(outputs))
