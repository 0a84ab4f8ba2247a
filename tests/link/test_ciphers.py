"""Which cipher is taken, by the CPUs of both ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys.link import ciphers
from tests.pythons import pythons

X86 = "processor\t: 0\nmodel name\t: a CPU with aes\nflags\t\t: fpu vaes{}\n\nprocessor\t: 1\nflags\t\t: aes\n"
ARM = "processor\t: 0\nFeatures\t: half thumb crc32{}\nCPU implementer\t: 0x41\n"
ROOT = Path(__file__).parents[2]
AES, CHACHA20 = "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"

#: Two processes shake hands by standard input and output; the server's says the suite, and how often it was asked back.
END = """
import sys
from rpcsys.link import ciphers
ciphers.prefer_fast(sys.argv[2])
from rpcsys.link import identity, tls
own = identity.from_seed(b"1" * 32)
server = sys.argv[1] == "server"
tunnel = tls.Tunnel(tls.server_context(own), server=True) if server else tls.Tunnel(
    tls.client_context(), server=False, pins=[own.pin])
def send():
    data = tunnel.outgoing()
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()
def take():
    tunnel.feed(sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big")))
tunnel.handshake()
if not server:
    send()
    take()
    assert tunnel.handshake()
    send()
    take()
    tunnel.read_into(memoryview(bytearray(10)))
    tickets = tunnel.tls.session is not None and tunnel.tls.session.has_ticket
else:
    take()
    tunnel.handshake()
    send()
    take()
    assert tunnel.handshake()
    tunnel.write([b"x"])
    send()
    tickets = False
print(tunnel.tls.cipher()[0], tickets, file=sys.stderr)
"""


@pytest.mark.parametrize("text", [X86, ARM])
def test_the_first_cpus_flags_say_whether_it_has_aes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cpuinfo"
    for flag, has in ((" aes sse", True), (" vaes", False), ("", False)):
        path.write_text(text.format(flag))
        assert ciphers.has_aes(str(path)) is has
    assert ciphers.has_aes(str(tmp_path / "none"))


def test_own_settings_of_a_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(ARM.format(""))
    monkeypatch.setenv("OPENSSL_CONF", "/etc/own.cnf")
    ciphers.prefer_fast(str(path))
    assert os.environ["OPENSSL_CONF"] == "/etc/own.cnf"
    monkeypatch.delenv("OPENSSL_CONF")
    ciphers.prefer_fast(str(path))
    assert os.environ["OPENSSL_CONF"] == ciphers.CHACHA20_FIRST


@pytest.mark.parametrize("python", pythons().values(), ids=pythons())
@pytest.mark.parametrize(
    ("server", "client", "suite"),
    [(True, True, AES), (False, True, CHACHA20), (True, False, CHACHA20), (False, False, CHACHA20)],
)
def test_one_end_without_aes_has_both_take_chacha20(
    tmp_path: Path, python: str, server: bool, client: bool, suite: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENSSL_CONF"}
    paths = {}
    for has in (True, False):
        paths[has] = str(tmp_path / f"{has}")
        Path(paths[has]).write_text(ARM.format(" aes" if has else ""))
    up, down = os.pipe(), os.pipe()
    ends = [
        subprocess.Popen(
            [python, "-c", END, role, paths[has]],
            stdin=reads, stdout=writes, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )
        for role, has, reads, writes in (("server", server, up[0], down[1]), ("client", client, down[0], up[1]))
    ]  # fmt: skip
    for number in (*up, *down):
        os.close(number)
    for end in ends:
        said = end.communicate(timeout=60)[1]
        assert said.split()[-2:] == [suite, "False"], said


def test_servers_and_commands_ask_before_openssl_is_loaded() -> None:
    for module in ("rpcsys.server.__main__", "rpcsys.__main__"):
        code = f"import sys, {module}; sys.exit(bool({{'_ssl', '_hashlib'}} & {{*sys.modules}}))"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
