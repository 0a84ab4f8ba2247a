"""What is handed out for people who become members of a lab by OIDC: the lab's line, and addresses of an issuer.

A lab's line has the tracker's addresses and pins. It is no secret; who can change it on its way to someone can pass for
the lab's tracker to him.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple
from urllib.parse import urlsplit

from rpcsys.errors import ConfigError
from rpcsys.wire import tokens

PREFIX = "rpcsys-lab:"
MAX_LINE = 8192  # characters
MAX_URL = 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class LabLine(NamedTuple):
    """A tracker's ``addresses`` (HOST:PORT) and ``pins`` (``sha256:DIGITS``)."""

    addresses: tuple[str, ...]
    pins: tuple[str, ...]

    @property
    def text(self) -> str:
        """The line."""
        data = json.dumps({"a": self.addresses, "p": self.pins}, separators=(",", ":")).encode()
        return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def parse_line(text: str) -> LabLine:
    """Read a lab's line; mail and terminals may have broken it. Raises `ConfigError`: it is damaged, or none."""
    line = "".join(text.split())
    if not line.startswith(PREFIX):
        raise ConfigError(f"this is no line of a lab: one begins with {PREFIX} (rpcsys lab line prints it)")
    data = line[len(PREFIX) :]
    try:
        if len(line) > MAX_LINE:
            raise ValueError
        fields = json.loads(base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True))
        found = LabLine(tokens.texts(fields["a"], tokens.MAX_ADDRESSES), tokens.texts(fields["p"], tokens.MAX_PINS))
        if len(found.pins) != tokens.MAX_PINS or not all(map(tokens.PIN, found.pins)):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise ConfigError("this line of a lab is not whole: copy it again, to the last character") from None
    return found


def is_safe(url: object) -> bool:
    """Whether a URL may be asked for what is to be believed: by HTTPS, or by HTTP on this machine."""
    if type(url) is not str or len(url) > MAX_URL or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)


def is_issuer(url: object) -> bool:
    """Whether a URL can be that of an issuer: `is_safe`, without a query and without a slash at its end."""
    return isinstance(url, str) and is_safe(url) and "?" not in url and "#" not in url and not url.endswith("/")
