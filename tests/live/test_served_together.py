"""Eight clients of one deployed network share one copy of the weights, at nearly the network's own throughput."""

from __future__ import annotations

import concurrent.futures
import os
import time

import numpy as np
import onnx
import onnxruntime
import pytest

import rpcsys
from rpcsys.graph import samples
from tests.live import deployed
from tests.live.daemons import Daemons, pss_mb

pytestmark = pytest.mark.slow

CLIENTS = 8
INPUT = (1, 3, 224, 224)


@pytest.fixture
def edge(tmp_path):
    """A server with resnet50 (102 MB of weights) and one worker per CPU."""
    network = tmp_path / "resnet50.onnx"
    onnx.save(samples.light_model("resnet50"), network)
    deployed.put(tmp_path / "deploy", "resnet50", network)
    daemons = Daemons(tmp_path)
    server = daemons.server("edge", "--tvm", "off", "--deploy", str(tmp_path / "deploy"))
    yield server, network
    daemons.stop()


def test_eight_clients_share_the_weights_and_the_throughput(edge, record_property):
    server, network = edge
    picture = np.random.default_rng(0).random(INPUT, "float32")
    clients = [rpcsys.connect(*server.address, serve="resnet50") for _ in range(CLIENTS)]
    expected = clients[0](picture)
    host = clients[0].info["pid"]
    assert {client.info["pid"] for client in clients} == {host}
    _for_a_while(clients[:1], picture)
    one = pss_mb([host])
    _for_a_while(clients, picture)
    eight = pss_mb([host])
    record_property("memory of a host of resnet50 with one client, MB", round(one, 1))
    record_property("memory of the same host with eight clients, MB", round(eight, 1))
    assert eight <= 1.2 * one
    assert all(np.array_equal(client(picture), expected) for client in clients)

    alone = _own_model(network)
    ratios = []
    for _ in range(5):  # in turn: the machine may be busy
        own = _for_a_while([alone] * len(os.sched_getaffinity(0)), picture)
        ratios.append(_for_a_while(clients, picture) / own)
    record_property("eight clients, share of the network's own throughput", round(sorted(ratios)[2], 3))
    assert max(ratios) >= 0.65  # other tests run beside; 0.95 on an idle machine (benchmarks: served-eight-clients)


def _own_model(network):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(network), options)
    name = session.get_inputs()[0].name
    return lambda picture: session.run(None, {name: picture})


def _for_a_while(functions, picture, seconds: float = 3.0) -> float:
    """The calls per second of one thread for each function."""
    end = time.monotonic() + seconds

    def call(function) -> int:
        calls = 0
        while time.monotonic() < end:
            function(picture)
            calls += 1
        return calls

    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        begun = time.monotonic()
        calls = sum(pool.map(call, functions))
        return calls / (time.monotonic() - begun)
