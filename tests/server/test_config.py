"""The device server's flags: their values, and the errors for invalid ones."""

import os
import subprocess
import sys

import pytest

from rpcsys.errors import ConfigError
from rpcsys.ffi import library
from rpcsys.server.canary.setting import CanaryChoice
from rpcsys.server.config import ServerConfig, parse


def test_defaults(monkeypatch):
    monkeypatch.delenv("RPCSYS_DEVICES")
    config = parse(["--tvm", "off", "--preload", "none", "--name", "n"])
    assert config == ServerConfig(name="n")
    assert parse(["--host", "a", "--host", "b"]).host == "b"
    assert (config.host, config.port, config.port_end) == ("0.0.0.0", 9090, 9199)


@pytest.mark.parametrize(("text", "kinds"), [("all", None), ("none", ()), ("opencl,openvino", ("opencl", "openvino"))])
def test_the_kinds_of_devices_to_look_for(monkeypatch, text, kinds):
    assert parse(["--tvm", "off", "--devices", text]).devices == kinds
    monkeypatch.setenv("RPCSYS_DEVICES", text)
    assert parse(["--tvm", "off"]).devices == kinds


@pytest.mark.parametrize(("text", "pinned"), [("", False), ("0", False), ("1", True)])
def test_the_governor_may_be_pinned_by_the_environment(monkeypatch, text, pinned):
    assert parse(["--tvm", "off", "--pin-governor"]).pin_governor
    monkeypatch.setenv("RPCSYS_PIN_GOVERNOR", text)
    assert parse(["--tvm", "off"]).pin_governor is pinned


def test_the_canary_of_the_command_line_or_of_the_environment(monkeypatch):
    leased = ["--tvm", "off", "--key", "k", "--tracker", "lab:9190"]
    monkeypatch.delenv("RPCSYS_CANARY", raising=False)
    assert (parse(leased).canary, parse(leased).canary_every_s) == (None, None)
    assert parse([*leased, "--canary"]).canary == CanaryChoice("builtin", None)
    found = parse([*leased, "--canary", "builtin:5ms", "--canary-every", "30"])
    assert (found.canary, found.canary_every_s) == (CanaryChoice("builtin", 0.005), 30.0)
    monkeypatch.setenv("RPCSYS_CANARY", "builtin:1s")
    assert parse(leased).canary == CanaryChoice("builtin", 1.0)
    assert parse([*leased, "--canary", ""]).canary is None
    assert parse(["--tvm", "off"]).canary is None  # nobody would hear of it
    with pytest.raises(ConfigError, match="it needs --tracker"):
        parse(["--tvm", "off", "--canary"])
    monkeypatch.delenv("RPCSYS_CANARY")
    with pytest.raises(ConfigError, match="give --canary, too"):
        parse([*leased, "--canary-every", "30"])


@pytest.mark.parametrize(("port", "end"), [(9300, 9409), (65530, 65536)])
def test_the_end_of_the_ports_moves_along(port, end):
    assert parse(["--tvm", "off", "--port", str(port)]).port_end == end
    assert parse(["--tvm", "off", "--port", str(port), "--port-end", "65535"]).port_end == 65535


def test_hosts_may_have_a_port():
    config = parse(["--tvm", "off", "--host", "10.0.0.7:9300", "--custom-addr", "board.lab:19090"])
    assert (config.host, config.port, config.port_end) == ("10.0.0.7", 9300, 9409)
    assert (config.custom_addr, config.custom_port) == ("board.lab", 19090)
    assert parse(["--tvm", "off", "--host", ""]).host == "0.0.0.0"


