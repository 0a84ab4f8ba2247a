"""What each host of a lab with replicas gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rpcsys.cli import replica_settings
from rpcsys.cli.replica_settings import EngineHost, check_hosts, check_members, etcd_settings, tracker_flags
from rpcsys.errors import UsageError
from rpcsys.tracker import config

HOSTS = ("lab-1", "lab-2", "lab-3")
MEMBERS = [EngineHost(host, f"10.0.0.{number}") for number, host in enumerate(HOSTS, 1)]
PLACE = "--replicate etcd://lab-1:2379,lab-2:2379,lab-3:2379/lab"


def test_etcds_settings_are_those_of_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "replicas.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(ETCD_NAME=.*?)```", text, re.DOTALL)
    settings = etcd_settings(MEMBERS, MEMBERS[0])
    assert "".join(f"{name}={value}\n" for name, value in settings.items()) == block


def test_an_address_of_ipv6_has_brackets_and_a_loopback_is_listened_at_too() -> None:
    member = EngineHost("fd00::1", "fd00::1")
    settings = etcd_settings([member], member, ["127.0.1.1"])
    assert settings["ETCD_INITIAL_CLUSTER"] == "fd00::1=http://[fd00::1]:2380"
    assert settings["ETCD_LISTEN_CLIENT_URLS"] == "http://[fd00::1]:2379,http://127.0.1.1:2379"
    assert tracker_flags("", ["fd00::1"], "fd00::1", "a") == "--replicate etcd://[fd00::1]:2379/a --advertise fd00::1"


@pytest.mark.parametrize(
    ("before", "others"),
    [
        ("", ""),
        ("--port 1", "--port 1 "),
        ("--replicate etcd://old/lab --port 1 --advertise x", "--port 1 "),
        ("--advertise=x --replicate-ca /ca --replicate=etcd://old/lab", "--replicate-ca /ca "),
        ("--max-session labs=7  --silent", "--max-session labs=7  --silent "),
    ],
)
def test_a_trackers_other_flags_stay(before: str, others: str) -> None:
    flags = tracker_flags(before, HOSTS, "lab-2", "lab")
    assert flags == f"{others}{PLACE} --advertise lab-2"
    assert tracker_flags(flags, HOSTS, "lab-2", "lab") == flags
    parsed = config.parse([*flags.split(), "--state-dir", "d"])
    assert (parsed.advertise, parsed.replicate) == ("lab-2", PLACE.split()[1])


@pytest.mark.parametrize("flags", ["--lab /x", "--port 1 --lab=/x"])
def test_a_closed_labs_tracker_is_refused(flags: str) -> None:
    with pytest.raises(UsageError, match="a closed lab has one tracker"):
        tracker_flags(flags, HOSTS, "lab-1", "lab")


def test_who_has_replicas() -> None:
    assert replica_settings.is_replica(f"--port 1 {PLACE}")
    assert not replica_settings.is_replica("--port 1 --replicate-ca /x")


@pytest.mark.parametrize(
    ("trackers", "engines", "lab", "words"),
    [
        (["a"], [], "lab", "nobody who takes over"),
        (["a"], ["b", "c"], "lab", "nobody who takes over"),
        (["a", "b"], [], "lab", "worse than one.*--engine HOST"),
        (["a", "b", "a"], [], "lab", "a is named twice"),
        (["a", "b"], ["b"], "lab", "b is named twice"),
        (["a:2379", "b", "c"], [], "lab", "without a port"),
        (["a", "b", ""], [], "lab", "is no host"),
        (["a,b", "c", "d"], [], "lab", "is no host"),
        (["a", "b", "c=d"], [], "lab", "is no host"),
        (["a", "b", "c"], [], "my lab", "the lab's name has"),
        ([*"abcdefghij"], [], "lab", "at most 9"),
    ],
)
def test_hosts_that_cannot_be_replicas(trackers: list[str], engines: list[str], lab: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_hosts(trackers, engines, lab)


def test_hosts_that_can() -> None:
    check_hosts(HOSTS, [], "lab")
    check_hosts(["10.0.0.1", "fd00::2"], ["Elsewhere_3.example"], "other.lab-1")
    check_members(MEMBERS)


def test_one_machine_with_two_names_is_refused() -> None:
    with pytest.raises(UsageError, match=r"lab-1 and other are both 10\.0\.0\.1"):
        check_members([*MEMBERS, EngineHost("other", "10.0.0.1")])


def test_clusters_are_compared_by_their_members() -> None:
    assert replica_settings.same_cluster("a=x,b=y", "b=y,a=x")
    assert not replica_settings.same_cluster("a=x,b=y", "a=x,b=z")
    assert not replica_settings.same_cluster("", "a=x")
