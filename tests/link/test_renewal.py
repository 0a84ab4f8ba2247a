"""What a member keeps of its hello's answer: when new pins are taken, and that a token which is known is never lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rpcsys.link import credential, renewal
from rpcsys.link.credential import Credential
from rpcsys.tracker import lab_folder
from rpcsys.tracker.lab_view import Member
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens

PINS = tuple(f"sha256:{digit * 64}" for digit in "abcd")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Credential:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    path = str(tmp_path / "basement.json")
    token = tokens.new(tokens.HolderKind.PERSON).text
    credential.write(path, Credential("basement", "ann", ("lab-host:9190",), PINS[:2], token))
    return credential.read(path)


def answer(*pins: str, renew: bool = False) -> dict:
    return {"ok": True, "pins": list(pins), "renew": renew}


def test_new_pins_are_taken_from_who_has_proven_the_second_one(held: Credential) -> None:
    assert renewal.follow(held, answer(*PINS[1:3]), True) == ""
    assert credential.read(held.path) == held._replace(pins=PINS[1:3])


@pytest.mark.parametrize(
    ("said", "by_spare"),
    [
        (answer(*PINS[1:3]), False),  # by the first key, which may be stolen
        (answer(*PINS[2:4]), False),
        (answer(*PINS[2:4]), True),  # whose first one is not the one that is proven
        (answer(PINS[1]), True),
        (answer(PINS[1], "sha256:12"), True),
        ({"pins": f"{PINS[1]},{PINS[2]}"}, True),
        ({"pins": [PINS[1], None]}, True),
        ({"pins": [PINS[1], PINS[2], PINS[3]]}, True),
        ({"renew": "yes"}, True),
        ({}, True),
    ],
)
def test_other_pins_are_not(held: Credential, said, by_spare: bool) -> None:
    before = os.stat(held.path)
    assert renewal.follow(held, said, by_spare) == ""
    assert os.stat(held.path) == before


def test_what_has_no_file_keeps_nothing(held: Credential) -> None:
    assert renewal.follow(held._replace(path=""), answer(*PINS[1:3], renew=True), True) == ""
    assert credential.read(held.path) == held


def comes_in(members: Members, text: str) -> Member:
    token = tokens.parse(text)
    member = members.authenticate(token, 0.0)
    members.note_uses({member.name: (token.hash, 0.0)})
    return member


@pytest.mark.parametrize("cut", range(5))
def test_a_token_that_is_known_is_in_the_file_whatever_is_cut_off(tmp_path: Path, cut: int) -> None:
    """Cut off before and after each step of a renewal, the holder comes in the next time, and is renewed in the end."""
    path = str(tmp_path / "ann.json")
    credential.write(path, lab_folder.create(tmp_path / "lab", "basement", ["lab-host:9190"], "ann"))
    first, members = credential.read(path), Members(tmp_path / "lab")
    members.renew("ann", 0.0)
    for steps in (cut, 5):
        held = credential.read(path)
        member = comes_in(members, held.token)
        if steps > 0 and member.renew:
            digest = renewal.follow(held, answer(renew=True), False)
            assert digest
            if steps > 1:
                members.replace("ann", digest)
            if steps > 2:
                renewal.replaced(held, digest)
            if steps > 3:
                comes_in(members, credential.read(path).token)
    now = credential.read(path)
    assert now.token != first.token
    assert now.next_token == ""
    assert not members.by_name["ann"].renew
    assert members.authenticate(tokens.parse(now.token), 0.0).hash == tokens.parse(now.token).hash
    members.close()


def test_all_processes_of_a_member_make_one_token(held: Credential) -> None:
    """Each of them is asked, and at any time."""
    found = []

    def renewed() -> None:
        found.append(renewal.follow(held, answer(renew=True), False))

    threads = [threading.Thread(target=renewed) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    renewal.replaced(held, found[0])
    renewal.replaced(held, found[0])
    now = credential.read(held.path)
    assert tokens.parse(now.token).hash == found[0]
    assert renewal.follow(held, answer(renew=True), False) == ""  # this one's connection has the old token
    assert credential.again(held) == now


def test_what_cannot_be_written_is_logged_without_a_secret(held: Credential, monkeypatch, caplog) -> None:
    def full(changed: Credential) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(credential, "rewrite", full)
    assert renewal.follow(held, answer(renew=True), False) == ""
    assert "lab basement cannot be kept" in caplog.text
    monkeypatch.undo()
    digest = renewal.follow(held, answer(renew=True), False)
    monkeypatch.setattr(credential, "rewrite", full)
    renewal.replaced(held, digest)
    assert "the old one stays" in caplog.text
    assert "rpcsys_p_" not in caplog.text
    monkeypatch.undo()
    assert renewal.follow(held, answer(renew=True), False) == digest


def test_a_removed_file_is_not_made_again(held: Credential, caplog) -> None:
    os.unlink(held.path)
    assert renewal.follow(held, answer(*PINS[1:3], renew=True), True) == ""
    assert not os.path.exists(held.path)
    assert "No such file" in caplog.text


def test_it_needs_no_ssl() -> None:
    code = "import sys, rpcsys.link.renewal; sys.exit('ssl' in sys.modules or 'hmac' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
