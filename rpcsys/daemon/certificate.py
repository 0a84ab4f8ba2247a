"""The certificate of a page's HTTPS, from files that another program renews."""

from __future__ import annotations

import logging
import os
import time

from rpcsys.errors import ConfigError
from rpcsys.link.openssl import ssl

log = logging.getLogger(__name__)
LOOK_S = 1.0  # between two looks at the files


class Certificate:
    """A certificate's chain in ``path``, and its key in ``key``, or in the same file (None), in PEM.

    Raises `ConfigError`: they cannot be used.
    """

    def __init__(self, path: str, key: str | None = None) -> None:
        self._files = (path, key or path)
        self._stamps = self._stamp()
        self._context = self._load()
        self._looked_at = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection. Files that have changed are taken up, if they can be used."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            stamps = self._stamp()
            if stamps != self._stamps:
                self._stamps = stamps
                self._take_up()
        return self._context

    def _take_up(self) -> None:
        try:
            self._context = self._load()
        except ConfigError as error:
            log.warning("%s; the certificate from before stays in use", error)
        else:
            log.info("the certificate in %s is in use now", self._files[0])

    def _load(self) -> ssl.SSLContext:
        path, key = self._files
        for file in self._files:
            try:
                with open(file, "rb"):
                    pass
            except OSError as error:
                raise ConfigError(f"cannot read {file}: {error.strerror}; check --http-cert and --http-key") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(path, key, password=_no_password)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"{path} and {key} are no certificate with its key: {_reason(error)}") from None
        return context

    def _stamp(self) -> list[tuple[int, ...]]:
        stamps: list[tuple[int, ...]] = []
        for file in self._files:
            try:
                found = os.stat(file)
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(())
        return stamps


def _no_password() -> str:
    """OpenSSL would ask for one at the terminal."""
    raise OSError("the key has a password; give one without")


def _reason(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error)
    found = (error.reason or "one cannot be read").lower().replace("_", " ")
    return f"{found}; --http-cert has CERTIFICATE and --http-key PRIVATE KEY, in PEM"
