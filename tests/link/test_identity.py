"""Keys, certificates and pins."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.link import identity
from rpcsys.wire import pinned_keys

#: RFC 8032, section 7.1: private and public keys.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    ),
]
seeds = st.binary(min_size=32, max_size=32)


@pytest.mark.parametrize(("seed", "public"), VECTORS)
@pytest.mark.parametrize("way", [identity.public_key, identity.multiplied])
def test_the_public_keys_of_rfc_8032(way, seed: str, public: str) -> None:
    assert way(bytes.fromhex(seed)).hex() == public


@given(seeds)
@settings(max_examples=30)
def test_both_ways_to_a_public_key_agree(seed: bytes) -> None:
    assert identity.public_key(seed) == identity.multiplied(seed)


def test_openssl_multiplies_where_it_is_in_reach() -> None:
    assert identity._by_openssl(bytes(32)) == identity.multiplied(bytes(32))


def test_without_openssls_symbols_the_key_is_multiplied_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(identity.ctypes, "CDLL", none)
    seed, public = VECTORS[0]
    assert identity._by_openssl(bytes.fromhex(seed)) is None
    assert identity.public_key(bytes.fromhex(seed)).hex() == public


@given(seeds)
@settings(max_examples=30)
def test_an_identity_is_read_back(seed: bytes) -> None:
    made = identity.from_seed(seed)
    assert identity.parse(made.pem()) == made
    assert identity.parse(made.pem().replace("\n", "\r\n")).pin == made.pin


def test_each_identity_is_another() -> None:
    pins = {identity.new().pin for _ in range(20)}
    assert len(pins) == 20
    assert all(pinned_keys.is_pin(pin) for pin in pins)


def test_openssl_reads_the_certificate_and_keeps_its_bytes(tmp_path: Path) -> None:
    made = identity.new()
    (tmp_path / "identity.pem").write_text(made.pem())
    command = ["openssl", "x509", "-in", "identity.pem", "-outform", "DER"]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout == made.certificate
    shown = subprocess.run([*command[:4], "-noout", "-text"], cwd=tmp_path, check=True, capture_output=True).stdout
    for words in (b"Not Before: Jan  1 00:00:00 1970", b"Not After : Dec 31 23:59:59 9999", b"ED25519"):
        assert words in shown


def test_key_and_certificate_belong_together(tmp_path: Path) -> None:
    file = tmp_path / "identity.pem"
    file.write_text(identity.new().pem())
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)
    key_of_another = identity.new().pem().split("-----BEGIN PRIVATE")[1]
    file.write_text(identity.new().pem().split("-----BEGIN PRIVATE")[0] + "-----BEGIN PRIVATE" + key_of_another)
    with pytest.raises(ssl.SSLError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)


@pytest.mark.parametrize("change", [lambda pem: "", lambda pem: pem[:-80], lambda pem: pem.replace("MC4C", "MC4D")])
def test_what_is_no_key_is_refused(change) -> None:
    with pytest.raises(ConfigError, match="no private key of rpcsys"):
        identity.parse(change(identity.new().pem()))


@given(st.text() | st.text("-BEGINDPRVATKY \n=Aa0", max_size=200))
def test_any_text_is_refused_in_one_way(text: str) -> None:
    with pytest.raises(ConfigError):
        identity.parse(text)
