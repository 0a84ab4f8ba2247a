"""A certificate for the peers' servers over TLS, signed by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "localhost"
#: P-256: gRPC's BoringSSL verifies no Ed25519.
COMMAND = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
SUBJECT = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1")


def made(folder: Path) -> Path:
    """The file of a certificate and its key, made at the first call. Raises OSError without the openssl command."""
    path = folder / "certificate.pem"
    if not path.exists():
        command = [*COMMAND, *SUBJECT, "-keyout", "-", "-out", "-"]
        path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    return path
