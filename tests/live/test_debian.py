"""The contents of the Debian packages; test_booted.py installs and runs them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from rpcsys.cli.commands import group
from rpcsys.cli.completion import COMMANDS
from rpcsys.cli.manual import pages
from tests.live import debian

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGES = ["rpcsys", "rpcsys-gateway", "rpcsys-proxy", "rpcsys-tracker"]


@pytest.fixture(scope="module")
def packages(shared: Path) -> dict[str, Path]:
    found = {path.name.partition("_")[0]: path for path in debian.packages(shared)}
    assert sorted(found) == PACKAGES
    return found


def contents(package: Path) -> set[str]:
    """The names of its files."""
    listed = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True)
    return {line.split()[5].removeprefix(".") for line in listed.stdout.splitlines() if line[0] != "d"}


def control(package: Path, name: str) -> str:
    """One of the package's control files."""
    return subprocess.run(["dpkg-deb", "--info", package, name], capture_output=True, text=True, check=True).stdout


def test_the_same_sources_give_the_same_bytes(packages: dict[str, Path], tmp_path: Path) -> None:
    again = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in debian.build(tmp_path).glob("*.deb")}
    assert again == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in packages.values()}


def test_lintian_finds_nothing_wrong(packages: dict[str, Path]) -> None:
    assert shutil.which("lintian"), "type: apt-get install lintian"
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", *map(str, packages.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_commands_have_manual_pages_and_completions(packages: dict[str, Path]) -> None:
    names = contents(packages["rpcsys"])
    assert {f"/usr/bin/{command}" for command in COMMANDS} <= names
    assert {f"/usr/share/man/man1/{name}.1.gz" for name, _ in pages(group, "rpcsys")} <= names
    for command in COMMANDS:
        assert f"/usr/share/bash-completion/completions/{command}" in names
        assert f"/usr/share/zsh/vendor-completions/_{command}" in names
        assert f"/usr/share/fish/vendor_completions.d/{command}.fish" in names
    assert "/usr/lib/python3/dist-packages/rpcsys/_data/systemd/rpcsys-server@.service" in names
    monitoring = "/usr/lib/python3/dist-packages/rpcsys/_data/docs/monitoring"
    assert {f"{monitoring}/prometheus-rules.yml", f"{monitoring}/grafana-dashboard.json"} <= names
    assert not {name for name in names if "/tests/" in name or "__pycache__" in name}


def test_only_the_package_with_the_compiled_library_is_for_one_processor(packages: dict[str, Path]) -> None:
    here = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    processors = {name: path.stem.rpartition("_")[2] for name, path in packages.items()}
    assert processors == dict.fromkeys(PACKAGES, "all") | {"rpcsys": here}
    assert "/usr/lib/python3/dist-packages/rpcsys/speedups.abi3.so" in contents(packages["rpcsys"])
    assert "libc6 (>= " in control(packages["rpcsys"], "control")


@pytest.mark.parametrize("daemon", ["tracker", "proxy", "gateway"])
def test_services_have_a_unit_and_a_settings_file(daemon: str, packages: dict[str, Path]) -> None:
    package = packages[f"rpcsys-{daemon}"]
    settings = f"/etc/rpcsys/{daemon}.environment"
    assert {settings, f"/lib/systemd/system/rpcsys-{daemon}.service"} <= contents(package)
    assert control(package, "conffiles").split() == [settings]
