"""Deployed modules in a closed lab: deployed, called, replaced, lost and found again, refused and revoked."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys import module
from rpcsys.client.deploying import Deployment
from rpcsys.errors import Forbidden, RemoteFileError, RpcsysError, ServerRefused, SessionLost
from rpcsys.link import credential
from rpcsys.tracker.members import Members
from rpcsys.wire import pinned_keys
from tests.live import deployed
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_until
from tests.live.lab_site import KEEPER, UNAUTHORIZED, LabSite

X = np.ones(4, "float32")
ENDS_S = 2.0
RULES = """
[[allow]]
who = ["keepers"]
rights = ["keeper"]
[[allow]]
who = ["bo"]
modules = ["scale", "none"]
[[allow]]
who = ["dee"]
modules = ["scale", "tail-*"]
rights = ["deploy", "see"]
"""
FLAGS = (*deployed.WITH_NUMPY, "--deploy-workers", "2")


class ModulesSite:
    """A closed lab whose boards have ``--deploy``. ``as_member``: whom this process speaks for."""

    def __init__(self, site: LabSite, folder: Path, daemons: Daemons) -> None:
        self.site, self.folder, self.daemons = site, folder, daemons
        self.rules(RULES)
        self.boards: dict[str, Daemon] = {}

    @property
    def where(self) -> str:
        return self.site.where

    def rules(self, text: str) -> None:
        (self.site.path / "policy.toml").write_text(text)

    def board(self, name: str, *flags: str, proxy: Daemon | None = None) -> Daemon:
        own = self.folder / f"{name}.json"
        if not own.exists():
            self.site.run(KEEPER, "lab", "enrol", "--board", name, "--key", "edge", "--out", str(own))
        flags = ("--lab", str(own), "--name", name, "--deploy", str(self.folder / name), *FLAGS, *flags)
        if proxy is not None:
            common = ("--through-proxy", "--key", "edge", *flags)
            self.boards[name] = self.daemons.reach(name, "ours", *common, port=proxy.address[1])
        else:
            self.boards[name] = self.daemons.server(
                "edge", *flags, tracker=self.site.tracker, offers=len({*self.boards, name})
            )
        return self.boards[name]

    def library(self, factor: float) -> Path:
        path = self.folder / f"scale{factor:g}.so"
        return path if path.exists() else deployed.library(path, factor)

    def deploy(self, factor: float, *to: str, user: str = KEEPER) -> str:
        servers = [word for name in to for word in ("--to", name)]
        words = ("deploy", str(self.library(factor)), "--name", "scale", "--tracker", self.where, *servers)
        return self.site.run(user, *words)

    @contextlib.contextmanager
    def as_member(self, name: str) -> Iterator[rpcsys.client.Tracker]:
        """This process is a member; its tracker."""
        if not self.site.place(name).exists():
            self.site.join(name)
        place = str(self.site.place(name))
        credential.use(place)
        try:
            with rpcsys.connect_tracker(self.where) as tracker:
                yield tracker
        finally:
            credential.use_no_more(place)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.site.path / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def lab(site: LabSite, tmp_path: Path, daemons: Daemons) -> ModulesSite:
    return ModulesSite(site, tmp_path, daemons)


def remote(lab: ModulesSite, **more: Any) -> Callable[[Any], Any]:
    return module.remote(serve="scale", tracker=lab.where, **more)["main"]


class Calls(threading.Thread):
    """Calls a function until it is stopped, or fails; ``seen`` has the results."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        super().__init__(daemon=True)
        self.seen: list[float] = []
        self.error: Exception | None = None
        self.at = 0.0
        self._call, self._over = call, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self.seen.append(float(self._call(X)[0]))
            except RpcsysError as error:
                self.error, self.at = error, time.monotonic()
                return

    def stop(self) -> None:
        self._over.set()
        self.join(START_S)


def more_seen(calls: list[Calls]) -> None:
    """Wait until each has further results, or has failed."""
    before = [len(each.seen) for each in calls]
    wait_until(
        lambda: all(each.error or len(each.seen) > was + 2 for each, was in zip(calls, before, strict=True)),
        START_S,
        "every client has answers",
    )