def test_every_flag(tmp_path):
    library = tmp_path / "lib.so"
    library.touch()
    config = parse(
        [
            *["--host", "::1", "--port", "0", "--port-end", "9", "--key", "rpi4", "--tracker", "10.0.0.1:9191"],
            *["--custom-addr", "10.0.0.9", "--load-library", str(library), "--no-fork", "--silent"],
            *["--slots", "4", "--tvm", "off", "--name", "shelf 3", "--label", "os=linux", "--label", "a="],
            *["--preload", "json,re", "--import", "lab_one", "--import", "lab_two", "--grace", "2.5"],
            *["--allow-pickle", "--cache", str(tmp_path / "cache"), "--cache-size", "2G"],
            *["--deploy", str(tmp_path), "--deploy-workers", "3", "--deploy-queue", "9"],
            *["--session-memory", "512M", "--read-only", "--import-timeout", "5", "--devices", "opencl"],
        ]
    )
    assert config == ServerConfig(
        host="::1",
        port=0,
        port_end=9,
        key="rpi4",
        tracker=("10.0.0.1", 9191),
        custom_addr="10.0.0.9",
        load_library=(str(library),),
        fork=False,
        silent=True,
        slots=4,
        tvm="off",
        name="shelf 3",
        labels=(("os", "linux"), ("a", "")),
        devices=("opencl",),
        preload=("json", "re"),
        imports=("lab_one", "lab_two"),
        grace_s=2.5,
        session_memory=512 << 20,
        read_only=True,
        import_timeout_s=5.0,
        allow_pickle=True,
        cache=str(tmp_path / "cache"),
        cache_bytes=2 << 30,
        deploy=str(tmp_path),
        deploy_workers=3,
        deploy_queue=9,
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tracker", "localhost:9190"], "--tracker needs --key"),
        (["--tracker", "host:nine", "--key", "k"], "nine"),
        (["--tracker", "nonsense", "--key", "k"], "nonsense"),
        (["--host", "10.0.0.7:9300", "--port", "9301"], "10.0.0.7:9300 has another port than 9301"),
        (["--host", "10.0.0.7:http"], "'10.0.0.7:http' is no address"),
        (["--lab", "/x"], "--lab is for a server of a tracker"),
        (["--http-port", "80", "--http-open", "10.0.0.5"], "--http-open needs --lab and --http-port"),
        (["--standing-key", "/x"], "--standing-key needs --key"),
        (
            ["--standing-key", "/x", "--key", "k", "--tracker", "t:1"],
            "--standing-key is for a server without a tracker",
        ),
        (["--custom-addr", "board.lab:http"], "'board.lab:http' is no address"),
        (["--key", "a b"], "no space, comma or bracket"),
        (["--load-library", "/no/such.so"], "there is no such file"),
        (["--load-library", "nowhere.so"], "there is no such file"),
        (["--label", "colour"], "labels look like"),
        (["--label", "cores>=4"], "--label 'cores>=4': labels look like os=linux; a name has no space, <, >, ! or ="),
        (["--label", "onnxruntime>=1.22=x"], "--label 'onnxruntime>=1.22=x': labels look like"),
        *((["--label", f"{name}=x"], "a name has no space") for name in ("a>b", "<b", "a b", "a ", " a", "a!b", "a=")),
        ([word for number in range(25) for word in ("--label", f"l{number}=x")], "25 labels; at most 24"),
        (["--tvm", "python", "--tvm-library", "/lib"], "--tvm-library is for --tvm ctypes"),
        (["--tvm-library", "/no/such/folder"], "there is no libtvm_ffi"),
        (["--cache-size", "2G"], "--cache-size needs --cache DIR"),
        (["--read-only", "--no-isolation"], "--read-only needs mounts"),
        (["--session-network", "none", "--no-isolation"], "--session-network none needs namespaces"),
        (["--cache", "/x", "--cache-size", "0"], "leave out --cache"),
        (["--cpus", "0-1"], "there is no CPU 1 here; this server may use 0, 2, 3, 8"),
        (["--cpus", "0,2"], "2 sets of CPUs for 1 slots"),
        (["--cpus", "0,0", "--slots", "2"], "CPU 0 is named twice"),
        (["--cpus", "3-2"], "'3-2' is no set of CPUs"),
        (["--cpus", "0,", "--slots", "2"], "'' is no set of CPUs"),
        (["--cpus", " 0"], "is no set of CPUs"),
        (["--cpus", "all"], "is no set of CPUs"),
        (["--through-proxy", "--key", "k"], "needs the proxy's address"),
        (["--through-proxy", "--key", "k", "--host", "h", "--port", "0"], "needs the proxy's address"),
        (["--through-proxy", "--host", "h"], "--through-proxy needs --key"),
        (["--through-proxy", "--key", "k", "--host", "h:x", "--port", "1"], "HOST:PORT"),
        (["--through-proxy", "--key", "k", "--host", "h:9", "--host", "h", "--port", "9"], "given twice"),
        (["--through-proxy", "--key", "k", "--host", "h:9", "--custom-addr", "h:80"], "give the port of a proxy at"),
        (["--deploy-workers", "2"], "need --deploy DIR"),
        (["--deploy-queue", "2"], "need --deploy DIR"),
    ],
)
def test_an_invalid_flag_is_one_line(flags, words, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 3, 8})
    with pytest.raises(ConfigError, match=words) as caught:
        parse(flags)
    assert "\n" not in str(caught.value)


def test_through_proxies():
    flags = ["--through-proxy", "--key", "k", "--port", "9091", "--tracker", "ignored:1"]
    config = parse([*flags, "--host", "a", "--host", "b:7", "--host", "[::1]:8"])
    assert config.proxies == (("a", 9091), ("b", 7), ("::1", 8))
    assert config.host == "0.0.0.0"
    assert config.tracker is None  # the proxies' tracker is used, as with TVM's server
    assert parse([*flags, "--host", "a", "--health-check", "true"]).health_check == "true"


