"""The cases as data: they name what exists, and each name once."""

import ast
import inspect
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.cases import all_cases

CASES = all_cases(Path("/nowhere"))
PEERS = Path(inspect.getfile(peers)).parent


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_names_subjects_and_peers_that_exist(case):
    assert {measured.subject for measured in case.everything} <= set(peers.SUBJECTS)
    for reading in case.readings:
        assert set(reading.goals) <= set(case.peers)


@pytest.mark.parametrize("subject", sorted(peers.SUBJECTS))
def test_a_subject_names_a_class_that_exists(subject):
    """Read, not imported: its package may not be installed."""
    module, _, name = peers.SUBJECTS[subject].partition(":")
    tree = ast.parse((PEERS / f"{module.rpartition('.')[2]}.py").read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_what_the_project_promises_has_a_goal():
    promised = {
        "null-call",
        "pipelined-calls",
        "pipelined-calls-one-core",
        "arrays-1kB-to_device",
        "arrays-1MB-from_device",
        "arrays-64MB-to_device",
        "arrays-64MB-from_device",
        "bare-arrays-64MB-to_device",
        "bare-arrays-64MB-from_device",
        "two-sessions-to_device",
        "two-sessions-from_device",
        "inference",
        "automatic-cuts",
        "compiled-function",
        "opening-in-turn",
        "opening-after-another",
        "opening-after-another-tvm",
        "opening-after-held",
        "opening-eight-at-once",
        "session",
        "lease",
        "lease-candidate-tvm",
        "tracker-summary",
        "relay-one",
        "relay-eight",
        "proxied-ping",
        "proxied-arrays-to_device",
        "proxied-arrays-from_device",
        "pairing",
        "pipeline",
        "pipeline-shares",
        "pipeline-device",
        "tls-null-call",
        "tls-arrays-64MB-to_device",
        "tls-arrays-64MB-from_device",
        "tls-link-1Gbit-to_device",
        "tls-link-1Gbit-from_device",
        "tls-link-2.5Gbit-to_device",
        "tls-link-2.5Gbit-from_device",
        "tls-opening",
        "tls-lease",
        "tls-allocations",
        "tls-idle-connections",
        "tls-boards-back",
        "tls-idle-server",
        "tls-not-loaded",
        "tls-connect-4MB-to_device",
        "tls-connect-4MB-from_device",
        "tls-connect-allocation",
    }
    with_goal = {case.name for case in CASES for reading in case.readings if reading.goals}
    assert promised <= with_goal
