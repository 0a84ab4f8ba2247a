"""The tracker finds deployed modules by name: direct, behind a proxy, by load, and without servers that are gone."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import UnknownKey
from tests.live import deployed
from tests.live.daemons import START_S, Daemon, Daemons, wait_until

X = np.ones(4, "float32")


@pytest.fixture
def daemons(tmp_path):
    daemons = Daemons(tmp_path)
    yield daemons
    daemons.stop()


def flags(folder, factor: float) -> tuple[str, ...]:
    """Deploy a module ``scale`` of ``factor``; the flags of its server."""
    deployed.put(folder / f"deploy{factor:g}", "scale", deployed.library(folder / "scale.so", factor))
    return (*deployed.WITH_NUMPY, "--deploy", str(folder / f"deploy{factor:g}"), "--deploy-workers", "1")


def two_servers(daemons: Daemons, folder, tracker: Daemon) -> list[Daemon]:
    """The servers ``edge2`` and ``edge3``, each with a module of that factor."""
    return [
        daemons.server("edge", *flags(folder, factor), "--name", f"edge{factor:g}", tracker=tracker, offers=offers)
        for offers, factor in ((1, 2.0), (2, 3.0))
    ]


def resolved(client: rpcsys.client.Tracker, count: int) -> list[dict]:
    """Wait until ``count`` servers serve ``scale``; their rows."""

    def look() -> list[dict] | None:
        try:
            rows = client.resolve("scale")
        except UnknownKey:
            rows = []
        return rows if len(rows) == count else None

    return wait_until(look, START_S, f"scale is served at {count} places")


def test_the_least_busy_server_comes_first(daemons, tmp_path):
    tracker = daemons.tracker()
    servers = two_servers(daemons, tmp_path, tracker)
    client = rpcsys.connect_tracker(tracker.address)
    rows = resolved(client, 2)
    assert {(row["host"], row["port"]) for row in rows} == {server.address for server in servers}
    assert [row["workers"] for row in rows] == [1, 1]
    ports = {server.address[1]: factor for server, factor in zip(servers, (2.0, 3.0), strict=True)}
    busy = rows[0]
    place = next(place for place in client.places("scale") if place.port == busy["port"])
    with rpcsys.connect(*place, serve="scale") as one:
        nap = one["nap"].submit(60.0)
        wait_until(lambda: client.resolve("scale")[0]["port"] != busy["port"], START_S, "the idle server comes first")
        with client.serve("scale") as idle:
            assert idle(X)[0] != ports[busy["port"]]
        nap.cancel()
    table = subprocess.run(
        [sys.executable, "-m", "rpcsys.query", "--port", str(tracker.address[1]), "modules"],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=True,
    ).stdout.splitlines()
    assert table[0].split() == ["module", "version", "server", "address", "workers", "running", "waiting", "clients"]
    assert sorted(line.split()[2].split(":")[0] for line in table if line.startswith("scale")) == ["edge2", "edge3"]
    with pytest.raises(UnknownKey, match="no server has a deployed module 'scala'; there is scale"):
        client.resolve("scala")


def test_a_server_that_is_gone_is_skipped(daemons, tmp_path):
    tracker = daemons.tracker()
    servers = two_servers(daemons, tmp_path, tracker)
    client = rpcsys.connect_tracker(tracker.address)
    resolved(client, 2)
    servers[0].kill()
    with client.serve("scale") as scale:  # whether the tracker has noticed or not
        assert scale(X)[0] == 3.0
    resolved(client, 1)
    client.drain(client.resolve("scale")[0]["server"])
    with pytest.raises(UnknownKey):
        client.resolve("scale")


def test_a_module_behind_a_proxy_is_found(daemons, tmp_path):
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where)
    daemons.behind(proxy, "edge", *flags(tmp_path, 2.0), flavour="ours")
    client = rpcsys.connect_tracker(tracker.address)
    (row,) = resolved(client, 1)
    assert (row["host"], row["port"]) == proxy.address
    clients = [client.serve("scale") for _ in range(6)]  # more than the waiting children
    assert [each(X)[0] for each in clients] == [2.0] * 6
    assert len({each["pid"]() for each in clients}) == 1
    session = client.request("edge", wait_timeout=START_S)  # leases are not affected
    assert session.get_function("testing.echo")(1) == 1
    assert list(client.summary()["queue_info"]) == ["edge"]
    session.close()


def test_the_modules_table_as_json(daemons, tmp_path):
    tracker = daemons.tracker()
    daemons.server("edge", *flags(tmp_path, 2.0), tracker=tracker)
    client = rpcsys.connect_tracker(tracker.address)
    rows = resolved(client, 1)
    command = [sys.executable, "-m", "rpcsys.query", "--port", str(tracker.address[1]), "modules", "--json"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=True).stdout
    assert [json.loads(line)["version"] for line in out.splitlines()] == [rows[0]["version"]]
