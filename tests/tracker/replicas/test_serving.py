"""From flags to a replica."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError
from rpcsys.tracker import config
from rpcsys.tracker.replicas import serving

PLACE = "etcd://127.0.0.1:1/lab"  # nothing answers there


def made(folder: Path, *more: str) -> tuple[str, int]:
    settings = config.parse(["--port", "0", "--state-dir", str(folder), "--replicate", PLACE, *more])

    async def run() -> tuple[str, int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with serving.replica(settings, listener, None) as service:
                host, port = service._me.address
                return host, port - listener.getsockname()[1]

    return asyncio.run(run())


def test_a_replica_is_reached_where_it_says(tmp_path: Path) -> None:
    assert made(tmp_path, "--host", "127.0.0.1") == ("127.0.0.1", 0)
    assert made(tmp_path) == (socket.gethostname(), 0)
    assert made(tmp_path, "--advertise", "lab-1") == ("lab-1", 0)
    assert made(tmp_path, "--advertise", "lab-1:70")[0] == "lab-1"


def test_the_engine_and_the_leader_are_those_of_the_flags(tmp_path: Path) -> None:
    place = "etcd://lab-1:2379,lab-2:2380/berlin"
    settings = config.parse(["--state-dir", str(tmp_path), "--replicate", place])
    engine = serving._engine(settings)
    assert [member.name for member in engine._members] == ["lab-1:2379", "lab-2:2380"]
    assert engine._keys.leader == "/rpcsys/berlin/leader"

    async def run() -> tuple[int, int]:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as web:
            async with serving.replica(settings, listener, web) as service:
                return service._me.http_port, web.getsockname()[1]

    told, port = asyncio.run(run())
    assert told == port


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--replicate", "lab-1:2379"), "does not begin with etcd://"),
        (("--replicate-cert", "a.pem"), "give --replicate-ca"),
        (("--replicate-ca", "/nowhere.pem"), "--replicate-ca"),
        (("--advertise", "lab-1:no"), "is no address"),
    ],
)
def test_wrong_flags_are_one_error(more: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        made(tmp_path, *more)
