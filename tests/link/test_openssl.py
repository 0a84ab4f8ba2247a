"""What is said where Python has no ssl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys.link.ciphers import no_ssl

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["link.tls", "link.terminator", "secure_stream", "client.secure_opening"])
def test_a_python_without_ssl_says_so_at_each_attempt(module: str) -> None:
    attempt = f"try:\n    import rpcsys.{module}\nexcept ConfigError as error:\n    print(error)\n"
    code = f"import sys\nfrom rpcsys.errors import ConfigError\nsys.modules['_ssl'] = None\n{attempt * 2}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [no_ssl()] * 2
