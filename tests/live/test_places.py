"""Clients that wait while their tracker is killed."""

import random

from tests.live.daemons import wait_until
from tests.live.probe import TrackerProbe
from tests.live.stored import hello, present, register, until


class Waiting:
    """A client that waits for a device, of ours or of TVM's; it comes again to another tracker."""

    def __init__(self, tracker, number):
        self.name, self.is_tvms = f"user{number}", number % 2 == 0
        self.host = f"127.0.1.{number + 1}"
        self.ticket = None
        self.come(tracker)
        if not self.is_tvms:
            self.ticket = until(self.probe, lambda m: "ticket" in m)["ticket"]

    def come(self, tracker):
        if self.is_tvms:
            self.probe = TrackerProbe(tracker.address, host=self.host)
            self.probe.send([4, "rpi4", "", 1])
        else:
            self.probe = hello(tracker, self.name)
            self.probe.send({"op": "request", "id": 1, "key": "rpi4", "ticket": self.ticket})

    def match_key(self):
        message = until(self.probe, lambda m: isinstance(m, list) or "leases" in m)
        return message[1][2] if self.is_tvms else message["leases"][0]["matchkey"]


def test_twenty_waiting_clients_keep_their_places(daemons, tmp_path):
    state = tmp_path / "state"
    tracker = daemons.tracker("--state-dir", str(state))
    server = register(tracker, "board", slots=21)
    clients = []
    for number in range(20):
        clients.append(Waiting(tracker, number))
        viewer = TrackerProbe(tracker.address)
        assert viewer.summary()["queue_info"]["rpi4"]["pending"] == number + 1
        viewer.close()
    wait_until(lambda: sum(kind == "waiting" for kind, _ in present(state)) == 20, 30, "all is stored")
    tracker.kill()
    for probe in (server, *(client.probe for client in clients)):
        probe.close()

    again = daemons.tracker("--state-dir", str(state), port=tracker.address[1])
    newcomer = hello(again, "newcomer")
    newcomer.send({"op": "request", "id": 1, "key": "rpi4"})
    until(newcomer, lambda m: "ticket" in m)
    server = register(again, "board", slots=21)
    server.send([3, "rpi4", [9090, "rpi4:0"], None])
    for client in random.Random(1).sample(clients, 20):
        client.come(again)
    for number, client in enumerate(clients):
        assert client.match_key() == f"rpi4:{number}"
        server.send([3, "rpi4", [9090, f"rpi4:{number + 1}"], None])
    (lease,) = until(newcomer, lambda m: "leases" in m)["leases"]
    assert lease["matchkey"] == "rpi4:20"
    wait_until(lambda: "waiting" not in dict(present(state)), 30, "no place is left")
