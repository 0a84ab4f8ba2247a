"""What a client does where it is not traced: nothing is imported, and a call checks one attribute."""

from __future__ import annotations

import os
import subprocess
import sys

from rpcsys.client.calls import Channel, PendingCall
from rpcsys.client.spans import SpanRecorder


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if name != "RPCSYS_TRACING"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**given, **env}, capture_output=True, text=True, timeout=60)


def test_nothing_is_imported_before_tracing_is_on() -> None:
    code = (
        "import sys, rpcsys\n"
        "import rpcsys.aio, rpcsys.client.connection\n"
        "recorder = rpcsys.client.spans.recorder()\n"
        "with recorder.span('lease', {}): pass\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'rpcsys.tracing'))])\n"
    )
    assert run(code).stdout == "[]\n"


def test_without_opentelemetry_one_line_says_what_to_type() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import rpcsys, rpcsys.client.spans\n"
        "for turn_on in (rpcsys.client.spans.recorder, rpcsys.tracing.enable):\n"
        "    try: turn_on()\n"
        "    except rpcsys.errors.ConfigError as error: print(error)\n"
    )
    line = "tracing needs OpenTelemetry; type: pip install 'rpcsys[otel]'\n"
    assert run(code, RPCSYS_TRACING="1").stdout == 2 * line


def test_a_call_checks_one_attribute() -> None:
    class Checked(PendingCall):
        checks = 0

        @property
        def span(self) -> None:  # type: ignore[override]
            self.checks += 1

    call = Checked()
    call.complete(None)
    assert (call.answered, call.checks) == (True, 1)
    assert not Channel.traced


def test_what_records_nothing() -> None:
    recorder = SpanRecorder()
    future = object()
    with recorder.span("lease", {}), recorder.of_future("frame", {}, future).inside("stage"):
        assert recorder.bound(len) is len
