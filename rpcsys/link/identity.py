"""Keys of tracker and sessions, made with the standard library; a peer is recognised by a pin.

A **pin** is the SHA-256 of a certificate, as 64 hexadecimal digits. The certificate is a fixed form round an Ed25519
public key, valid from 1970 to 9999: nothing of it is verified but the pin, so a board with a wrong clock or without
a certificate authority proves itself like any other. Its DER form is that of RFC 5280, its key that of RFC 8410.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import hashlib
import os
import re
from typing import NamedTuple, Optional, Tuple

from rpcsys.errors import ConfigError

SEED_BYTES = 32
_NID_ED25519 = 1087  # OpenSSL's number of the algorithm
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")  # the bytes of a PKCS #8 key before its seed
_FIND_KEY = re.compile("-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END PRIVATE KEY-----").search


class Identity(NamedTuple):
    """A private key (``seed``: 32 bytes), and its certificate in DER form."""

    seed: bytes
    certificate: bytes

    def __repr__(self) -> str:
        return f"<identity sha256:{self.pin[:8]}…>"

    @property
    def pin(self) -> str:
        """What a peer recognises this identity by."""
        return pin(self.certificate)

    def pem(self) -> str:
        """Certificate and private key as text, as OpenSSL reads them."""
        return _pem("CERTIFICATE", self.certificate) + _pem("PRIVATE KEY", _PKCS8 + self.seed)


def new() -> Identity:
    """A new identity, from the operating system's random numbers."""
    return from_seed(os.urandom(SEED_BYTES))


def from_seed(seed: bytes) -> Identity:
    """The identity of an Ed25519 private key of 32 bytes. The same key has always the same certificate and pin."""
    return Identity(seed, _certificate(public_key(seed)))


def parse(text: str, where: str = "this") -> Identity:
    """Read what :meth:`Identity.pem` returned. Raises `ConfigError`: ``where`` holds no Ed25519 private key."""
    found = _FIND_KEY(text)
    try:
        key = base64.b64decode("".join(found[1].split()), validate=True) if found else b""
    except binascii.Error:
        key = b""
    if len(key) != len(_PKCS8) + SEED_BYTES or not key.startswith(_PKCS8):
        raise ConfigError(f"{where} is no private key of rpcsys (Ed25519, PEM): restore it from a copy")
    return from_seed(key[len(_PKCS8) :])


def pin(certificate: bytes) -> str:
    """The pin of a certificate in DER form."""
    return hashlib.sha256(certificate).hexdigest()


# Public keys


def public_key(seed: bytes) -> bytes:
    """The 32 bytes of a private key's public one: by OpenSSL or, where that is out of reach, :func:`multiplied`."""
    return _by_openssl(seed) or multiplied(seed)


def _by_openssl(seed: bytes) -> Optional[bytes]:
    """As :func:`public_key`, by the libcrypto that ``ssl`` has loaded; None if its symbols are not to be had."""
    try:
        import _ssl

        crypto = ctypes.CDLL(getattr(_ssl, "__file__", None))  # finds symbols in the libraries that it needs, too
        make, read, free = crypto.EVP_PKEY_new_raw_private_key, crypto.EVP_PKEY_get_raw_public_key, crypto.EVP_PKEY_free
    except (ImportError, OSError, AttributeError):
        return None
    make.restype = ctypes.c_void_p
    key = ctypes.c_void_p(make(_NID_ED25519, None, seed, ctypes.c_size_t(len(seed))))
    if key.value is None:
        return None
    public = ctypes.create_string_buffer(32)
    done = read(key, public, ctypes.byref(ctypes.c_size_t(32)))
    free(key)
    return public.raw if done == 1 else None


_P = 2**255 - 19
_D = -121665 * pow(121666, _P - 2, _P) % _P
_BASE = (  # RFC 8032, section 5.1
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)
#: X, Y, Z and T of a point: x = X/Z, y = Y/Z, x*y = T/Z.
_Point = Tuple[int, int, int, int]


def multiplied(seed: bytes) -> bytes:
    """As :func:`public_key`, by the multiplication of RFC 8032, section 5.1.5. It never signs or verifies."""
    left = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    left = left & ~7 & ~(1 << 255) | 1 << 254
    total: _Point = (0, 1, 1, 0)
    point: _Point = (_BASE[0], _BASE[1], 1, _BASE[0] * _BASE[1] % _P)
    while left:
        if left & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        left >>= 1
    inverse = pow(total[2], _P - 2, _P)
    x, y = total[0] * inverse % _P, total[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _sum(one: _Point, other: _Point) -> _Point:
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % _P, (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


# Certificates

_SEQUENCE, _SET, _INTEGER, _BITS, _TEXT, _TIME = 0x30, 0x31, 0x02, 0x03, 0x0C, 0x18


def _der(tag: int, *parts: bytes) -> bytes:
    """A DER element. Its length has the shortest form: else OpenSSL encodes it anew, and the pin differs."""
    body = b"".join(parts)
    size = len(body)
    return bytes([tag, size] if size < 0x80 else [tag, 0x81, size]) + body


_ED25519 = _der(_SEQUENCE, bytes.fromhex("06032b6570"))
_COMMON_NAME = bytes.fromhex("0603550403")
_NAME = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME, _der(_TEXT, b"rpcsys"))))
_ALWAYS = _der(_SEQUENCE, _der(_TIME, b"19700101000000Z"), _der(_TIME, b"99991231235959Z"))
_VERSION_3 = bytes.fromhex("a003020102")


def _certificate(public: bytes) -> bytes:
    """A certificate of a public key. Its signature is 64 zeros: nobody verifies it."""
    subject_key = _der(_SEQUENCE, _ED25519, _der(_BITS, b"\0", public))
    body = _der(_SEQUENCE, _VERSION_3, _der(_INTEGER, b"\1"), _ED25519, _NAME, _ALWAYS, _NAME, subject_key)
    return _der(_SEQUENCE, body, _ED25519, _der(_BITS, b"\0", bytes(64)))


def _pem(kind: str, data: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(data).decode()}-----END {kind}-----\n"
