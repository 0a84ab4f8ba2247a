"""What all daemons have in common."""

import argparse
import functools
import json
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from rpcsys import logs, serve
from rpcsys.errors import ConfigError, PortRangeError, TrackerUnreachable


def run_python(code, *arguments, **popen):
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen
    )


# --- flags -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (serve.port_end, "65536", 65536),
        (serve.port_end, "65537", None),
        (serve.port_end, "0", None),
        (serve.port_end, "", None),
        (serve.not_empty, "x", "x"),
        (serve.not_empty, "", None),
        (serve.seconds, "1.5", 1.5),
        (serve.seconds, "0", 0.0),
        *[(serve.seconds, text, None) for text in ("", "-1", "nan", "inf", "1e9", "soon")],
        (serve.number_of("calls"), "99999999", 99_999_999),
        *[(serve.number_of("calls"), text, None) for text in ("", "0", "-1", "1.5", "100000000", "٣")],
        (serve.address, "[::1]:9190", ("::1", 9190)),
        *[(serve.address, text, None) for text in ("", "lab", "lab:0", ":9190", "lab:65536")],
    ],
)
def test_values_of_flags(parse, text, value):
    if value is not None:
        assert parse(text) == value
        return
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)


# --- bind --------------------------------------------------------------------------------------


def test_bind_takes_any_port_for_0():
    with serve.bind("127.0.0.1", 0, 0) as listener:
        host, port = listener.getsockname()
        assert (host, port > 0) == ("127.0.0.1", True)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_bind_takes_the_first_free_port():
    with serve.bind("127.0.0.1", 0, 0) as taken:
        port = taken.getsockname()[1]
        with serve.bind("127.0.0.1", port, port + 50) as listener:
            assert port < listener.getsockname()[1] < port + 50


def test_bind_reports_a_full_range():
    with serve.bind("127.0.0.1", 0, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortRangeError, match=f"no free port in \\[{port}, {port + 1}\\)") as caught:
            serve.bind("127.0.0.1", port, port + 1)
        assert caught.value.exit_status == 3


def test_bind_tries_no_port_above_the_last():
    with serve.bind("127.0.0.1", 65535, 65536), pytest.raises(PortRangeError, match="65536"):
        serve.bind("127.0.0.1", 65535, 70000)


def test_bind_names_the_flag_to_change():
    with serve.bind("127.0.0.1", 0, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortRangeError, match=r"give another --http-port$"):
            serve.bind("127.0.0.1", port, port + 1, "--http-port")


@pytest.mark.parametrize(
    ("host", "port", "port_end"), [("127.0.0.1", 9000, 9000), ("203.0.113.1", 0, 0), ("no-such-host.invalid", 0, 0)]
)
def test_bind_reports_an_invalid_address_in_one_line(host, port, port_end):
    with pytest.raises(ConfigError) as caught:
        serve.bind(host, port, port_end)
    assert "\n" not in str(caught.value)


