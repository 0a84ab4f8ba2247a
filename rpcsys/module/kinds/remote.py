"""Kind ``rpcsys.remote``: a function of a server's session or deployed module. One call is one round trip.

The first call connects. A lost connection is opened again after a backoff, and the call that found it lost is repeated.
The module may import a fallback, which runs calls while there is no server.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
import time
from typing import Any, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from rpcsys.client.reconnect import WAIT_S, Endpoint, OpenConnection, ReconnectingConnection, open_at, open_url
from rpcsys.errors import (
    DeadlineExceeded,
    RemoteError,
    RpcsysError,
    SessionClosed,
    SessionLost,
    SessionTimeout,
    UsageError,
    one_line,
    there_are,
)
from rpcsys.link.address import address_text
from rpcsys.link.backoff import RetryBudget, jitter
from rpcsys.module import packed
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context
from rpcsys.wire import encoding
from rpcsys.wire.tensor import as_tensor

KIND = "rpcsys.remote"
Address = Union[str, Tuple[str, int]]
Encode = Union[str, Mapping[str, str]]  # how tensors cross, by name; or one encoding for all that it applies to
_DEFAULTS = Endpoint("")._asdict()  # the fields of an endpoint with nothing set
SHORT_WAIT_S = 1.0  # seconds to retry a busy server if a fallback could run the call
MAX_CALLS = 16  # the most calls of `RemoteFunctionModule.submit` that are under way
_CONNECTION_LOST = (SessionLost, SessionTimeout, SessionClosed)  # errors that end a connection but not the server
_log = logging.getLogger("rpcsys.remote")


class EncodingMetrics(NamedTuple):
    """The effect of encoding on an input so far: ``bytes`` became ``sent`` in ``seconds``."""

    how: str
    bytes: int = 0
    sent: int = 0
    seconds: float = 0.0


class RemoteMetrics(NamedTuple):
    """Counters of a remote module."""

    calls: int  # calls that were answered
    here: int  # of these, calls that the fallback ran
    repeated: int  # calls that were repeated because the connection was lost
    refused: int  # refusals by a server that was busy
    opened: int  # connections opened
    inputs: Dict[str, EncodingMetrics]  # encoded inputs by name


class RemoteFunctionModule(Module):
    """A function of a server as a module: ``main``. Calls of several threads share one connection."""

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(
        self, endpoint: Endpoint, inputs: Sequence[Dict[str, Any]] = (), outputs: Sequence[Dict[str, Any]] = (),
        imports: Sequence[Module] = (), encode: Optional[Mapping[str, str]] = None,
    ) -> None:  # fmt: skip
        """``encode`` has been checked (`ways`)."""
        super().__init__(KIND, imports=imports, inputs=inputs, outputs=outputs)
        self.endpoint = endpoint
        self.encode = dict(encode or {})
        self._sent = _positions(self.inputs, self.encode)
        self._returned = {str(at): how for at, (_, how) in _positions(self.outputs, self.encode).items()}
        self._options = {"deadline_s": endpoint.deadline_s} if endpoint.deadline_s else {}
        if endpoint.url:
            opening = functools.partial(open_url, endpoint, self.inputs, self.outputs)
        else:
            opening = functools.partial(open_at, endpoint, self._returned, list(self.encode.values()))
        self._server = ReconnectingConnection(opening, endpoint.wait_s, str(endpoint))
        self._lock = threading.Lock()  # guards all below
        self._workers: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._fallen_back = False  # whether the fallback ran the last call
        self._counts = dict.fromkeys(("calls", "here", "repeated", "refused"), 0)
        self._encodings = {name: EncodingMetrics(how) for name, how in self._sent.values()}

    def submit(self, *args: Any) -> concurrent.futures.Future[Any]:
        """Run ``main`` without waiting; at most `MAX_CALLS` are under way. Results may come in another order."""
        with self._lock:
            self.check_open()
            if self._workers is None:
                self._workers = concurrent.futures.ThreadPoolExecutor(MAX_CALLS, "rpcsys remote")
            return self._workers.submit(self._main, *args)

    def figures(self) -> RemoteMetrics:
        """Counters, and what encoding did to the inputs."""
        with self._lock:
            return RemoteMetrics(**self._counts, opened=self._server.opened, inputs=dict(self._encodings))

    def release(self) -> None:
        super().release()
        self._server.close()
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.shutdown(wait=False)

    def _main(self, *args: Any) -> Any:
        sent = self._encoded(args) if self._sent else args
        budget: Optional[RetryBudget] = None
        while True:
            connection = self._server.current or self._connected()
            if connection is None:
                problem = self._server.problem
                return self._fall_back(args, one_line(problem) if problem else "it does not answer yet")
            try:
                result = connection.call(*sent, **self._options)
            except RpcsysError as error:
                budget = budget or self._retry_budget()
                if not self._again(error, connection, budget):
                    return self._fall_back(args, one_line(error))
            else:
                self._answered()
                return result

    def _connected(self) -> Optional[OpenConnection]:
        """A connection; None if there is none yet and the fallback can run the call."""
        self.check_open()
        try:
            return self._server.at_once() if self.imports else self._server.get()
        except RpcsysError:
            self.check_open()  # an error during `close` is not reported
            raise

    def _retry_budget(self) -> RetryBudget:
        wait_s = min(self.endpoint.wait_s, SHORT_WAIT_S) if self.imports else self.endpoint.wait_s
        return RetryBudget(self.endpoint.repeatable, wait_s)

    def _again(self, error: RpcsysError, connection: OpenConnection, budget: RetryBudget) -> bool:
        """Whether to repeat a call, after a pause; False if the fallback runs it. Otherwise raises ``error``."""
        server, ran_perhaps, again = self._server, True, False
        if isinstance(error, _CONNECTION_LOST):
            self.check_open()
            server.lost(connection)
            again = budget.lost()
            self._count("repeated", again)
        elif isinstance(error, RemoteError) and error.retryable:
            ran_perhaps = False
            server.crowded(connection)
            pause = budget.busy(time.monotonic(), jitter())
            again = pause is not None
            self._count("refused", True)
            if pause is not None and server.current is connection:  # otherwise there is a new connection to try
                server.pause(pause)
        elif not isinstance(error, DeadlineExceeded):
            raise error
        if not again and not (self.imports and (self.endpoint.repeatable or not ran_perhaps)):
            raise error
        return again

    def _fall_back(self, args: Sequence[Any], why: str) -> Any:
        self.check_open()
        with self._lock:
            first, self._fallen_back = not self._fallen_back, True
            self._counts["calls"] += 1
            self._counts["here"] += 1
        if first:
            _log.warning("%s runs on this device until the server is back: %s", self.endpoint, why)
        return self.imports[0](*args)

    def _answered(self) -> None:
        with self._lock:
            back, self._fallen_back = self._fallen_back, False
            self._counts["calls"] += 1
        if back:
            _log.warning("%s is back", self.endpoint)

    def _count(self, what: str, more: bool) -> None:
        with self._lock:
            self._counts[what] += more

    def _encoded(self, args: Sequence[Any]) -> List[Any]:
        """The arguments, encoded. Raises `ValueNotSupported`."""
        sent = list(args)
        for position, (name, how) in self._sent.items():
            if position >= len(args):
                continue
            began = time.perf_counter()
            always = bool(self.endpoint.url)  # its model decodes in any case
            value = sent[position] = encoding.encode(args[position], how, f"input {name!r}", always)
            took = time.perf_counter() - began
            tensor = as_tensor(args[position])
            assert tensor is not None  # it was encoded, so it is an array
            size = len(value.data) if isinstance(value, encoding.Encoded) else tensor.nbytes
            with self._lock:
                was = self._encodings[name]
                bytes_ = was.bytes + tensor.nbytes
                self._encodings[name] = EncodingMetrics(how, bytes_, was.sent + size, was.seconds + took)
        return sent


# ------------------------------------------------------------------ making one


def remote(
    function: str = "", *, serve: str = "", key: str = "", tracker: Address = "", address: Address = "",
    wait_s: float = WAIT_S, deadline_s: float = 0.0, repeatable: bool = True,
    inputs: Sequence[Dict[str, Any]] = (), outputs: Sequence[Dict[str, Any]] = (), encode: Encode = "",
    fallback: Optional[Module] = None,
) -> RemoteFunctionModule:  # fmt: skip
    """A module whose ``main`` is a function on a server, found by its address (``"host:port"`` or a pair) or a tracker.

    ``serve`` names a module that is deployed there: the least busy of its servers is called, without a lease.
    ``function`` is a function of that module, by default ``main``. Without ``serve`` it is a function of the server's
    sessions, and a session is opened for it: leased by ``key`` if there is a tracker.

    ``function`` may be the URL of a model on an inference server (Triton, MLServer, KServe and others), or several,
    separated by spaces: ``http://HOST:PORT/v2/models/NAME[/versions/V]`` or ``grpc://HOST:PORT/NAME[/V]``, with
    ``https`` and ``grpcs`` for TLS. ``main`` takes and gives its tensors in the order of ``inputs`` and ``outputs``; by
    default of the server's own description. There ``encode`` is float16 or int8, and the model itself decodes
    (`rpcsys.graph.offload` makes one that does).

    ``encode``: how tensors cross (`rpcsys.wire.encoding`), by the names of inputs and outputs, or one encoding for
    all that it applies to. ``fallback``: runs calls while the server is away, or is busy for over a second. ``wait_s``:
    without a fallback, seconds that a call waits for a server. ``deadline_s``: seconds that a call may run there, 0
    for no limit. ``repeatable``: whether to repeat a call whose connection was lost while it ran.

    With ``inputs`` and ``outputs`` (dicts with name, dtype and shape) it can be run by names. Raises `UsageError`.
    """
    function = function or ("main" if serve else "")
    function, url = ("", function) if "://" in function else (function, "")
    endpoint = Endpoint(function, key, _text(tracker), _text(address), wait_s, serve, deadline_s, repeatable, url)
    complaint = endpoint.complaint()
    if complaint:
        raise UsageError(complaint)
    imports = [fallback] if fallback is not None else []
    return RemoteFunctionModule(endpoint, inputs, outputs, imports, _ways(endpoint, encode, [*inputs, *outputs]))


def _ways(endpoint: Endpoint, encode: Encode, tensors: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
    chosen = ways(encode, tensors)
    if endpoint.url:
        check_decodable(chosen)
    return chosen


def check_decodable(chosen: Mapping[str, str]) -> None:
    """Raise `UsageError` for an encoding that no ONNX model decodes: an inference server has no other decoder."""
    for name, how in chosen.items():
        if how not in encoding.ROUNDING:
            raise UsageError(f"{name!r} as {how}: an inference server decodes {' and '.join(encoding.ROUNDING)} alone")


def ways(encode: Encode, tensors: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
    """The encoding of each named tensor that is to be encoded. Raises `UsageError`."""
    named = {value["name"]: value.get("dtype", "") for value in tensors}
    if isinstance(encode, str):
        if encode and not named:
            raise UsageError("encode goes by the names of tensors: say which inputs and outputs there are")
        return {name: encode for name, dtype in named.items() if encode and encoding.applies(encode, dtype)}
    for name, how in encode.items():
        if name not in named:
            raise UsageError(f"there is no tensor {name!r} to encode; {there_are(named)}")
        encoding.steps(how)
        if named[name] and not encoding.applies(how, named[name]):
            raise UsageError(f"{how} does not apply to {name!r}, which is {named[name]}")
    return dict(encode)


def _positions(values: Sequence[Mapping[str, Any]], encode: Mapping[str, str]) -> Dict[int, Tuple[str, str]]:
    """Position -> (name, encoding) of the tensors that are encoded."""
    names = [value["name"] for value in values]
    return {position: (name, encode[name]) for position, name in enumerate(names) if name in encode}


def _text(address: Address) -> str:
    return address if isinstance(address, str) else address_text(*address)


def save_to_bytes(module: RemoteFunctionModule, offset: int) -> Sequence[Buffer]:
    """The function's address and description; the function itself stays on the server."""
    about = {"inputs": module.inputs, "outputs": module.outputs, "encode": module.encode}
    return packed.pack({**module.endpoint._asdict(), **about}, [], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """Load the module; it does not connect. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    fields: Dict[str, Any] = {name: about.get(name, default) for name, default in _DEFAULTS.items()}
    if buffers or not all(_alike(fields[name], default) for name, default in _DEFAULTS.items()):
        raise FormatError("is broken (a remote function is not described)")
    endpoint = Endpoint(**fields)
    if endpoint.complaint():
        raise FormatError(f"is broken ({endpoint.complaint()})")
    inputs, outputs = packed.declared(about.get("inputs")), packed.declared(about.get("outputs"))
    encode = about.get("encode", {})
    try:
        if not isinstance(encode, dict):
            raise UsageError("encode is no mapping")
        return RemoteFunctionModule(endpoint, inputs, outputs, encode=_ways(endpoint, encode, [*inputs, *outputs]))
    except UsageError as error:
        raise FormatError(f"is broken ({error})") from None


def _alike(value: Any, default: Any) -> bool:
    return type(value) is type(default) or (type(default) is float and type(value) is int)
