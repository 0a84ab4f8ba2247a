"""How much memory processes use, as on a board where nobody else has the same files open."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ +(.*)$")
_OPENSSL = re.compile(r"lib(ssl|crypto)[.-]|/_(ssl|hashlib)\.")


def used(pids: Iterable[int]) -> dict[str, float]:
    """Bytes that processes use together: ``bytes`` in all, and ``openssl_bytes`` of OpenSSL's files.

    Pages of a file count once, those of the process with the most of them: the share of a page (PSS) would depend on
    what else runs on this machine.
    """
    anonymous, files = 0, Counter[str]()
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss_Anon: +(\d+) kB", rollup, re.MULTILINE)
        anonymous += 1024 * int(found[1]) if found else 0
        for path, size in of_files(Path(f"/proc/{pid}/smaps").read_text()).items():
            files[path] = max(files[path], size)
    openssl = sum(size for path, size in files.items() if _OPENSSL.search(path))
    return {"bytes": anonymous + sum(files.values()), "openssl_bytes": openssl}


def of_files(smaps: str) -> Counter[str]:
    """The bytes of each file's pages in memory, from the text of ``/proc/PID/smaps``."""
    path, sizes = "", Counter[str]()
    for line in smaps.splitlines():
        mapping = _MAPPING.match(line)
        if mapping:
            path = mapping[1]
        elif path.startswith("/"):
            name, _, size = line.partition(":")
            sizes[path] += {"Rss": 1, "Anonymous": -1}.get(name, 0) * 1024 * int(size.split()[0]) if "kB" in size else 0
    return sizes
