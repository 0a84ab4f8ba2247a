"""Where the engine is, and how a replica proves itself to it."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from rpcsys.errors import ConfigError
from rpcsys.link.address import address_text, parse_address

SCHEME = "etcd://"
ETCD_PORT = 2379
MAX_ENDPOINTS = 9
USER, PASSWORD = "RPCSYS_ENGINE_USER", "RPCSYS_ENGINE_PASSWORD"
_LAB = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_TEXT = 256  # characters of a user's name and of a password


@dataclass(frozen=True)
class EnginePlace:
    """The addresses of the engine's members, and the lab's name in it."""

    endpoints: tuple[tuple[str, int], ...]
    lab: str

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(address_text(*endpoint) for endpoint in self.endpoints)}/{self.lab}"


@dataclass(frozen=True)
class EngineTls:
    """Files (PEM): who has signed the engine's certificates; the certificate of this replica, and its key."""

    ca: str
    cert: str | None = None
    key: str | None = None  # None: it is in the certificate's file

    def context(self) -> ssl.SSLContext:
        """For connections. Raises `ConfigError`: a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ca)
        except OSError as error:  # with those of OpenSSL
            raise _no_file("--replicate-ca", self.ca, error) from None
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise _no_file("--replicate-cert, --replicate-key", self.cert or "", error) from None
        return context


@dataclass(frozen=True)
class EngineUser:
    """A user of the engine."""

    name: str
    password: str = field(repr=False)


def parse_place(text: str) -> EnginePlace:
    """Parse ``etcd://HOST:PORT,HOST:PORT/LAB``. Without a port, it is 2379. Raises `ConfigError`."""
    if not text.startswith(SCHEME):
        raise _no_place(text, f"it does not begin with {SCHEME}")
    hosts, slash, lab = text[len(SCHEME) :].partition("/")
    if not slash or not _LAB.fullmatch(lab):
        raise _no_place(text, "the lab's name has 1 to 64 letters, digits, dots, dashes and underscores")
    if "@" in hosts:
        raise ConfigError(f"a user stands in {USER} and {PASSWORD}, not in the engine's address")
    endpoints = [_endpoint(text, host) for host in hosts.split(",")]
    if len({*endpoints}) < len(endpoints):
        raise _no_place(text, "an address occurs twice")
    if len(endpoints) > MAX_ENDPOINTS:
        raise _no_place(text, f"at most {MAX_ENDPOINTS} addresses")
    return EnginePlace(tuple(endpoints), lab)


def engine_user(environment: Mapping[str, str] = os.environ) -> EngineUser | None:
    """The user in the environment; None without. Raises `ConfigError`."""
    name, password = environment.get(USER, ""), environment.get(PASSWORD, "")
    if not name and not password:
        return None
    if not name or not password:
        raise ConfigError(f"{USER} and {PASSWORD} belong together: set {PASSWORD if name else USER}, too")
    if max(len(name), len(password)) > _MAX_TEXT:
        raise ConfigError(f"{USER} and {PASSWORD} have at most {_MAX_TEXT} characters")
    return EngineUser(name, password)


def _endpoint(text: str, host: str) -> tuple[str, int]:
    try:
        return parse_address(host, ETCD_PORT)
    except ConfigError:
        raise _no_place(text, f"{host!r} is no HOST:PORT") from None


def _no_place(text: str, why: str) -> ConfigError:
    form = f"{SCHEME}HOST:PORT,HOST:PORT/LAB, as in {SCHEME}lab-1:2379,lab-2:2379,lab-3:2379/lab"
    return ConfigError(f"{text!r} is no engine's address ({why}): write {form}")


def _no_file(flags: str, path: str, error: Exception) -> ConfigError:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return ConfigError(f"{path} cannot be used ({why}): give PEM files in {flags}")


def _no_password() -> str:
    """OpenSSL would ask at the terminal, and wait."""
    raise ValueError("the key has a password; write it without one")
