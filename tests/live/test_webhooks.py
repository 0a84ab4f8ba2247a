"""Webhooks of a real tracker: what goes wrong with boards and leases is told, once."""

from __future__ import annotations

import contextlib
import re
import urllib.request

import pytest

import rpcsys
from rpcsys.errors import RpcsysError
from tests.live.daemons import free_port, wait_until
from tests.tracker.hook_receivers import HANG, HookReceiver

KEY = "board"


@pytest.mark.open_lab("reads the metrics without signing in")
def test_what_goes_wrong_in_a_lab_is_told(daemons):
    port = free_port()
    with HookReceiver(503, 204) as receiver, HookReceiver(HANG) as hangs:
        hooks = ("--webhook", f"{receiver.url}/hook?token=hush", "--webhook", hangs.url)
        tracker = daemons.tracker("--http-port", str(port), *hooks)
        flags = ("--name", "one", "--tvm", "off", "--import", "tests.live.session_faults", "--grace", "1")
        board = daemons.server(KEY, *flags, tracker=tracker)
        with rpcsys.connect_tracker(tracker.address, user="ann") as ann:
            session = ann.request(KEY)
            with contextlib.suppress(RpcsysError):
                session.get_function("fault.crash")()
            wait_until(lambda: len(receiver.told) == 2, 30, "the lease's end")
            first, again = receiver.told
            assert first.headers["webhook-id"] == again.headers["webhook-id"]
            data = again.event["data"]
            assert (again.event["type"], data["outcome"], data["lease"]) == (
                *("lease.failed", "crashed"),
                session.lease["lease"],
            )
            assert data["link"].endswith(f":{port}/lease/{data['lease']}")
            ann.drain("one")
            ann.enable("one")
            board.kill()
            kinds = ["board.drained", "board.back", "board.gone"]
            wait_until(lambda: receiver.types[2:] == kinds, 30, "the board's events")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
        labels = f'{{outcome="sent",receiver="{receiver.where}"}}'
        assert f"rpcsys_tracker_webhook_events_total{labels} 4.0" in metrics
        assert f'rpcsys_tracker_webhook_waiting{{receiver="{hangs.where}"}} 4.0' in metrics
        assert tracker.terminate() == 0
        log = tracker.stderr()
    assert re.search(rf"webhooks_wait receiver={receiver.where} event=msg_\w+ status=503", log)
    assert f"webhooks_dropped receiver={hangs.where} events=4" in log
    assert "hush" not in log + metrics
    assert len(set(receiver.ids)) == 4
