"""A hostile session tries each row of the table in docs/security.md, on a server of each column."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.server.sandbox import mount_namespace, network_namespace
from tests.live.daemons import ROOT, Daemon, Daemons

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

NOBODY = 65534
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
WHY_SHARED = mount_namespace.probe("/tmp/rpcsys-probe", own_pids=True) or network_namespace.probe()
AUTO, ISOLATED, SHARED = ("--session-user", "auto"), ("--session-network", "none"), ("--no-isolation",)
#: For each column of the table: the user of the server, and its flags.
COLUMNS = {
    "root, `auto`": (0, (*AUTO, *ISOLATED)),
    "root, `auto`, `--no-isolation`": (0, (*AUTO, *SHARED)),
    "another user": (NOBODY, ISOLATED),
    "another user, `--no-isolation`": (NOBODY, SHARED),
}


def table() -> dict[str, dict[str, str]]:
    """The table of the page: for each row, what it says in each column."""
    _, _, text = (ROOT / "docs" / "security.md").read_text().partition("\n| a session tries to")
    lines = re.findall(r"^\| (.+) \|$", "| a session tries to" + text.partition("\n\n")[0], re.MULTILINE)
    (_, *columns), *rows = (line.split(" | ") for line in lines)
    return {row: dict(zip(columns, cells, strict=True)) for row, *cells in rows}


def python() -> str:
    """An interpreter that every user may run."""
    found = [sys.executable, *(shutil.which("python3", path=place) for place in ("/usr/local/bin", "/usr/bin"))]
    for path in filter(None, found):
        folder = os.path.dirname(os.path.realpath(path))
        if not mount_namespace.is_closed(folder) and not mount_namespace.closed_above([folder]):
            return path
    return pytest.skip("each Python here is closed to other users")


@pytest.fixture(scope="module", params=COLUMNS)
def column(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """The name of a column, and what came of each attempt on its server."""
    user, flags = COLUMNS[request.param]
    if WHY_SHARED and "--no-isolation" not in flags:
        pytest.skip(f"no namespaces here: {WHY_SHARED}")
    # Not below /tmp, of which a session may have its own.
    place = Path(tempfile.mkdtemp(prefix="rpcsys-test-", dir="/var/lib"))
    daemons = Daemons(place)
    try:
        yield request.param, tried(daemons, user, flags)
    finally:
        daemons.stop()
        shutil.rmtree(place)


def tried(daemons: Daemons, user: int, flags: tuple[str, ...]) -> dict[str, str]:
    place = daemons.folder
    (place / "secret").mkdir(0o700)
    facts = {"credential": str(place / "secret" / "key"), "owned": str(place / "owned")}
    (place / "owned").write_text("content")
    facts["setuid"] = str(shutil.copy(shutil.which("id") or "id", place / "id"))
    for path in (place, *place.rglob("*")):
        os.chown(path, user, user)
    os.chown(place / "id", 0, 0)
    (place / "id").chmod(0o4755)
    place.chmod(0o755)
    server = serve(daemons, user, facts["credential"], flags)
    (place / "left").write_text("of another session")
    key = Path(facts["credential"]).read_text().partition("\n")[0]
    with rpcsys.connect(*server.address, key=key) as other, rpcsys.connect(*server.address, key=key) as session:
        other.upload(place / "left")
        (file,) = place.glob("rpcsys-server-*/session-*/files/left")
        (facts["cached"],) = map(str, place.glob("cache/objects/*"))
        facts["file"], facts["folder"], facts["of_other"] = str(file), str(file.parents[2]), file.parents[1].name
        others = {"server": server.pid, "other": other.info["pid"], "port": server.address[1]}
        others["zygote"] = psutil.Process(others["other"]).ppid()
        found = json.loads(session.get_function("hostile.attempts")(json.dumps({**facts, **others})))
        assert other.download("left") == b"of another session"
    assert server.running()
    return found


def serve(daemons: Daemons, user: int, credential: str, flags: tuple[str, ...]) -> Daemon:
    """A server of ``user`` with the standing key ``credential``."""
    become = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"] if user else []
    command = [*become, python(), "-m", "rpcsys.server", "--standing-key", credential, "--key", "k"]
    command += ["--host", "127.0.0.1", "--port", "0", "--slots", "2", "--preload", "none", "--tvm", "off"]
    command += ["--import", "tests.live.hostile", "--cache", str(daemons.folder / "cache"), *flags]
    server = daemons.launch("hostile", command, env={"HOME": str(daemons.folder)})
    server.await_ready_line()
    return server


@pytest.mark.parametrize("row", table())
def test_each_row_says_what_happens(column: tuple[str, dict[str, str]], row: str) -> None:
    name, found = column
    assert not found[row].startswith("!"), found[row]
    says = table()[row][name]
    if says == "possible" and re.search("trace|memory", row) and YAMA.exists() and YAMA.read_text().strip() != "0":
        says = "refused"  # this kernel refuses it even to processes of one user
    assert says == ("refused" if found[row] else "possible"), found[row]


def test_each_row_is_tried_and_each_attempt_is_a_row(column: tuple[str, dict[str, str]]) -> None:
    assert set(table()) == set(column[1])
    assert all(set(cells) == set(COLUMNS) for cells in table().values())


def test_a_server_with_a_secret_leaves_no_core(tmp_path: Path) -> None:
    code = "from rpcsys.server.sandbox import processes; processes.set_dumpable(False); import os; os.abort()"
    limit = "ulimit -c unlimited; exec"
    done = subprocess.run(["sh", "-c", f'{limit} "$@"', "sh", sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == -6
    assert os.listdir(tmp_path) == []
