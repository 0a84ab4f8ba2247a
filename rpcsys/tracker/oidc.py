"""Checks ID tokens, by which people become members of a lab (OpenID Connect). PyJWT is an extra: ``rpcsys[oidc]``.

What an issuer answers is bounded in size and time, and its keys are kept for an hour. A token is signed by one of three
algorithms, that of its issuer's key: what the token itself says of it decides nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rpcsys.errors import Unauthorized
from rpcsys.tracker.access import Oidc, is_name
from rpcsys.tracker.membership import SignedIn
from rpcsys.wire.sign_in import is_safe

if TYPE_CHECKING:
    from jwt import PyJWK

DISCOVERY = "/.well-known/openid-configuration"
MAX_TOKEN = 16 << 10  # characters
MAX_DOCUMENT = 256 << 10  # bytes of what an issuer answers
ASK_S, LONGEST_S = 2.5, 6.0  # for one answer of an issuer; for all that one check takes
KEPT_S = 3600.0  # how long keys are used before they are asked for again
AGAIN_S, AFTER_FAILURE_S = 60.0, 10.0  # between two questions for an unknown key, and after one without an answer
LEEWAY_S = 60  # by which clocks may differ
MAX_KEYS, MAX_GROUPS, MAX_USED = 100, 256, 10_000
MIN_RSA_BITS = 2048
REQUIRED = ("iss", "aud", "exp", "iat", "sub")
_MISSING = (
    "this tracker cannot check who signs in: on its machine, type pip install 'rpcsys[oidc]' "
    "(Debian: apt install python3-jwt python3-cryptography)"
)


def missing() -> str:
    """What to install where ID tokens cannot be checked; empty if they can."""
    return "" if all(importlib.util.find_spec(name) for name in ("jwt", "cryptography")) else _MISSING


class Issuer:
    """The issuer in a lab's rules. For one event loop. Raises `Unauthorized`: something is to be installed."""

    def __init__(self, settings: Oidc) -> None:
        if missing():
            raise Unauthorized(missing())
        self.settings = settings
        self._keys: dict[str, PyJWK] = {}
        self._kept_until = self._ask_from = float("-inf")
        self._asking = asyncio.Lock()
        self._used: dict[bytes, tuple[str, float]] = {}

    async def check(self, id_token: str, digest: str) -> SignedIn:
        """Whom a token names. ``digest``: for which hash of a secret; it is good for no other one after that.

        Raises `Unauthorized`: it is not valid, or the issuer's keys cannot be had.
        """
        if len(id_token) > MAX_TOKEN:
            raise Unauthorized(f"the ID token has more than {MAX_TOKEN:,} characters: have its issuer put less into it")
        try:
            claims = await asyncio.wait_for(self._claims(id_token), LONGEST_S)
        except asyncio.TimeoutError:
            raise self._refused("its issuer did not answer in time") from None
        found = self._named(claims)
        self._use_up(id_token, digest, float(claims["exp"]))
        return found

    async def _claims(self, id_token: str) -> Mapping[str, Any]:
        import jwt

        try:
            name = jwt.get_unverified_header(id_token).get("kid", "")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise self._refused("it is no ID token") from None
        key = await self._key(name if isinstance(name, str) else "")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._verified, id_token, key)

    def _verified(self, id_token: str, key: PyJWK) -> Mapping[str, Any]:
        import jwt

        options: Any = {"require": list(REQUIRED)}
        more = {"audience": self.settings.client_id, "issuer": self.settings.issuer, "leeway": LEEWAY_S}
        try:
            claims: dict[str, Any] = jwt.decode(
                id_token, key.key, algorithms=[_algorithm(key.key)], options=options, **more
            )
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._refused(str(error)[:200]) from None
        if claims.get("azp", self.settings.client_id) != self.settings.client_id:
            raise self._refused("it was made for another program")
        return claims

    def _named(self, claims: Mapping[str, Any]) -> SignedIn:
        settings, subject = self.settings, claims["sub"]
        name = claims.get(settings.name_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or not subject.isprintable():
            raise self._refused("its sub is no name")
        if not is_name(name):
            raise self._refused(f"its {settings.name_claim} is no name that a member may have")
        if settings.name_claim == "email" and claims.get("email_verified") is not True:
            raise self._refused("its email is not verified: have the keeper set another name_claim")
        groups = claims.get(settings.groups_claim, ()) if settings.groups_claim else ()
        listed = groups if isinstance(groups, list) else [groups]
        kept = tuple(dict.fromkeys(str(group) for group in listed if is_name(group)))[:MAX_GROUPS]
        return SignedIn(f"{settings.issuer} {subject}", str(name), kept)

    def _use_up(self, id_token: str, digest: str, until: float) -> None:
        """Raises `Unauthorized`: the token has made another member's token already."""
        now = asyncio.get_running_loop().time()
        if len(self._used) >= MAX_USED:
            self._used = {used: entry for used, entry in self._used.items() if entry[1] > now}
        used = hashlib.sha256(id_token.rpartition(".")[0].encode("utf-8", "replace")).digest()
        lasts = min(max(0.0, until - time.time()) + LEEWAY_S, 86400.0)
        if self._used.setdefault(used, (digest, now + lasts))[0] != digest:
            raise self._refused("it was used before")

    # The issuer's keys

    async def _key(self, name: str) -> PyJWK:
        """The key that a token names. They are asked for again once an hour, and for an unknown one once a minute."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now >= self._kept_until or self._known(name) is None:
                if now < self._ask_from and now >= self._kept_until:
                    raise self._refused("its issuer has not answered; try again in a minute")
                if now >= self._ask_from:
                    self._ask_from = now + AFTER_FAILURE_S
                    self._keys = await self._ask_for_keys()
                    self._ask_from, self._kept_until = now + AGAIN_S, now + KEPT_S
            found = self._known(name)
        if found is None:
            raise self._refused("its issuer has no such key")
        return found

    def _known(self, name: str) -> PyJWK | None:
        if not name and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    async def _ask_for_keys(self) -> dict[str, PyJWK]:
        import jwt

        found = await self._get(self.settings.issuer + DISCOVERY)
        if found.get("issuer") != self.settings.issuer:
            raise self._refused("its issuer says that it is another one; check [oidc] issuer in the rules")
        rows = (await self._get(found.get("jwks_uri"))).get("keys")
        keys: dict[str, PyJWK] = {}
        for row in rows[:MAX_KEYS] if isinstance(rows, list) else ():
            try:
                if row.get("use", "sig") == "sig" and row.get("kty") in ("RSA", "EC", "OKP"):
                    key = jwt.PyJWK.from_dict(row)
                    if _algorithm(key.key):
                        keys[str(row.get("kid", ""))] = key
            except (jwt.PyJWTError, AttributeError, TypeError, ValueError, KeyError):
                continue  # a kind of key that is not used here
        return keys

    async def _get(self, url: Any) -> dict[str, Any]:
        """An issuer's document. Raises `Unauthorized`: there is none."""
        if not is_safe(url):
            raise self._refused("its issuer names an address that is not HTTPS")
        from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest  # commands ask what is missing

        client = AsyncHTTPClient(force_instance=True, max_body_size=MAX_DOCUMENT, max_header_size=MAX_DOCUMENT)
        asked = HTTPRequest(
            url, follow_redirects=False, decompress_response=False, connect_timeout=ASK_S, request_timeout=ASK_S
        )
        try:
            answer = await client.fetch(asked, raise_error=False)
            if answer.code != 200:
                raise self._refused(f"its issuer answered {answer.code} for {url}")
            found = json.loads(answer.body)
        except (HTTPClientError, OSError, ValueError, RecursionError) as error:
            raise self._refused(f"{url} cannot be read ({type(error).__name__})") from None
        finally:
            client.close()
        if not isinstance(found, dict):
            raise self._refused(f"{url} is no JSON object")
        return found

    def _refused(self, why: str) -> Unauthorized:
        return Unauthorized(f"the sign-in at {self.settings.issuer} is not accepted: {why}")


def _algorithm(key: Any) -> str:
    """The one algorithm for a public key; empty for a key that is not used."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(key, RSAPublicKey):
        return "RS256" if key.key_size >= MIN_RSA_BITS else ""
    if isinstance(key, EllipticCurvePublicKey):
        return "ES256" if isinstance(key.curve, SECP256R1) else ""
    return "EdDSA" if isinstance(key, Ed25519PublicKey) else ""
