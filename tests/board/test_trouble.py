"""What ssh and boards say, and what people are told."""

from __future__ import annotations

import pytest

from rpcsys.board import trouble
from rpcsys.errors import ConnectError, RpcsysError

# What OpenSSH 9.2 prints.
SAID = {
    "@@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n…\nHost key verification failed.": (
        "is not the one it had", "ssh-keygen -R '[pi]:22'",
    ),
    "No ED25519 host key is known for pi and you have requested strict checking.\nHost key verification failed.": (
        "is unknown", "type: ssh -p 22 root@pi",
    ),
    "root@pi: Permission denied (publickey,password).": ("permission denied", "ssh-copy-id -p 22 root@pi"),
    "ssh: Could not resolve hostname pi: Name or service not known": ("no host called pi",),
    "ssh: connect to host pi port 22: Connection refused": ("refuses ssh",),
    "ssh: connect to host pi port 22: Connection timed out": ("does not answer",),
    "ssh: connect to host pi port 22: No route to host": ("does not answer",),
    "Timeout, server pi not responding.": ("stopped answering",),
    "kex_exchange_identification: Connection closed by remote host": ("broke: kex_exchange",),
    "": ("ssh said nothing",),
}  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_ssh(said: str) -> None:
    error = trouble.of_ssh(said, "-p 22 root@pi", "pi", "'[pi]:22'")
    assert isinstance(error, ConnectError)
    assert all(words in str(error) for words in SAID[said])
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("cat: write error: No space left on device\n", "pi has no space left (copying)"),
        (
            "install.sh: error: this board cannot serve:\nok       board  x\nbroken   folder /tmp is small\nbroken   session no\n",
            "pi cannot serve: folder /tmp is small; session no",
        ),
        ("Sorry, try again.\nsudo: no password was provided\nsudo: 1 incorrect password attempt\n", "this password"),
        ("pi is not in the sudoers file.\n", "may not use sudo on pi"),
        ("x\ninstall.sh: error: the copy is not whole\n", "copying on pi failed: the copy is not whole"),
        ("", "copying on pi failed: it said nothing"),
    ],
)
def test_board(said: str, words: str) -> None:
    error = trouble.of_board(said, "pi", "copying")
    assert isinstance(error, RpcsysError)
    assert words in str(error)
    assert "\n" not in str(error)
