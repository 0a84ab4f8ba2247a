"""Clients that call a model through a gateway without pause, until they are stopped."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

from tests.live.daemons import START_S, Daemon
from tests.live.gateways import grpc_of

Call = Callable[[], np.ndarray]


class HttpCaller:
    """One connection with binary arrays: a call of a model with one input ``x``, FP32, and one output."""

    def __init__(self, gateway: Daemon, model: str, x: np.ndarray, dtype: str = "float32") -> None:
        self._connection = http.client.HTTPConnection(*gateway.address, timeout=START_S)
        given = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
        head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
        self._request = ("POST", f"/v2/models/{model}/infer", head + x.tobytes())
        self._fields = {"Inference-Header-Content-Length": str(len(head))}
        self._dtype = dtype

    def __call__(self) -> np.ndarray:
        self._connection.request(*self._request, self._fields)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Refused(answer.status, body.decode())
        return np.frombuffer(body[int(answer.headers["Inference-Header-Content-Length"]) :], self._dtype)

    def close(self) -> None:
        self._connection.close()


class GrpcCaller:
    """The same over gRPC."""

    def __init__(self, gateway: Daemon, model: str, x: np.ndarray) -> None:
        self._client = InferenceServerClient(grpc_of(gateway))
        self._input = InferInput("x", list(x.shape), "FP32")
        self._input.set_data_from_numpy(x)
        self._model = model

    def __call__(self) -> np.ndarray:
        return self._client.infer(self._model, [self._input], client_timeout=START_S).as_numpy("y")

    def close(self) -> None:
        self._client.close()


class Refused(Exception):
    """An answer with the status of an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class InferenceLoad:
    """Threads that call; ``calls`` answered, the ``longest`` in seconds, and all ``errors``."""

    def __init__(self, check: Callable[[np.ndarray], bool]) -> None:
        self.calls = 0
        self.longest = 0.0
        self.errors: list[str] = []
        self._check = check
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, call: HttpCaller | GrpcCaller) -> None:
        self._threads.append(threading.Thread(target=self._run, args=(call,), daemon=True))
        self._threads[-1].start()

    def _run(self, call: HttpCaller | GrpcCaller) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                answer = call()
                problem = "" if self._check(answer) else f"a wrong answer: {answer}"
            except Exception as error:  # any is a failed call
                problem = repr(error)
            with self._lock:
                self.calls += not problem
                self.longest = max(self.longest, time.monotonic() - began)
                self.errors += [problem] if problem else []
        call.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(START_S)
        assert not any(thread.is_alive() for thread in self._threads)