def test_bind_takes_names_and_ipv6():
    with serve.bind("localhost", 0, 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    if socket.has_ipv6:
        try:
            with serve.bind("::1", 0, 0) as listener:
                assert listener.family == socket.AF_INET6
        except ConfigError:
            pytest.skip("this machine has no IPv6")


# --- the ready line, errors, logs --------------------------------------------------------------


def test_the_ready_line_is_one_line_of_json(capsys):
    serve.announce("tracker", "0.0.0.0", 9190)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    line = json.loads(out)
    assert line.pop("version")
    assert line == {
        "ready": "tracker",
        "host": "0.0.0.0",
        "port": 9190,
        "http_port": None,
        "web_port": None,
        "pid": os.getpid(),
    }


def test_a_daemon_serves_even_if_its_output_is_closed():
    code = "import sys; from rpcsys import serve; sys.stdin.read(); serve.announce('x', 'h', 1); sys.exit(7)"
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    os.close(reader)
    _, stderr = process.communicate("", timeout=60)
    assert (process.returncode, stderr) == (7, "")


@pytest.mark.parametrize(
    ("error", "status"), [(PortRangeError("no\nport"), 3), (ConfigError("bad"), 2), (TrackerUnreachable("x"), 1)]
)
def test_our_errors_are_one_line_and_a_status(capsys, error, status):
    def main():
        raise error

    assert serve.run(main, "rpcsys-tracker") == status
    err = capsys.readouterr().err
    assert err.startswith("rpcsys-tracker: error: ")
    assert err.count("\n") == 1


def test_other_outcomes_have_their_status(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert serve.run(lambda: 0, "x") == 0
    assert serve.run(interrupted, "x") == 130
    with pytest.raises(ZeroDivisionError):
        serve.run(lambda: 1 // 0, "x")


def test_wrong_flags_are_one_line_and_status_2(capsys, monkeypatch):
    monkeypatch.setattr(serve, "_TYPED", "rpcsys tracker")
    parser = serve.Parser("rpcsys-tracker")
    parser.add_argument("--port", type=serve.port_number)
    assert parser.parse_args(["--port", "65535"]).port == 65535
    for arguments in (["--port", "x"], ["--port", "65536"], ["--port", "-1"], ["--port"], ["--nonsense"]):
        assert serve.run(functools.partial(parser.parse_args, arguments), "rpcsys-tracker") == 2
        err = capsys.readouterr().err
        assert err.startswith("rpcsys tracker: error: ")
        assert err.endswith("(see rpcsys tracker --help)\n")
        assert err.count("\n") == 1


def test_a_command_line_is_named_as_it_was_typed_and_no_child_has_it(tmp_path):
    code = "import os; from rpcsys import serve; print(serve.Parser('x').prog, os.environ.get('RPCSYS_COMMAND'))"
    for environment, name in (({"RPCSYS_COMMAND": "rpcsys proxy"}, "rpcsys proxy"), ({}, "x")):
        process = run_python(code, env={**os.environ, **environment})
        assert process.communicate(timeout=60) == (f"{name} None\n", "")


def test_logs_go_to_standard_error():
    code = (
        "import logging, sys; from rpcsys import logs; logs.setup('100%', silent='silent' in sys.argv)\n"
        "logging.info('news %s', 1); logging.warning('bad \\ud800 news')"
    )
    for arguments, lines in ([], 2), (["silent"], 1):
        out, err = run_python(code, *arguments).communicate(timeout=60)
        assert out == ""
        assert len(err.splitlines()) == lines
        assert "100% WARNING bad" in err


def test_setup_logging_leaves_the_root_logger_usable():
    before = logging.getLogger().handlers[:]
    logs.setup("x")
    logging.getLogger().handlers[:] = before


# --- signals -----------------------------------------------------------------------------------

WAIT_SELECTORS = """
import selectors, sys
from rpcsys.serve import Signals
signals = Signals()
assert not signals.received()
selector = selectors.DefaultSelector()
selector.register(signals, selectors.EVENT_READ)
print("waiting", flush=True)
selector.select(60)
assert signals.received() and not signals.received()
signals.close()
sys.exit(5)
"""

WAIT_ASYNCIO = """
import asyncio, sys
from rpcsys.daemon import loop
from rpcsys.serve import Signals
async def main():
    signals = Signals()
    print("waiting", flush=True)
    await asyncio.wait_for(loop.until_signal(signals, asyncio.Event()), 60)
    signals.close()
    return 5
sys.exit(loop.run(main()))
"""

WAIT_PLAIN_ASYNCIO = "import sys; sys.modules['uvloop'] = None\n" + WAIT_ASYNCIO


@pytest.mark.parametrize(
    "code", [WAIT_SELECTORS, WAIT_ASYNCIO, WAIT_PLAIN_ASYNCIO], ids=["selectors", "uvloop", "asyncio"]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_loop(code, number):
    process = run_python(code)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (5, "")


#: Each child waits for one signal, which its parent sends at about the moment when it begins to wait.
SIGNAL_AT_THE_WAIT = """
import os, random, select, signal, sys, time
from rpcsys.serve import Signals
for _ in range(500):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        signals = Signals()
        os.write(writing, b".")
        came = select.select([signals], [], [], 20)[0]
        os._exit(0 if came and signals.received() else 1)
    os.read(reading, 1)
    os.close(reading), os.close(writing)
    at = time.perf_counter() + random.random() * 3e-5
    while time.perf_counter() < at:
        pass
    os.kill(pid, signal.SIGTERM)
    if os.waitpid(pid, 0)[1]:
        sys.exit("a signal did not wake select")
"""


def test_a_signal_right_before_the_wait_ends_it():
    process = run_python(SIGNAL_AT_THE_WAIT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")


# --- service managers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "every"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_is_notified_at_the_requested_rate(environment, every, monkeypatch):
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sent = []
    monkeypatch.setattr(serve, "notify", sent.append)
    watchdog = serve.Watchdog()
    assert watchdog.every == every
    for now in (100.0, 109.9, 110.0, 111.0):
        watchdog.look(now)
    assert sent == ([] if every is None else ["WATCHDOG=1"] * 2)
    assert watchdog.due() == (None if every is None else 120.0)


@pytest.mark.parametrize(("module", "number"), [("rpcsys.server", 10), ("rpcsys.tracker", 14)])
def test_too_few_descriptors_are_one_line(module, number):
    command = [
        "sh",
        "-c",
        'ulimit -n "$0"; exec "$@"',
        f"{number}",
        sys.executable,
        "-m",
        module,
        "--host",
        "127.0.0.1",
    ]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"python3 -m {module}: error: ")
    assert "open files" in done.stderr
    assert "Traceback" not in done.stderr
