"""Signs a person in at an issuer of ID tokens, with any browser on any machine (RFC 8628)."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from rpcsys.errors import ConfigError, Unauthorized, printable
from rpcsys.wire.sign_in import is_issuer, is_safe

DISCOVERY = "/.well-known/openid-configuration"
GRANT = "urn:ietf:params:oauth:grant-type:device_code"
SCOPES = ("openid", "profile", "email", "groups")
ANSWER_S = 15.0
MAX_ANSWER = 256 << 10  # bytes
PAUSE_S, SLOWER_S = 5.0, 5.0  # between two questions, and how much longer it gets where the issuer wants that
LONGEST_PAUSE_S, LONGEST_S = 60.0, 1800.0


def id_token(issuer: str, client_id: str, say: Callable[[str], None]) -> str:
    """The ID token of whoever confirms a code at the issuer, which ``say`` tells.

    Raises `ConfigError`: the issuer cannot be asked. Raises `Unauthorized`: nobody has confirmed.
    """
    if not is_issuer(issuer):
        raise ConfigError(f"{printable(issuer)} is no issuer to sign in at: it has to be https")
    found = _ask(issuer + DISCOVERY)
    if found.get("issuer") != issuer:
        raise ConfigError(f"what answers at {issuer} says that it is another issuer: ask the lab's keeper")
    known = found.get("scopes_supported")
    scopes = [scope for scope in SCOPES if scope in known] if isinstance(known, list) else SCOPES[:3]
    asked = {"client_id": client_id, "scope": " ".join(scopes)}
    begun = _ask(_address(found, "device_authorization_endpoint"), asked)
    place = begun.get("verification_uri_complete") or begun.get("verification_uri")
    code, device = begun.get("user_code"), begun.get("device_code")
    if not (is_safe(place) and isinstance(code, str) and isinstance(device, str)):
        raise ConfigError(f"{issuer} has not said where to confirm: {_problem(begun)}")
    say(f"Open {place} in a browser, sign in, and confirm the code {printable(code)}")
    poll = {"grant_type": GRANT, "device_code": device, "client_id": client_id}
    return _await(_address(found, "token_endpoint"), poll, begun)


def _await(url: str, poll: dict[str, str], begun: Mapping[str, Any]) -> str:
    """Ask until the person has confirmed; the ID token."""
    pause = _seconds(begun.get("interval"), PAUSE_S, LONGEST_PAUSE_S)
    until = time.monotonic() + _seconds(begun.get("expires_in"), LONGEST_S, LONGEST_S)
    while time.monotonic() < until:
        time.sleep(pause)
        answer = _ask(url, poll)
        if isinstance(answer.get("id_token"), str):
            return str(answer["id_token"])
        if answer.get("error") == "slow_down":
            pause = min(pause + SLOWER_S, LONGEST_PAUSE_S)
        elif answer.get("error") != "authorization_pending":
            raise Unauthorized(f"nobody is signed in: {_problem(answer)}; type rpcsys login again")
    raise Unauthorized("nobody is signed in: the code was not confirmed in time; type rpcsys login again")


def _ask(url: str, fields: dict[str, str] | None = None) -> dict[str, Any]:
    """An issuer's answer, also that it refuses. Raises `ConfigError`: there is none."""
    data = None if fields is None else urllib.parse.urlencode(fields).encode()
    asked = urllib.request.Request(url, data, {"Accept": "application/json"})
    try:
        with _OPENER.open(asked, timeout=ANSWER_S) as answer:
            text = answer.read(MAX_ANSWER)
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read(MAX_ANSWER) if refused.code in (400, 401, 403) else b""
        if not text:
            raise ConfigError(f"{url} answered {refused.code}: ask the lab's keeper about [oidc]") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"{url} does not answer ({reason}); check the network, and try again") from None
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise ConfigError(f"{url} answered no JSON object: ask the lab's keeper about [oidc]") from None
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Nothing is sent to another address than was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _address(found: Mapping[str, Any], name: str) -> str:
    if not is_safe(found.get(name)):
        raise ConfigError(f"the issuer has no {name} at https: it has to offer the device flow (RFC 8628)")
    return str(found[name])


def _seconds(value: object, default: float, most: float) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1
    return min(float(value), most) if usable and isinstance(value, (int, float)) else default


def _problem(answer: Mapping[str, Any]) -> str:
    """What an issuer says of its refusal, for a terminal."""
    words = [answer.get(name) for name in ("error", "error_description")]
    return printable(": ".join(word for word in words if isinstance(word, str))[:300]) or "it has not said why"
