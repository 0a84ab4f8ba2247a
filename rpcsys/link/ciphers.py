"""The cipher of TLS: on a CPU without instructions for AES, ChaCha20 is several times as fast.

Python cannot choose TLS 1.3's ciphers before 3.15. OpenSSL's own settings can, which it reads when it is loaded.
"""

from __future__ import annotations

import os

#: OpenSSL's settings with ChaCha20 before AES.
CHACHA20_FIRST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chacha20.cnf")
_CPUS = "/proc/cpuinfo"
_HEAD = 8 << 10  # characters with the first CPU's flags


def prefer_fast(cpus: str = _CPUS) -> None:
    """Have OpenSSL prefer the cipher that is fast here, unless its user has settings of his own.

    To be called before anything loads OpenSSL, as ``hashlib`` and ``ssl`` do.
    """
    if "OPENSSL_CONF" not in os.environ and not has_aes(cpus):
        os.environ["OPENSSL_CONF"] = CHACHA20_FIRST


def no_ssl(what: str = "a lab") -> str:
    """The error for a Python without ``ssl``, which ``what`` needs."""
    return (
        f"this Python has no ssl module; {what} needs it: Debian has it in python3, Buildroot: "
        "BR2_PACKAGE_PYTHON3_SSL=y, a Python that you build: OpenSSL's headers"
    )


def has_aes(cpus: str = _CPUS) -> bool:
    """Whether this CPU has instructions for AES, by the file in which Linux describes it; True where there is none."""
    try:
        with open(cpus, encoding="ascii", errors="replace") as file:
            lines = file.read(_HEAD).splitlines()
    except OSError:
        return True
    flags = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return "aes" in next(flags, [])
