"""The gateway's flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, UsageError
from rpcsys.gateway.calls import Batching
from rpcsys.gateway.config import GatewayConfig, PoolFlag, parse

TRACKER = ("127.0.0.1", 9190)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPCSYS_TRACKER", "RPCSYS_TRACKER_HOST", "TVM_TRACKER_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_are_those_of_the_class() -> None:
    assert parse([]) == GatewayConfig(tracker=TRACKER)
    assert parse(["--server", "a:1"]) == GatewayConfig(servers=(("a", 1),))


def test_the_tracker_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPCSYS_TRACKER", "lab:9300")
    assert parse([]).tracker == ("lab", 9300)
    assert parse(["--server", "a:1"]).tracker is None


def test_every_flag() -> None:
    line = (
        "--tracker lab:9190 --server a:1 --server [::1]:2 --module m --module n --host 127.0.0.1:9000 --port-end 9003 "
        "--grpc-port 0 --http-port 8002 --reuse-port --batch m=32 --batch n=8:500 --queue 7 --pool p=rpi4:dir/x.onnx:3 "
        "--pool q=key:C:9.onnx --pool-idle 1.5 --shared-memory --model-control --max-body 64M --max-json 1K "
        "--memory 2GB --grace 3 --admit 203.0.113.0/24 --silent --log-format json"
    )
    assert parse(line.split()) == GatewayConfig(
        host="127.0.0.1",
        port=9000,
        port_end=9003,
        grpc_port=0,
        http_port=8002,
        reuse_port=True,
        tracker=("lab", 9190),
        servers=(("a", 1), ("::1", 2)),
        modules=("m", "n"),
        batches={"m": Batching(32), "n": Batching(8, 500)},
        queue=7,
        pools={"p": PoolFlag("rpi4", "dir/x.onnx", 3), "q": PoolFlag("key", "C:9.onnx", 1)},
        pool_idle=1.5,
        shared_memory=True,
        model_control=True,
        max_body=64 << 20,
        max_json=1 << 10,
        memory=2 << 30,
        grace=3,
        admit=("203.0.113.0/24",),
        silent=True,
        log_format="json",
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--batch m", "NAME=MAX"),
        ("--batch m=1", "from 2 on"),
        ("--batch m=2 --batch m=3", "twice with --batch"),
        ("--pool m=file", "NAME=KEY:FILE"),
        ("--pool m=k:f:0", "NAME=KEY:FILE"),
        ("--server a:1 --pool m=k:f", "give --tracker"),
        ("--key-file f", "--server HOST:PORT"),
        ("--server a:1 --server b:1 --server c:1 --key-file f --key-file g", "one for each"),
        ("--server nowhere", "HOST:PORT"),
        ("--max-body 0", "64M"),
        ("--max-json big", "64M"),
        ("--queue 0", "calls"),
        ("--grace soon", "seconds"),
        ("--module=", "empty"),
        ("--grpc-port 70000", "no port"),
        ("--models x", "did you mean --module"),
    ],
)
def test_what_is_wrong_is_said(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(line.split())


def test_standing_keys_are_in_files_of_their_own(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two", "open", "none")]
    keys = [f"edge:t1-{number}{'1f' * 31}0-{'5c' * 16}" for number in (1, 2)]
    for file, text in zip(files, [*keys, keys[0]], strict=False):
        file.write_text(text)
        file.chmod(0o600)
    files[2].chmod(0o644)
    servers = ["--server", "a:1", "--server", "b:1"]
    one, two = (["--key-file", str(file)] for file in files[:2])
    assert parse([*servers, *one]).keys == (keys[0],) * 2
    found = parse([*servers, *one, *two])
    assert found.keys == tuple(keys)
    assert "5c5c" not in repr(found)
    for file, words in ((files[2], "chmod 600"), (files[3], "cannot read the key")):
        with pytest.raises(ConfigError, match=words):
            parse([*servers, "--key-file", str(file)])


def test_an_address_is_checked() -> None:
    with pytest.raises(ConfigError):
        parse(["--host", "127.0.0.1:9000", "--port", "9001"])
