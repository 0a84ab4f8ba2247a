"""The metrics of a lab's server and proxy: for their own machine, and for networks that are opened."""

from __future__ import annotations

import http.client
import sys

import pytest

from rpcsys.link import credential
from rpcsys.wire.tokens import HolderKind
from tests.live.daemons import free_port
from tests.live.labs import LabOnDisk
from tests.live.networks import Networks

pytestmark = [pytest.mark.live, pytest.mark.slow]
HERE, DESK = "10.9.0.1", "10.9.0.7"
TRACKER = 9190


def ask(host: str, port: int, path: str = "/metrics", **fields: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", path, headers=fields)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize("opened", [False, True])
def test_metrics_are_for_their_own_machine_unless_opened(daemons, tmp_path, opened) -> None:
    lab = LabOnDisk(tmp_path, port=TRACKER)
    files = {"board": lab.board("board"), "proxy": lab.join("proxy", HolderKind.PROXY)}
    for name, held in files.items():
        credential.write(str(tmp_path / f"{name}.json"), held)
    with Networks() as networks:
        inside, desk = networks.namespace("lab"), networks.namespace("desk")
        link = networks.link(inside, desk)
        link.move(0, HERE)
        link.move(1, DESK)

        def start(module: str, *flags: str):
            command = (sys.executable, "-m", module, *flags)
            daemons.launch(module, inside.inside(*command)).await_ready_line()

        start("rpcsys.tracker", "--lab", str(lab.path), "--port", str(TRACKER))
        more = ("--http-open", "10.9.0.0/24") if opened else ()
        kinds = {
            "board": ("rpcsys.server", "--key", "rpi4", "--name", "board", "--tvm", "off"),
            "proxy": ("rpcsys.proxy",),
        }
        for name, (module, *flags) in kinds.items():
            port = free_port()
            own = ("--lab", str(tmp_path / f"{name}.json"), "--tracker", lab.where, "--http-port", str(port))
            start(module, "--port", "0", *own, *flags, *more)
            with inside.entered():
                status, text = ask("127.0.0.1", port)
                assert (status, text.startswith("# HELP ")) == (200, True)
                assert ask(HERE, port)[0] == 200
                assert ask("127.0.0.1", port, Host="evil.example")[0] == 403
                assert ask("127.0.0.1", port, Origin="http://evil.example")[0] == 403
            with desk.entered():
                assert ask(HERE, port, "/healthz") == (200, "ok\n")
                status, text = ask(HERE, port)
                assert status == (200 if opened else 403)
                assert opened or f"--http-open {DESK}" in text
        daemons.stop()
