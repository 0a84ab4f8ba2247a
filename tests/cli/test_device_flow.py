"""Signing in at an issuer in a process of its own: confirmed, refused, and an issuer that misbehaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rpcsys.cli import device_flow
from rpcsys.errors import ConfigError, Unauthorized
from tests.tracker.issuers import CLIENT, IssuerProcess, running

pytest.importorskip("jwt")


@pytest.fixture(scope="module")
def process(tmp_path_factory) -> Iterator[IssuerProcess]:
    with running(tmp_path_factory.mktemp("issuer")) as made:
        yield made


@pytest.fixture
def issuer(process: IssuerProcess) -> IssuerProcess:
    for name in ("mode", "error", "id_token"):
        process.set(name)
    return process


def test_who_confirms_has_a_token(issuer: IssuerProcess) -> None:
    said: list[str] = []
    threading.Timer(1.5, issuer.set, ("id_token", "a.b.c")).start()
    assert device_flow.id_token(issuer.url, CLIENT, said.append) == "a.b.c"
    assert said == [f"Open {issuer.url}/confirm in a browser, sign in, and confirm the code ABCD-EFGH"]


@pytest.mark.parametrize("why", ["access_denied", "expired_token", "invalid_client"])
def test_who_does_not_is_told_why(issuer: IssuerProcess, why: str) -> None:
    issuer.set("error", why)
    with pytest.raises(Unauthorized, match=f"nobody is signed in: {why}; type rpcsys login again"):
        device_flow.id_token(issuer.url, CLIENT, lambda _: None)


def test_an_issuer_that_wants_to_be_asked_less_often_is(issuer: IssuerProcess, monkeypatch) -> None:
    monkeypatch.setattr(device_flow, "SLOWER_S", 0.0)
    pauses: list[float] = []
    monkeypatch.setattr(device_flow.time, "sleep", lambda seconds: (pauses.append(seconds), issuer.set("error")))
    issuer.set("error", "slow_down")
    issuer.set("id_token", "a.b.c")
    assert device_flow.id_token(issuer.url, CLIENT, lambda _: None) == "a.b.c"
    assert pauses[0] == 1.0


def test_another_issuer_and_one_that_is_not_there_are_sentences(issuer: IssuerProcess) -> None:
    issuer.set("mode", "another")
    with pytest.raises(ConfigError, match="says that it is another issuer"):
        device_flow.id_token(issuer.url, CLIENT, lambda _: None)
    with pytest.raises(ConfigError, match=r"does not answer .*check the network"):
        device_flow.id_token("http://127.0.0.1:9", CLIENT, lambda _: None)
    with pytest.raises(ConfigError, match="it has to be https"):
        device_flow.id_token("http://id.example", CLIENT, lambda _: None)