@pytest.mark.parametrize(
    "flags",
    [
        ["--slots", "0"],
        ["--slots", "many"],
        ["--port", "70000"],
        ["--grace", "nan"],
        ["--session-memory", "lots"],
        ["--cache", "/x", "--cache-size", "much"],
        ["--cache", "/dev/null/cache", "--port", "0", "--preload", "none"],
        ["--session-memory", "1M"],
        ["--session-memory", "512MB"],
        ["--import", "tests.server.sleeper", "--port", "0", "--preload", "none", "--import-timeout", "0.5"],
        [
            *["--import", "tests.server.sleeper", "--port", "0", "--preload", "none"],
            *["--import-timeout", "0.5", "--no-fork"],
        ],
        ["--tvm", "java"],
        ["--nonsense"],
        ["--tracker", "h:1"],
        ["--http-port", "70000"],
        ["--log-format", "xml"],
        ["--preload", "no_such_module_at_all", "--port", "0"],
        ["--import", "no_such_module_at_all", "--port", "0", "--no-fork", "--preload", "none"],
    ],
)
def test_an_invalid_command_prints_one_line_and_exits_with_2(flags):
    done = subprocess.run(
        [sys.executable, "-m", "rpcsys.server", "--host", "127.0.0.1", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("python3 -m rpcsys.server: error: ")


@pytest.mark.parametrize(
    ("text", "slots", "cpus"),
    [("0", 1, ((0,),)), ("2-3", 1, ((2, 3),)), ("0,2-3,8", 3, ((0,), (2, 3), (8,))), ("0+2,3+8", 2, ((0, 2), (3, 8)))],
)
def test_the_cpus_of_each_slot(text, slots, cpus, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 3, 8})
    assert parse(["--tvm", "off", "--slots", str(slots), "--cpus", text]).cpus == cpus


@pytest.mark.parametrize(
    ("text", "size"), [("33554432", 32 << 20), ("65536k", 64 << 20), ("512M", 512 << 20), ("2g", 2 << 30)]
)
def test_sizes(text, size):
    assert parse(["--tvm", "off", "--session-memory", text]).session_memory == size


def test_how_tvms_clients_are_served(monkeypatch, tmp_path):
    """As the flag sets it; by default the package, else the libraries, else off."""
    from rpcsys.server import config

    for name in ("libtvm_ffi.so", "libtvm_runtime.so"):
        (tmp_path / name).touch()
    monkeypatch.setattr(library._Loaded, "runtime", False)  # an earlier test may have loaded it
    found = library.Paths("libtvm_ffi.so", "libtvm_runtime.so")
    assert parse(["--tvm-library", str(tmp_path)]).tvm == "ctypes"
    for package, libraries, served in [(True, found, "python"), (False, found, "ctypes"), (False, None, "off")]:
        monkeypatch.setattr(config, "installed", lambda name, package=package: package)
        monkeypatch.setattr(library, "find", lambda folder=None, libraries=libraries: libraries)
        library.use(None)  # clears the cached result
        assert parse([]).tvm == served
    with pytest.raises(ConfigError, match="--tvm-library DIR"):
        parse(["--tvm", "ctypes"])
    monkeypatch.setattr(config, "installed", lambda name: True)
    assert parse([]).tvm_apart
    assert "tvm" not in " ".join(parse([]).preload)
    assert not any(parse(["--preload", names]).tvm_apart for names in ("none", "numpy,tvm"))
    (tmp_path / "libtvm_runtime.so").unlink()
    monkeypatch.undo()
    library.use(None)
    with pytest.raises(ConfigError, match="there is no libtvm_runtime"):
        parse(["--tvm-library", str(tmp_path)])


def test_admitted_networks_are_parsed():
    assert parse([]).admit == ()
    assert parse(["--admit", "203.0.113.0/24,2001:db8::1"]).admit == ("203.0.113.0/24", "2001:db8::1")


def test_the_users_of_sessions(tmp_path, monkeypatch):
    plain = ["--tvm", "off", "--preload", "none"]
    lab = [*plain, "--lab", str(tmp_path / "lab.json"), "--tracker", "h:1", "--key", "k"]
    assert parse(plain).session_user == "none"
    assert parse([*plain, "--session-user", "auto", "--session-groups", "video,gpio"]).session_groups == (
        "video",
        "gpio",
    )
    for user, default in ((0, "auto"), (1000, "none")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert parse(lab).session_user == default
        assert parse([*lab, "--session-user", "none"]).session_user == "none"


def test_a_library_by_name_is_beside_tvms(tmp_path, monkeypatch):
    there, here = tmp_path / "lib", tmp_path / "here"
    for folder, names in ((there, ("libtvm_ffi.so", "libtvm_runtime.so", "both.so", "there.so")), (here, ("both.so",))):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    monkeypatch.chdir(here)
    flags = ("--tvm", "ctypes", "--tvm-library", str(there), "--load-library", "both.so:there.so")
    assert parse(flags).load_library == (str(here / "both.so"), str(there / "there.so"))
