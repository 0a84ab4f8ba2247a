"""What of a process's memory is counted."""

import os
import sys

import pytest

from benchmarks.peers.memory_use import of_files, used

SMAPS = """\
7f10-7f20 r-xp 00000000 fe:00 11   /usr/lib/libcrypto.so.3
Size:                 64 kB
Rss:                  40 kB
Anonymous:             8 kB
VmFlags: rd ex mr mw me
7f20-7f30 rw-p 00000000 fe:00 11   /usr/lib/libcrypto.so.3
Rss:                   4 kB
Anonymous:             4 kB
7f30-7f40 rw-p 00000000 00:00 0    [heap]
Rss:                  12 kB
Anonymous:            12 kB
"""


def test_a_files_pages_count_without_those_that_were_written():
    assert of_files(SMAPS) == {"/usr/lib/libcrypto.so.3": 32 << 10}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="smaps are Linux's")
def test_a_file_counts_once_for_all_processes_and_memory_for_each():
    alone, twice = used([os.getpid()]), used([os.getpid()] * 2)
    assert 0 < alone["bytes"] < twice["bytes"] < 2 * alone["bytes"]
    assert twice["openssl_bytes"] == pytest.approx(alone["openssl_bytes"], rel=0.5)
