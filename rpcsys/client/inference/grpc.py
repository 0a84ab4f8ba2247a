"""A model's tensors over gRPC, by the package grpcio; messages are bytes of ours, so nothing is generated."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from rpcsys.client.inference.urls import InferenceUrl, error_of
from rpcsys.errors import ProtocolError, RpcsysError, ServerUnreachable, SessionClosed, SessionLost, UsageError
from rpcsys.wire import protobuf
from rpcsys.wire.inference import InferTensor
from rpcsys.wire.inference_messages import request_to_message, response_from_message
from rpcsys.wire.inference_requests import GRPC_CODES
from rpcsys.wire.inference_tables import INFERENCE, METHODS

_STATUSES = {**{code: status for status, code in reversed(GRPC_CODES.items())}, 8: 429}
_MAX_MESSAGE = (1 << 31) - 1
_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.enable_http_proxy", 0),  # as for all other connections of a lab
    ("grpc.use_local_subchannel_pool", 1),  # a channel opened again does not share the pauses of one that failed
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]  # fmt: skip
_UNAVAILABLE, _CANCELLED, _UNIMPLEMENTED = 14, 1, 12
_PROBE_S = 2.0  # for the question whether a server is there


class GrpcModel:
    """A model behind a URL, over gRPC. For any number of threads.

    Raises `UsageError` where grpcio is not installed, `ServerUnreachable`, and what the server says.
    """

    def __init__(self, url: InferenceUrl, seconds: float) -> None:
        try:
            import grpc
        except ImportError:
            board = "a board calls it through a module that you deploy on a server of yours"
            raise UsageError(f"{url.scheme}:// needs grpcio: pip install 'rpcsys[gateway]'; {board}") from None
        self._url = url
        self._error: Any = grpc.RpcError
        target = f"dns:///{url.place if ':' in url.place.rpartition(']')[2] else f'{url.place}:{url.port}'}"
        if url.scheme == "grpcs":
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, _OPTIONS)
        try:
            self._ask("ServerLive", b"", seconds)
        except SessionLost as error:
            self.close()
            raise ServerUnreachable(f"no inference server at {url.place}: {error}; is it running there?") from None
        except RpcsysError:
            pass  # it is there; calls say what they lack

    def metadata(self) -> Any:
        """What the server says of the model."""
        method = METHODS[INFERENCE + "ModelMetadata"]
        about = {"name": self._url.model, "version": self._url.version}
        said = self._ask("ModelMetadata", protobuf.encode(method.request, about), _PROBE_S)
        return protobuf.decode(method.response, said)

    def infer(
        self, inputs: Sequence[InferTensor], outputs: Sequence[str], deadline_s: Optional[float]
    ) -> List[InferTensor]:
        """One call."""
        message = b"".join(request_to_message(self._url.model, self._url.version, inputs, outputs))
        try:
            return response_from_message(self._ask("ModelInfer", message, deadline_s))
        except ProtocolError as error:
            raise ProtocolError(f"{self._url.text}: {error}") from None

    def close(self, calls: bool = True) -> None:
        """End the connection, and the calls on it."""
        self._channel.close()

    def _ask(self, method: str, message: bytes, seconds: Optional[float]) -> Any:
        """The answer of a method, as bytes. Raises the server's error; `SessionLost` where no server is there."""
        try:
            return self._channel.unary_unary(INFERENCE + method)(message, timeout=seconds)
        except self._error as error:
            code, said = error.code().value[0], error.details() or ""
        except ValueError:  # the channel is closed
            raise SessionClosed(f"{self._url.text}: the connection was closed here") from None
        if code == _CANCELLED:
            raise SessionLost(f"{self._url.text}: the connection was closed here")
        if code == _UNAVAILABLE and (method == "ServerLive" or not self._is_there()):
            raise SessionLost(f"{self._url.text}: {said}"[:500])
        status = 413 if "larger than max" in said else _STATUSES.get(code, 500)  # as gRPC says it: with code 8, too
        raise error_of(self._url, status, said)

    def _is_there(self) -> bool:
        """Whether a server answers: then it was too busy, else its connection was lost."""
        try:
            self._ask("ServerLive", b"", _PROBE_S)
        except SessionLost:
            return False
        except RpcsysError:
            pass
        return True
