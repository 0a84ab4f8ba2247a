"""The certificate of a page: files that can be used or not, and that change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcsys.daemon import certificate
from rpcsys.daemon.certificate import Certificate
from rpcsys.errors import ConfigError
from rpcsys.link import identity
from rpcsys.link.tls import Tunnel, client_context

#: A key that takes a password.
LOCKED = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiGzIQDmwo3tgICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEED/TKLwqnpX0wKS9e/5MUqUEQJW0
eAhc1pXCaJAEb8sve4l10E3xbvAnoQbDdjIH9324aeBwsiGuV3IJfNuiFSwzu7kv
t6yZ8/oQsb7AOXy+tUA=
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(certificate, "LOOK_S", 0.0)


def pair(folder: Path) -> tuple[Path, Path, str]:
    """Files of a new certificate and its key, and its pin."""
    own = identity.new()
    chain, _, key = own.pem().partition("-----BEGIN PRIVATE")
    files = folder / "page.pem", folder / "page.key"
    for file, text in zip(files, (chain, "-----BEGIN PRIVATE" + key), strict=True):
        partial = file.with_suffix(".partial")
        partial.write_text(text)
        os.replace(partial, file)
    return *files, own.pin


def shown(by: Certificate, pin: str) -> str:
    """The pin of the certificate that a new connection shows; WrongPin if it is not ``pin``."""
    client, server = Tunnel(client_context(), server=False, pins=(pin,)), Tunnel(by.context(), server=True)
    while not (client.handshake() and server.open):
        server.feed(client.outgoing())
        server.handshake()
        client.feed(server.outgoing())
    return client.pin


def test_the_key_may_be_in_the_same_file(tmp_path: Path) -> None:
    own = identity.new()
    (tmp_path / "both.pem").write_text(own.pem())
    assert shown(Certificate(str(tmp_path / "both.pem")), own.pin) == own.pin


def test_a_renewed_certificate_is_taken_up(tmp_path: Path, caplog) -> None:
    path, key, pin = pair(tmp_path)
    served = Certificate(str(path), str(key))
    assert shown(served, pin) == pin
    *_, later = pair(tmp_path)
    assert shown(served, later) == later
    assert served.context() is served.context()


def test_one_that_cannot_be_used_changes_nothing_and_is_told_once(tmp_path: Path, caplog) -> None:
    path, key, pin = pair(tmp_path)
    served = Certificate(str(path), str(key))
    key.write_text("half of a ke")
    assert [shown(served, pin) for _ in range(3)] == [pin] * 3
    key.unlink()
    assert shown(served, pin) == pin
    first, second = (row.getMessage() for row in caplog.records)
    assert first.startswith(f"{path} and {key} are no certificate with its key: ")
    assert first.endswith("stays in use")
    assert "No such file" in second


def test_another_key_a_locked_key_and_no_files_are_each_a_sentence(tmp_path: Path) -> None:
    path, key, _ = pair(tmp_path)
    key.write_text(identity.new().pem())
    with pytest.raises(ConfigError, match="no certificate with its key: key values mismatch"):
        Certificate(str(path), str(key))

    key.write_text(LOCKED)
    with pytest.raises(ConfigError, match="with its key: the key has a password"):
        Certificate(str(path), str(key))
    with pytest.raises(ConfigError, match=r"cannot read .*absent: No such file.*--http-cert"):
        Certificate(str(tmp_path / "absent"))