# What works as anywhere


def test_a_module_is_deployed_and_called(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.board("e2")
    assert "e1: serving scale 0001-" in lab.deploy(2.0, "e1", "e2")
    listed = lab.site.run(KEEPER, "deploy", "--list", "--key", "edge", "--tracker", lab.where)
    assert listed.count("scale") == 4  # its name, and its file's
    with lab.as_member("bo") as tracker:
        assert [row["server"] for row in tracker.resolve("scale")] == ["e1", "e2"]
        assert not any("matchkey" in row for row in tracker.resolve("scale"))
        (first, second) = tracker.places("scale")
        with rpcsys.connect(*first, serve="scale") as one, rpcsys.connect(*second, serve="scale") as other:
            assert [float(each(X)[0]) for each in (one, other)] == [2.0, 2.0]
        with tracker.serve("scale") as served:
            assert np.array_equal(served(X), X * 2)
        assert np.array_equal(remote(lab)(X), X * 2)
        fallback = module.python({"main": lambda x: x * 7})
        assert np.array_equal(remote(lab, fallback=fallback)(X), X * 2)
        gone = module.remote(serve="none", tracker=lab.where, fallback=fallback)["main"]
        assert np.array_equal(gone(X), X * 7)
    done = [(entry["who"], entry["on"]) for entry in lab.audited() if entry["did"] == "deploy"]
    assert done[:2] == [(KEEPER, "e1"), (KEEPER, "e2")]
    served = [(entry["who"], entry["on"][:11]) for entry in lab.audited() if entry["did"] == "serve"]
    assert sorted(served) == [("e1", "scale 0001-"), ("e2", "scale 0001-")]


def test_it_is_replaced_under_load_without_a_failed_call(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.deploy(1.0, "e1")
    with lab.as_member("bo") as tracker, contextlib.ExitStack() as open_too:
        shared = [open_too.enter_context(tracker.serve("scale")) for _ in range(3)]
        calls = [Calls(each) for each in (*shared, remote(lab), remote(lab))]
        for factor in range(2, 8):
            more_seen(calls)
            lab.deploy(float(factor), "e1")
        more_seen(calls)
        for each in calls:
            each.stop()
        assert [each.error for each in calls] == [None] * len(calls)
        for each in calls:
            assert each.seen == sorted(each.seen)  # never an old version after a new one
            assert {*each.seen} == {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0}


def test_many_clients_that_come_at_once_cost_nobody_a_connection(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.deploy(2.0, "e1")
    with lab.as_member("bo") as tracker, tracker.serve("scale") as before:
        (place,) = tracker.places("scale")
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            opened = list(pool.map(lambda _: rpcsys.connect(*place, serve="scale"), range(200)))
        assert float(before(X)[0]) == 2.0
        assert {float(each(X)[0]) for each in opened} == {2.0}
        for each in opened:
            each.close()


def test_another_server_takes_over_from_a_killed_one(lab: ModulesSite) -> None:
    for name in ("e1", "e2"):
        lab.board(name)
    lab.deploy(2.0, "e1", "e2")
    with lab.as_member("bo"):
        calls = [Calls(remote(lab)) for _ in range(4)]
        for name in ("e1", "e2"):
            more_seen(calls)
            lab.boards[name].destroy()
            more_seen(calls)
            lab.board(name)
            wait_until(lambda: len(places(lab)) == 2, START_S, "both serve again")
        for each in calls:
            each.stop()
        assert [each.error for each in calls] == [None] * len(calls)


def places(lab: ModulesSite) -> list[Any]:
    with rpcsys.connect_tracker(lab.where) as tracker:
        return tracker.resolve("scale")


def test_behind_a_proxy(lab: ModulesSite, daemons: Daemons) -> None:
    own = lab.folder / "gate.json"
    lab.site.run(KEEPER, "lab", "enrol", "--proxy", "gate", "--out", str(own))
    proxy = daemons.proxy("--tracker", lab.where, "--lab", str(own))
    lab.board("e1", proxy=proxy)
    wait_until(lambda: "registered with the tracker" in lab.boards["e1"].stderr(), START_S, "it is registered")
    lab.deploy(2.0, "e1")  # the first one: nothing was served there before
    lab.deploy(3.0, "e1")
    with lab.as_member("bo") as tracker:
        assert tracker.places("scale")[0].port == proxy.address[1]
        for _ in range(6):  # more than wait at the proxy at once
            assert float(remote(lab)(X)[0]) == 3.0


# Who may do what


def test_who_may_not_is_told_so(lab: ModulesSite) -> None:
    server = lab.board("e1")
    lab.deploy(2.0, "e1")
    lab.site.join("cy")
    with lab.as_member("cy") as tracker:
        for attempt in (lambda: tracker.serve("scale"), lambda: remote(lab)(X)):
            with pytest.raises(Forbidden, match=r"cy may not call module scale \(rules of lab basement\); ask mo"):
                attempt()
        with pytest.raises(Forbidden, match=r"cy may not do this \(it takes the right 'deploy'"):
            tracker.deployment("e1")
    lab.site.join("bo")
    refused = ("deploy", str(lab.library(3.0)), "--to", "e1", "--tracker", lab.where)
    assert "bo may not do this (it takes the right 'deploy'" in lab.site.run("bo", *refused, status=UNAUTHORIZED)
    direct = lab.site.run(KEEPER, "deploy", str(lab.library(3.0)), "--to", server.where, status=1)
    assert "rpcsys deploy FILE --tracker HOST:PORT --to NAME" in direct
    with lab.as_member("dee") as tracker, tracker.deployment("e1") as deployment:
        deployment.put(lab.library(3.0), "scale")
        deployment.put(lab.library(4.0), "tail-1")
        with pytest.raises(RemoteFileError, match="do not let you deploy 'other'; they allow: scale, tail-"):
            deployment.put(lab.library(4.0), "other")
    with lab.as_member(KEEPER) as tracker, tracker.deployment("e1") as deployment:
        deployment.put(lab.library(5.0), "other")
    with lab.as_member("dee") as tracker, tracker.deployment("e1") as deployment:
        assert [row["name"] for row in deployment.list()] == ["scale", "tail-1"]
        for attempt in (deployment.remove, deployment.rollback):
            with pytest.raises(RemoteFileError, match="do not let you deploy 'other'"):
                attempt("other")


def test_a_secret_is_for_one_module_and_one_use(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.deploy(2.0, "e1")
    with lab.as_member("dee") as tracker:
        with tracker.deployment("e1") as deployment:
            deployment.put(lab.library(4.0), "tail-1")
        (place,) = tracker.places("scale")
        for attempt in (
            lambda: rpcsys.connect(*place, serve="tail-1"),
            lambda: rpcsys.connect(*place),
            lambda: Deployment((place.host, place.port), key=place.key),
            lambda: rpcsys.connect(*place._replace(key=place.key[:-4] + "0000"), serve="scale"),
        ):
            with pytest.raises(ServerRefused, match="does not take this match key's secret"):
                attempt()
        with rpcsys.connect(*place, serve="scale") as served:
            assert float(served(X)[0]) == 2.0


# What ends


def test_a_revoked_member_loses_its_connections(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.deploy(2.0, "e1")
    with lab.as_member("dee") as tracker, contextlib.ExitStack() as open_too:
        shared = [open_too.enter_context(tracker.serve("scale")) for _ in range(2)]
        deployment = open_too.enter_context(tracker.deployment("e1"))
        calls = [Calls(each) for each in (*shared, remote(lab))]
        more_seen(calls)
        (place,) = tracker.places("scale")
        revoked_at = time.monotonic()
        lab.site.run(KEEPER, "lab", "revoke", "dee")
        took = time.monotonic() - revoked_at
        for each in calls:
            each.join(START_S)
            assert each.at - revoked_at < took + ENDS_S, each.error
        assert [type(each.error).__name__ for each in calls] == ["SessionLost", "SessionLost", "Unauthorized"]
        assert "the rules of lab basement do not allow it any more" in str(calls[0].error)
        with pytest.raises(SessionLost):
            deployment.list()
        with pytest.raises(ServerRefused):
            rpcsys.connect(*place, serve="scale")


def test_new_rules_end_what_they_do_not_allow(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.deploy(2.0, "e1")
    with lab.as_member("bo") as tracker, tracker.serve("scale") as served:
        calls = Calls(served)
        more_seen([calls])
        lab.rules(RULES.replace('["scale", "none"]', '["none"]'))
        calls.join(START_S)
        assert isinstance(calls.error, SessionLost)
        with pytest.raises(Forbidden):
            tracker.serve("scale")


def test_connections_outlast_the_tracker_but_not_a_membership_that_has_ended_meanwhile(lab: ModulesSite) -> None:
    lab.board("e1")
    lab.deploy(2.0, "e1")
    served = []
    for name in ("dee", "bo"):
        with lab.as_member(name) as tracker:
            served.append(tracker.serve("scale"))
    with served[0], served[1]:
        of_dee, of_bo = calls = [Calls(each) for each in served]
        more_seen(calls)
        lab.site.kill()
        more_seen(calls)
        with contextlib.closing(Members(lab.site.path)) as members:  # as the tracker is away
            members.revoke("dee", time.time())
        lab.site.start()
        of_dee.join(START_S)
        assert isinstance(of_dee.error, SessionLost)
        more_seen([of_bo])
        of_bo.stop()
        assert of_bo.error is None
    with lab.as_member("bo") as tracker:
        wait_until(functools.partial(may_serve, tracker), START_S, "the server is back at the tracker")


def may_serve(tracker: rpcsys.client.Tracker) -> bool:
    try:
        with tracker.serve("scale") as served:
            return float(served(X)[0]) == 2.0
    except RpcsysError:
        return False


# A lab that moves


def test_a_lab_that_has_moved_half_way_serves_both_ways(tmp_path: Path, daemons: Daemons) -> None:
    site = LabSite(tmp_path, daemons)
    site.init("--open")
    site.start()
    lab = ModulesSite(site, tmp_path, daemons)
    server = lab.board("e1")
    with Deployment(server.where) as deployment:  # as before the lab
        deployment.put(lab.library(2.0), "scale")
    with rpcsys.connect(server.where, serve="scale") as clear, rpcsys.connect_tracker(lab.where) as tracker:
        assert float(clear(X)[0]) == 2.0
        (place,) = tracker.places("scale")
        assert pinned_keys.parse(place.key) is not None
        with tracker.deployment("e1") as deployment:
            deployment.put(lab.library(3.0), "scale")
        with tracker.serve("scale") as shared:
            assert float(shared(X)[0]) == float(clear(X)[0]) == 3.0
            old = tmp_path / "old"
            flags = (*FLAGS, "--name", "old", "--deploy", str(old))
            deployed.put(old, "scale", lab.library(3.0))
            other = daemons.server("edge", *flags, port=free_port(), tracker=site.tracker, offers=2)
            with lab.as_member("bo") as of_bo:
                wait_until(lambda: len(of_bo.places("scale")) == 2, START_S, "both are known")
                kinds = {place.port: pinned_keys.parse(place.key) is not None for place in of_bo.places("scale")}
                assert kinds == {server.address[1]: True, other.address[1]: False}
                assert float(remote(lab)(X)[0]) == 3.0
            site.run(KEEPER, "lab", "close")
            with pytest.raises(SessionLost):
                wait_until(lambda: shared(X) is None, START_S, "the connection of nobody's ends")
        refused = wait_until(lambda: refusal(server), START_S, "nothing is served in the clear")
        assert "this server serves encrypted connections only" in refused
    with lab.as_member("bo"):
        assert float(remote(lab)(X)[0]) == 3.0


def refusal(server: Daemon) -> str:
    try:
        rpcsys.connect(server.where, serve="scale").close()
    except ServerRefused as error:
        return str(error)
    return ""
