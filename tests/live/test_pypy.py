"""A client on PyPy, which takes no part of CPython: no reference counts, no library in C."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live.daemons import Daemons

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = """
import gc, json, sys
sys.path.insert(0, sys.argv[1])
import rpcsys
from rpcsys import stream
from rpcsys.errors import RemoteError
with rpcsys.connect("127.0.0.1", int(sys.argv[2]), key="k") as session:
    echo = session.get_function("testing.echo")
    kept, wrong = [], []
    for number in range(40):
        sent = bytes([number]) * (1000 if number % 2 else 300_000)
        kept.append((sent, echo(memoryview(sent))))
        gc.collect()
        wrong += [number for earlier, array in kept if bytes(array.data) != earlier]
        if number % 3:
            kept.pop()
    try:
        session.get_function("testing.no_such_function")
    except RemoteError as error:
        refused = str(error)
    session.upload(b"of PyPy" * 500_000, "file")
    print(json.dumps({
        "implementation": sys.implementation.name,
        "speedups": stream.SPEEDUPS,
        "wrong": wrong,
        "mapped": list(echo.map(range(300))) == list(range(300)),
        "submitted": [future.result() for future in [echo.submit(i) for i in range(300)]] == list(range(300)),
        "refused": "no_such_function" in refused,
        "file": bytes(session.download("file")) == b"of PyPy" * 500_000,
    }))
"""


@pytest.mark.skipif(shutil.which("pypy3") is None, reason="Debian's package pypy3 is not installed")
def test_a_client_on_pypy(daemons: Daemons) -> None:
    server = daemons.server("k")
    words = ["pypy3", "-I", "-c", CLIENT, str(ROOT), str(server.address[1])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found.pop("implementation"), found.pop("speedups"), found.pop("wrong")) == ("pypy", False, [])
    assert all(found.values()), found
