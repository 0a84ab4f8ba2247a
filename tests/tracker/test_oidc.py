"""ID tokens, checked against an issuer in a process of its own: valid ones, attacks, and an issuer that misbehaves."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator

import pytest

from rpcsys.errors import Unauthorized
from rpcsys.tracker import oidc
from rpcsys.tracker.access import Oidc
from rpcsys.tracker.membership import SignedIn
from rpcsys.tracker.oidc import Issuer
from tests.tracker.issuers import CLIENT, IssuerProcess, new_key, running

jwt = pytest.importorskip("jwt")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
DIGEST = "0" * 64


@pytest.fixture(scope="module")
def process(tmp_path_factory) -> Iterator[IssuerProcess]:
    with running(tmp_path_factory.mktemp("issuer")) as made:
        yield made


@pytest.fixture
def issuer(process: IssuerProcess) -> IssuerProcess:
    process.set("mode")
    process.set("asked")
    process.offer(rsa="RS256", ec="ES256", ed="EdDSA")
    return process


def settings(issuer: IssuerProcess, **more: object) -> Oidc:
    return Oidc(issuer.url, CLIENT, groups_claim="groups", **more)


def checked(issuer: IssuerProcess, *tokens: str, digest: str = DIGEST, **more: object) -> list[SignedIn | str]:
    """What each token is found to be, one after the other: whom it names, or why it is refused."""

    async def run() -> list[SignedIn | str]:
        check, found = Issuer(settings(issuer, **more)), []
        for token in tokens:
            try:
                found.append(await check.check(token, digest))
            except Unauthorized as error:
                found.append(str(error))
        return found

    return asyncio.run(run())


def refused(issuer: IssuerProcess, token: str, **more: object) -> str:
    (why,) = checked(issuer, token, **more)
    assert isinstance(why, str), why
    start = f"the sign-in at {issuer.url} is not accepted: "
    assert why.startswith(start)
    return why[len(start) :]


def encoded(fields: dict) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("name", ["rsa", "ec", "ed"])
def test_a_token_of_each_algorithm_names_its_holder(issuer, name) -> None:
    found = SignedIn(f"{issuer.url} u-1", "ann@lab.example", ("compiler",))
    assert checked(issuer, issuer.token(name), issuer.token(name, aud=[CLIENT, "other"], azp=CLIENT)) == [found] * 2


def test_one_key_needs_no_name(issuer) -> None:
    issuer.offer(only="ES256")
    key, algorithm = issuer.keys["only"]
    assert isinstance(checked(issuer, jwt.encode(issuer.claims(), key, algorithm))[0], SignedIn)
    issuer.offer(one="ES256", two="ES256")
    key, _ = issuer.keys["one"]
    assert refused(issuer, jwt.encode(issuer.claims(), key, algorithm)) == "its issuer has no such key"


@pytest.mark.parametrize("changed", [{"sub": None}, {"iat": None}, {"exp": None}, {"aud": None}, {"iss": None}])
def test_a_claim_that_is_missing_is_refused(issuer, changed) -> None:
    assert next(iter(changed)) in refused(issuer, issuer.token(**changed))


def test_another_audience_issuer_and_time_are_refused(issuer) -> None:
    now = int(time.time())
    for changed in (
        {"aud": "another-program"}, {"aud": [CLIENT, "other"], "azp": "other"}, {"iss": "https://another.example"},
        {"iss": issuer.url + "/"}, {"exp": now - 61}, {"iat": now + 90}, {"nbf": now + 90}, {"exp": "soon"},
    ):  # fmt: skip
        assert refused(issuer, issuer.token(**changed)), changed


def test_clocks_may_differ_by_a_minute(issuer) -> None:
    now = int(time.time())
    late, early = issuer.token(exp=now - 30), issuer.token(iat=now + 30, nbf=now + 30)
    assert all(isinstance(found, SignedIn) for found in checked(issuer, late, early))


def test_another_key_is_refused(issuer) -> None:
    for name, algorithm in (("rsa", "RS256"), ("ec", "ES256"), ("ed", "EdDSA")):
        forged = jwt.encode(issuer.claims(), new_key(algorithm), algorithm, headers={"kid": name})
        assert "ignature" in refused(issuer, forged)
    unknown = jwt.encode(issuer.claims(), new_key("RS256"), "RS256", headers={"kid": "mine"})
    assert refused(issuer, unknown) == "its issuer has no such key"


def test_the_token_does_not_choose_its_algorithm(issuer) -> None:
    head = {"typ": "JWT", "kid": "rsa"}
    none = f"{encoded({**head, 'alg': 'none'})}.{encoded(issuer.claims())}."
    public = issuer.keys["rsa"][0].public_key()
    forms = (serialization.PublicFormat.SubjectPublicKeyInfo, serialization.PublicFormat.PKCS1)
    pems = [public.public_bytes(serialization.Encoding.PEM, form) for form in forms]
    forged = [none]
    for pem in pems:
        signed = f"{encoded({**head, 'alg': 'HS256'})}.{encoded(issuer.claims())}"
        mac = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
        forged.append(f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")
    key = issuer.keys["rsa"][0]
    forged += [jwt.encode(issuer.claims(), key, other, headers={"kid": "rsa"}) for other in ("RS384", "RS512", "PS256")]
    ec = issuer.keys["ec"][0]
    forged.append(jwt.encode(issuer.claims(), ec, "ES256", headers={"kid": "rsa"}))
    for token in forged:
        assert refused(issuer, token)


@pytest.mark.filterwarnings("ignore:The .* key is:Warning")
def test_a_short_key_and_a_shared_one_are_not_used(issuer) -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 1024)
    row = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    issuer.set("jwks.json", json.dumps({"keys": [{**row, "kid": "short"}, {"kty": "oct", "k": "AAAA", "kid": "oct"}]}))
    token = jwt.encode(issuer.claims(), key, "RS256", headers={"kid": "short"})
    assert refused(issuer, token) == "its issuer has no such key"
    shared = jwt.encode(issuer.claims(), b"\0\0\0", "HS256", headers={"kid": "oct"})
    assert refused(issuer, shared) == "its issuer has no such key"


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b.c", "é" * 100, "[" * 9000, encoded({"alg": "RS256", "kid": ["x"]}) + ".e30.x"]
)
def test_what_is_no_token_is_refused(issuer, token) -> None:
    assert refused(issuer, token)


def test_a_giant_token_is_refused_before_it_is_read(issuer) -> None:
    (why,) = checked(issuer, issuer.token(filler="x" * (1 << 20)))
    assert why == "the ID token has more than 16,384 characters: have its issuer put less into it"
    deep = f"{encoded({'alg': 'RS256', 'kid': 'rsa'})}.{base64.urlsafe_b64encode(b'[' * 9000).decode()}.AAAA"
    assert refused(issuer, deep)
    assert issuer.asked() <= 1


def test_names_and_groups_are_those_that_a_member_may_have(issuer) -> None:
    assert "its email is no name" in refused(issuer, issuer.token(email="ann lee@lab"))
    assert "its email is no name" in refused(issuer, issuer.token(email=None))
    assert "its email is no name" in refused(issuer, issuer.token(email="tvm"))
    assert "not verified" in refused(issuer, issuer.token(email_verified=False))
    assert "not verified" in refused(issuer, issuer.token(email_verified=None))
    for sub in ("", "x" * 300, "a\nb"):
        assert refused(issuer, issuer.token(sub=sub))
    groups = ["compiler", "with space", 7, "compiler", *(f"g{number}" for number in range(300))]
    (found,) = checked(issuer, issuer.token(groups=groups, email_verified=None, nick="bo"), name_claim="nick")
    assert (found.name, found.groups[:2], len(found.groups)) == ("bo", ("compiler", "g0"), 256)
    (found,) = checked(issuer, issuer.token(groups="one"))
    assert found.groups == ("one",)
    (found,) = checked(issuer, issuer.token(groups=None))
    assert found.groups == ()


def test_a_token_makes_one_members_token(issuer) -> None:
    async def run() -> None:
        check, token = Issuer(settings(issuer)), issuer.token()
        assert (await check.check(token, "a" * 64)).name == "ann@lab.example"
        assert (await check.check(token, "a" * 64)).name == "ann@lab.example", "it was sent again"
        with pytest.raises(Unauthorized, match="used before"):
            await check.check(token, "b" * 64)
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        for letter in letters:  # some of these are the same signature, written in another way
            with pytest.raises(Unauthorized):
                await check.check(token[:-1] + letter, "b" * 64)

    asyncio.run(run())


def test_keys_are_kept_and_asked_for_again_when_one_is_unknown(issuer, monkeypatch) -> None:
    unknown = [jwt.encode(issuer.claims(), new_key("ES256"), "ES256", headers={"kid": f"k{n}"}) for n in range(5)]
    found = checked(issuer, issuer.token(), issuer.token("ec"), *unknown, issuer.token("ed"))
    assert [isinstance(each, SignedIn) for each in found] == [True, True, *[False] * 5, True]
    assert issuer.asked() == 1, "within a minute they are not asked for again"
    monkeypatch.setattr(oidc, "AGAIN_S", 0.0)

    async def run() -> None:
        check = Issuer(settings(issuer))
        await check.check(issuer.token(), DIGEST)
        issuer.offer(new="ES256")
        await check.check(issuer.token("new"), DIGEST)

    asyncio.run(run())


def test_keys_that_are_gone_are_forgotten_after_an_hour(issuer, monkeypatch) -> None:
    monkeypatch.setattr(oidc, "KEPT_S", 0.0)
    monkeypatch.setattr(oidc, "AGAIN_S", 0.0)

    async def run() -> None:
        check, token = Issuer(settings(issuer)), issuer.token()
        await check.check(token, DIGEST)
        issuer.offer(new="ES256")
        with pytest.raises(Unauthorized, match="no such key"):
            await check.check(token, DIGEST)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("hang", "cannot be read"),
        ("drip", "cannot be read"),
        ("huge", "cannot be read"),
        ("deep", "cannot be read"),
        ("redirect", "its issuer answered 302 for"),
        ("http", "its issuer names an address that is not HTTPS"),
        ("another", "its issuer says that it is another one"),
    ],
)
def test_an_issuer_that_misbehaves_costs_seconds_and_says_why(issuer, mode, why) -> None:
    issuer.set("mode", mode)
    began = time.monotonic()
    first, *others = checked(issuer, *[issuer.token()] * 3)
    assert why in first
    assert time.monotonic() - began < 20
    assert all("has not answered; try again in a minute" in other for other in others)
    assert issuer.asked() <= 1
    issuer.set("mode")
    assert isinstance(checked(issuer, issuer.token())[0], SignedIn)


def test_an_issuer_that_is_not_there_is_a_sentence() -> None:
    async def run() -> str:
        with pytest.raises(Unauthorized) as caught:
            await Issuer(Oidc("http://127.0.0.1:9", CLIENT)).check("e30.e30.", DIGEST)
        return str(caught.value)

    assert "http://127.0.0.1:9/.well-known/openid-configuration cannot be read" in asyncio.run(run())


def test_without_the_extra_one_is_told_what_to_install(issuer, monkeypatch) -> None:
    monkeypatch.setattr(oidc.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unauthorized, match=r"pip install 'rpcsys\[oidc\]' \(Debian: apt install python3-jwt"):
        Issuer(settings(issuer))
