"""Programs and ports of a session: the calls that begin them, and frames that no client sends."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.errors import ExecNotAllowed, ProgramError, ProgramNotFound, RemoteArgumentError
from rpcsys.server.session.exec_calls import MAX_PROGRAMS, MODELS_ONLY, NOT_ALLOWED, refusal
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.byte_streams import OPS
from tests.device import Device


@pytest.fixture(scope="module")
def device(speedups):
    with Device(allow_exec=True) as device:
        yield device


@pytest.fixture(scope="module")
def session(device):
    with device.session() as session:
        yield session


def test_who_may_run_programs():
    assert refusal({"allow_exec": True}) == ""
    assert refusal({}) == NOT_ALLOWED
    assert refusal({"allow_exec": True, "models_only": True}) == MODELS_ONLY


def test_a_program_has_its_streams_folder_environment_and_status(session):
    session.upload(b"uploaded", "file")
    script = "cat; cat file; echo $NAME >&2; exit 7"
    ended = session.exec(["sh", "-c", script], stdin=b"input ", env={"NAME": "value"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, b"input uploaded", b"value\n")
    assert session.exec(["pwd"], cwd="/").stdout == b"/\n"


@pytest.mark.parametrize(
    ("argv", "more", "kind"),
    [
        (["no-such-program"], {}, ProgramNotFound),
        (["/etc/passwd"], {}, ProgramError),
        (["true"], {"cwd": "no-such-folder"}, ProgramError),
        (["a\0b"], {}, ProgramError),
    ],
)
def test_what_cannot_be_started_is_one_line(session, argv, more, kind):
    with pytest.raises(kind) as raised:
        session.exec(argv, **more)
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("session.exec", (1, [], {})),
        ("session.exec", (1, [1], {})),
        ("session.exec", (0, ["true"], {})),
        ("session.exec", (1, ["true"], {"size": [0, 80]})),
        ("session.exec", (1, ["true"], {"environment": {"a": 1}})),
        ("session.exec", (1, ["true"], {"environment": []})),
        ("session.forward", (1, 0, 0)),
        ("session.forward", (1, 65536, 1)),
    ],
)
def test_wrong_arguments_are_refused(session, name, args):
    with pytest.raises(RemoteArgumentError):
        session._builtin(name, *args)


def test_a_session_has_a_limit_of_programs(session):
    running = [session.popen(["cat"]) for _ in range(MAX_PROGRAMS)]
    with pytest.raises(ProgramError, match=f"{MAX_PROGRAMS} programs already"):
        session.popen(["cat"])
    for process in running:
        process.stdin.close()
    for process in running:
        assert process.wait(30) == 0
    assert session.exec(["true"]).returncode == 0


HEADS = st.dictionaries(
    st.sampled_from(("op", "s", "amount", "rows", "columns", "why")),
    st.sampled_from(OPS) | st.integers(-2, 1 << 60) | st.text(max_size=3) | st.none(),
)


@settings(max_examples=10)  # a process for each
@given(st.lists(st.tuples(HEADS, st.binary(max_size=64)), max_size=20))
def test_malformed_frames_end_the_session_with_a_clear_error(came):
    with Device(allow_exec=True) as device:
        raw = device.opened()
        raw.send(frames.HELLO, 0, {"version": 1})
        raw.call(1, "session.exec", 9, ["cat"], {})
        for fields, body in came:
            with contextlib.suppress(Ended):
                raw.send(frames.CHUNK, 9, fields, body)
        with contextlib.suppress(Ended):
            raw.call(2, "testing.nop")
        while (frame := raw.receive()).kind != frames.ERROR and frame.call_id != 2:
            pass
        if frame.kind == frames.ERROR:
            assert (frame.call_id, frame.get("type")) == (0, "ProtocolError")
            assert "\n" not in frame.get("message")


def test_without_the_flag_nothing_is_started():
    with Device() as device, device.session() as session:
        with pytest.raises(ExecNotAllowed, match="--allow-exec"):
            session.exec(["true"])
        with pytest.raises(ExecNotAllowed, match="--allow-exec"):
            session.forward(80)
