"""The members of the closed labs that are measured."""

import contextlib
import time
from dataclasses import replace

from benchmarks.peers.closed_labs import alike
from rpcsys.link import credential
from rpcsys.secure_lab import LabCredentials
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens


def test_boards_that_are_enrolled_together_are_let_in_by_their_own_names(tmp_path):
    lab = LabCredentials(tmp_path, "127.0.0.1", {"board": "bench"})
    lab.close()
    board = credential.read(str(lab.path("board")))
    found = alike(lab.lab, board, ["one", "other"])
    with contextlib.closing(Members(lab.lab)) as members:
        for name, held in found.items():
            member = members.authenticate(tokens.parse(held.token), time.time())
            assert member == replace(members.by_name["board"], name=name, token=member.token)
