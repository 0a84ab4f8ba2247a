"""The headers of a webhook as Standard Webhooks (https://www.standardwebhooks.com) has them, and the secret for these.

A file may have several secrets, one a line: each signs, so that a receiver can change from one to the next.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from rpcsys.errors import ConfigError

PREFIX = "whsec_"
LEAST, MOST = 24, 64  # bytes of a secret
MAX_SECRETS = 4
MAX_FILE = 4096  # bytes


def read_secrets(path: str) -> tuple[bytes, ...]:
    """The secrets in a file. Raises `ConfigError`: it cannot be read, or has none."""
    try:
        with Path(path).open("rb") as file:
            lines = file.read(MAX_FILE).decode("ascii", "replace").split()
    except OSError as error:
        raise ConfigError(f"--webhook-secret {path} cannot be read ({error.strerror}): check the path") from None
    if not 0 < len(lines) <= MAX_SECRETS:
        raise ConfigError(
            f"--webhook-secret {path} has {len(lines)} lines: it needs one secret, or up to {MAX_SECRETS}"
        )
    return tuple(_secret(line, path) for line in lines)


def _secret(text: str, path: str) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not LEAST <= len(secret) <= MOST:
        raise ConfigError(
            f"--webhook-secret {path} has no secret of {LEAST} to {MOST} bytes in base64; make one: "
            f"(umask 077; echo {PREFIX}$(head -c 32 /dev/urandom | base64) > {path})"
        )
    return secret


def signed(id: str, at: float, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The headers of a message that is sent ``at`` (seconds since 1970); without ``secrets`` it has no signature."""
    headers = {"webhook-id": id, "webhook-timestamp": str(int(at))}
    content = f"{id}.{int(at)}.".encode() + body
    made = [base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode() for secret in secrets]
    if made:
        headers["webhook-signature"] = " ".join(f"v1,{each}" for each in made)
    return headers
