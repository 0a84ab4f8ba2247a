"""A small issuer of ID tokens in a process of its own; its keys, and what it does, are the test's.

Run as a script, it serves the folder that is its argument: ``jwks.json``; ``id_token``, once somebody has confirmed;
``error``, what it answers instead; ``mode``: how it misbehaves; ``certificate.pem``: it speaks HTTPS.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLIENT = "rpcsys-lab"


class Handler(BaseHTTPRequestHandler):
    folder: Path
    issuer: str

    def do_GET(self) -> None:
        mode = _read(self.folder / "mode")
        with (self.folder / "asked").open("a") as file:
            file.write(self.path + "\n")
        if self.path.endswith("openid-configuration"):
            self.answer(self.discovery(mode))
        elif mode == "hang":
            time.sleep(60)
        elif mode == "drip":
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                for _ in range(300):
                    self.wfile.write(b" ")
                    time.sleep(0.2)
        elif mode == "redirect":
            self.send_response(302)
            self.send_header("Location", self.issuer + "/elsewhere")
            self.end_headers()
        elif mode == "huge":
            with contextlib.suppress(OSError):
                self.answer({"keys": [], "filler": "x" * (10 << 20)})
        elif mode == "deep":
            self.answer_bytes(b"[" * 100_000)
        else:
            self.answer(json.loads((self.folder / "jwks.json").read_text()))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/device":
            place = {"verification_uri": self.issuer + "/confirm", "user_code": "ABCD-EFGH", "device_code": "d"}
            self.answer({**place, "interval": 1, "expires_in": 60})
        elif _read(self.folder / "error"):
            self.answer({"error": _read(self.folder / "error")}, 400)
        elif _read(self.folder / "id_token"):
            self.answer({"access_token": "a", "token_type": "Bearer", "id_token": _read(self.folder / "id_token")})
        else:
            self.answer({"error": "authorization_pending"}, 400)

    def discovery(self, mode: str) -> dict[str, Any]:
        places = {"jwks_uri": "/jwks", "device_authorization_endpoint": "/device", "token_endpoint": "/token"}
        found = {name: self.issuer + path for name, path in places.items()}
        if mode == "http":
            found["jwks_uri"] = "http://192.0.2.1/jwks"
        name = "https://another.example" if mode == "another" else self.issuer
        return {"issuer": name, "scopes_supported": ["openid", "email", "groups"], **found}

    def answer(self, fields: dict[str, Any], status: int = 200) -> None:
        self.answer_bytes(json.dumps(fields).encode(), status)

    def answer_bytes(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


class IssuerProcess:
    """The issuer as a process; ``url``: what it calls itself."""

    def __init__(self, folder: Path, tls: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.certificate = folder / "certificate.pem"  # with its key
        if tls:
            self.certificate.write_bytes(new_certificate())
        self.keys: dict[str, tuple[Any, str]] = {}  # by name: the key, and its algorithm
        command = [sys.executable, "-m", "tests.tracker.issuers", str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.offer(rsa="RS256")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._process.stdout.close()

    def offer(self, **algorithms: str) -> None:
        """Make new keys, and offer them under their names."""
        self.keys = {name: (new_key(algorithm), algorithm) for name, algorithm in algorithms.items()}
        rows = [public_row(name, *key) for name, key in self.keys.items()]
        self.set("jwks.json", json.dumps({"keys": rows}))

    def set(self, name: str, text: str = "") -> None:
        """What the issuer does from now on."""
        partial = self.folder / f"{name}.partial"
        partial.write_text(text)
        partial.replace(self.folder / name)

    def asked(self, path: str = "/jwks") -> int:
        """How often a path was asked for."""
        return _read(self.folder / "asked").splitlines().count(path)

    def claims(self, **changed: Any) -> dict[str, Any]:
        """The claims of a valid token, with changes; None leaves one out."""
        now = int(time.time())
        found = {"iss": self.url, "aud": CLIENT, "sub": "u-1", "iat": now, "exp": now + 300, "email": "ann@lab.example",
                 "email_verified": True, "groups": ["compiler"], **changed}  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def token(self, name: str = "rsa", /, **changed: Any) -> str:
        """An ID token, signed by the key of that name."""
        import jwt

        key, algorithm = self.keys[name]
        return jwt.encode(self.claims(**changed), key, algorithm, headers={"kid": name})


def new_key(algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate() if algorithm == "EdDSA" else rsa.generate_private_key(65537, 2048)


def public_row(name: str, key: Any, algorithm: str) -> dict[str, Any]:
    """A public key as JWKS have it."""
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    form = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}[algorithm]
    return {**json.loads(form.to_jwk(key.public_key())), "kid": name, "use": "sig"}


def new_certificate() -> bytes:
    """A certificate of 127.0.0.1 that is its own authority, and its key, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key, now = new_key("ES256"), dt.datetime.now(dt.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    begun = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    begun = begun.serial_number(1).not_valid_before(now - dt.timedelta(1)).not_valid_after(now + dt.timedelta(1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    begun = begun.add_extension(address, False).add_extension(x509.BasicConstraints(True, None), True)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return begun.sign(key, hashes.SHA256()).public_bytes(pem) + key.private_bytes(pem, *form)


@contextlib.contextmanager
def running(folder: Path, tls: bool = False) -> Iterator[IssuerProcess]:
    with contextlib.closing(IssuerProcess(folder, tls)) as made:
        yield made


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.folder, scheme = Path(sys.argv[1]), "http"
    if (Handler.folder / "certificate.pem").exists():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Handler.folder / "certificate.pem")
        server.socket, scheme = context.wrap_socket(server.socket, server_side=True), "https"
    Handler.issuer = f"{scheme}://127.0.0.1:{server.server_port}"
    print(Handler.issuer, flush=True)
    server.serve_forever()
