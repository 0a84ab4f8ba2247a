"""A lab with a recording relay on every line, and a day's work in it. The lab is closed, or open to everybody."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import rpcsys
from rpcsys.link import credential, identity
from rpcsys.link.link import Link
from rpcsys.wire import tokens
from tests.live import invariant
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_free, wait_until
from tests.live.lab_site import KEEPER, UNAUTHORIZED, LabSite
from tests.live.recording_relay import Recorded, recording
from tests.live.secret_search import Secrets

KEY, BEHIND = "rpi4", "jetson"
USER = "bo"


class RecordedLab(LabSite):
    """The tracker, a proxy, a board, one behind the proxy, and a desk with ``rpcsys connect``.

    ``lines``: the relays before the tracker, the proxy and the board. ``markers``: what a day's work says on them.
    ``secrets``: what nobody but its holder may know; ``shown``: what people were shown.
    ``used``: match keys.
    """

    def __init__(
        self, folder: Path, daemons: Daemons, lines: tuple[Recorded, Recorded, Recorded], closed: bool
    ) -> None:
        super().__init__(folder, daemons)
        self.closed, self.lines = closed, lines
        self.markers, self.secrets = Secrets(), Secrets()
        self.shown: list[str] = []
        self.used: list[str] = []
        self.ports = {name: free_port() for name in ("tracker", "board", "proxy")}
        self.daemons_by_name: dict[str, Daemon] = {}

    @property
    def where(self) -> str:
        return self.lines[0].where

    def open_up(self) -> None:
        """Make the lab, and start all of it."""
        to_tracker, to_proxy, to_board = self.lines
        of_board, of_other, of_proxy = (self._enrolled(*words) for words in (
            ("--board", "b1", "--key", KEY), ("--board", "b2", "--key", BEHIND), ("--proxy", "gate"),
        ))  # fmt: skip
        started = self.daemons_by_name
        through = ("--tracker", to_tracker.where)
        http = {name: ("--http-port", str(port)) for name, port in self.ports.items()}
        started["proxy"] = self.daemons.proxy(*through, *of_proxy, *http["proxy"], "--custom-addr", to_proxy.where)
        to_proxy.server = started["proxy"].address
        common = ("--allow-pickle", "--import", "tests.live.lab_functions", "--cache", str(self.folder / "cache"))
        own = free_port()
        to_board.server = ("127.0.0.1", own)
        modules = ("--deploy", str(self.folder / "deployed"))
        reached = (*through, "--custom-addr", to_board.where, "--name", "b1", *modules, *http["board"])
        started["board"] = self.daemons.reach("b1", "ours", "--key", KEY, *common, *reached, *of_board, port=own)
        behind = ("--through-proxy", "--name", "b2", "--key", BEHIND, "--tvm", "off", *common, *of_other)
        started["behind"] = self.daemons.reach("b2", "ours", *behind, port=to_proxy.address[1])
        for key in (KEY, BEHIND):
            wait_free(self.tracker, key, 1, START_S)
        for daemon in started.values():
            invariant.running.idle(daemon.pid)  # the relays hide which connections are between daemons

    def start(self, **popen: Any) -> Daemon:
        flags = ("--state-dir", str(self.folder / "state"), "--http-port", str(self.ports["tracker"]))
        if self.closed:
            self.note_keeper()
            self.tracker = self.daemons.lab_tracker("--lab", str(self.path), *flags, port=self.port)
        else:
            self.tracker = self.daemons.tracker(*flags, port=self.port)
        self.daemons_by_name["tracker"] = self.tracker
        return self.tracker

    def _enrolled(self, *words: str) -> tuple[str, ...]:
        """The flags of a board or a proxy for its credential."""
        if not self.closed:
            return ()
        path = self.folder / f"{words[1]}.json"
        self.run(KEEPER, "lab", "enrol", *words, "--out", str(path))
        self.keep(words[1], credential.read(str(path)))
        return ("--lab", str(path))

    def keep(self, name: str, held: credential.Credential) -> None:
        """Note the secrets of a credential."""
        for token in filter(None, (held.token, held.next_token)):
            secret = tokens.parse(token).secret
            self.secrets.add(f"token of {name}", secret)
            self.secrets.add(f"token of {name}", base64.urlsafe_b64decode(secret + "=="))

    def keep_invitation(self, name: str, line: str) -> None:
        data = line.strip().partition(":")[2]
        self.secrets.add(f"invitation of {name}", data)
        self.secrets.add(f"invitation's secret of {name}", json.loads(base64.urlsafe_b64decode(data + "=="))["s"])

    def keep_keys(self) -> None:
        """Note the lab's private keys."""
        for path in self.path.glob("*.pem"):
            self.secrets.add(path.name, identity.parse(path.read_text()).seed)

    def marker(self, name: str) -> bytes:
        """Bytes that a day's work says once, somewhere."""
        made = f"<{name} {os.urandom(12).hex()}>".encode()
        self.markers.add(name, made)
        return made


@contextlib.contextmanager
def recorded_lab(folder: Path, daemons: Daemons, *, closed: bool) -> Iterator[RecordedLab]:
    """A lab that runs, with its desk's credential in use."""
    with recording() as to_tracker, recording() as to_proxy, recording() as to_board:
        lab = RecordedLab(folder, daemons, (to_tracker, to_proxy, to_board), closed)
        to_tracker.server = ("127.0.0.1", lab.port)
        if closed:
            lab.init()
            with (lab.path / "policy.toml").open("a") as rules:
                rules.write('[page]\nopen = ["127.0.0.0/8"]\n')
        lab.start()
        lab.open_up()
        yield lab


# A day's work


def work(lab: RecordedLab) -> None:
    """All that people do in a lab."""
    with contextlib.ExitStack() as desk:
        if lab.closed:
            line = lab.invite(USER)
            lab.keep_invitation(USER, line)
            lab.run(USER, "login", typed=line)
            lab.keep(USER, lab.credential(USER))
            credential.use(str(lab.place(USER)))
            desk.callback(credential.use_no_more, str(lab.place(USER)))
        tracker = desk.enter_context(rpcsys.connect_tracker(lab.where))
        for key in (KEY, BEHIND):
            with tracker.request(key, wait_timeout=START_S) as session:
                use(lab, key, session)
        call_module(lab, tracker)
        tvm(lab)
        look_on(lab)
        if lab.closed:
            fail(lab)
            change_keys(lab)


def use(lab: RecordedLab, key: str, session: rpcsys.Session) -> None:
    """Arrays, text, files, functions and models."""
    if lab.closed:
        lab.used.append(session.lease["matchkey"])
        lab.secrets.add(f"match key of {key}", lab.used[-1].rpartition("-")[2])
    echo = session.get_function("testing.echo")
    sent = np.frombuffer(lab.marker(f"array of {key}") * 1000, "u1")
    assert (echo(sent) == sent).all()
    text = lab.marker(f"text of {key}").decode()
    assert echo(text) == text
    data = lab.marker(f"file of {key}")
    session.upload(data, "file.bin")
    assert session.download("file.bin") == data
    code = lab.marker(f"function of {key}")

    def function(more: bytes) -> int:
        print(code.decode())
        return len(code + more)

    function.__module__ = "__main__"
    assert session.run(function, b"x") == len(code) + 1
    weights = np.random.default_rng().standard_normal(2048, "f4")
    lab.markers.add_large(f"model of {key}", weights.tobytes())
    session.upload(model(weights), "model.onnx")
    assert session.load_module("model.onnx").inputs


def call_module(lab: RecordedLab, tracker: rpcsys.client.Tracker) -> None:
    """A module is deployed, and called by two of its clients."""
    weights = np.random.default_rng().standard_normal(2048, "f4")
    lab.markers.add_large("model of a deployment", weights.tobytes())
    path = lab.folder / "head.onnx"
    path.write_bytes(model(weights))
    lab.run(KEEPER, "deploy", str(path), "--to", "b1", "--tracker", lab.where)
    for place in tracker.places("head") * 2:
        if lab.closed:
            lab.secrets.add("match key of a module", place.key.rpartition("-")[2])
        with rpcsys.connect(*place, serve="head") as head:
            sent = np.frombuffer(lab.marker("array of a call") * 1000, "f4")[:2048]
            assert (head(sent) == sent + weights).all()


def model(weights: np.ndarray) -> bytes:
    """A model in ONNX's format."""
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2048]) for name in "xy"]
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([add], "g", info[:1], info[1:], [onnx.numpy_helper.from_array(weights, "w")])
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


#: TVM's client holds the interpreter's lock while it waits, and this process has the relays.
TVM = """
import sys
import numpy as np
from tvm import rpc, runtime
host, port, key, text, data = sys.stdin.read().split("\\n")
remote = rpc.connect_tracker(host, int(port)).request(key, session_timeout=60)
sent = np.frombuffer(text.encode() * 100, "u1")
assert (runtime.tensor(sent, remote.cpu(0)).numpy() == sent).all()
remote.upload(bytearray(data.encode()), "tvm.bin")
assert bytes(remote.download("tvm.bin")) == data.encode()
"""


def tvm(lab: RecordedLab) -> None:
    """TVM's client, in a closed lab behind ``rpcsys connect``."""
    host, port = lab.lines[0].address
    if lab.closed:
        command = (sys.executable, "-m", "rpcsys.forward", "--listen", "127.0.0.1:0", "--tracker", lab.where)
        desk = lab.daemons.launch("connect", command, env=lab.environment(USER))
        desk.await_ready_line()
        lab.daemons_by_name["connect"] = desk
        host, port = desk.address
    said = [lab.marker(f"{what} of TVM").decode() for what in ("array", "file")]
    typed = "\n".join([host, str(port), KEY, *said])
    done = subprocess.run([sys.executable, "-c", TVM], input=typed, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    wait_free(lab.tracker, KEY, 1, START_S)


def look_on(lab: RecordedLab) -> None:
    """What is shown to people."""
    for words in (["query", "--json"], ["query", "history", "--json"], ["query", "usage"]):
        lab.shown.append(lab.run(USER, *words, "--tracker", lab.where))


def fail(lab: RecordedLab) -> None:
    """What is refused, and the text of each error."""
    used, other = lab.used
    board, gate = lab.lines[2].address, lab.lines[1].address
    held = lab.credential(USER)
    invitation = lab.invite("cy")
    lab.keep_invitation("cy", invitation)
    lab.run("cy", "login", typed=invitation)
    revoked = lab.credential("cy")
    lab.keep("cy", revoked)
    lab.run(KEEPER, "lab", "revoke", "cy")
    for attempt in (
        lambda: rpcsys.connect(*board, key=used),
        lambda: rpcsys.connect(*board, key=used[:-1]),
        lambda: rpcsys.connect(*board, key=f"{used} "),
        lambda: rpcsys.connect(*gate, key=other, timeout=3),
        lambda: rpcsys.connect(*lab.lines[0].address, key=used),
        lambda: Link.open(lab.where, credential=revoked),
        lambda: Link.open(board, credential=held),
        lambda: Link.open(lab.where, credential=held._replace(pins=(f"sha256:{'0' * 64}",) * 2)),
        lambda: credential.parse(held.text()[:-30], "it"),
        lambda: tokens.parse(held.token[:-1]),
        lambda: tokens.parse_invitation(invitation.strip()[:-1]),
    ):
        try:
            attempt()
        except Exception as error:
            lab.shown += [traceback.format_exc(), repr(error), str(vars(error))]
        else:
            raise AssertionError("it was not refused")
    lab.shown.append(lab.run("cy", "whoami", status=UNAUTHORIZED))
    lab.shown.append(lab.run("dan", "login", typed=invitation, status=UNAUTHORIZED))
    lab.shown.append(lab.run("dan", "login", typed=invitation[:-9], status=2))


def change_keys(lab: RecordedLab) -> None:
    """New tokens, and new keys of the tracker."""
    before = lab.credential(USER)
    lab.run(KEEPER, "lab", "renew", USER)

    def renewed() -> bool:
        lab.who(USER)
        held = lab.credential(USER)
        lab.keep(USER, held)
        return held.token != before.token and not held.next_token

    wait_until(renewed, START_S, "the desk has a new token")
    lab.keep_keys()
    lab.run(KEEPER, "lab", "rotate")
    lab.keep_keys()

    def followed() -> bool:
        lab.who(USER)
        return lab.credential(USER).pins != before.pins

    wait_until(followed, START_S, "the desk follows")
    for name in ("proxy", "board", "behind"):
        log = lab.daemons_by_name[name].stderr
        wait_until(lambda log=log: log().count("registered with the tracker") > 1, START_S, f"{name} is back")
    for key in (KEY, BEHIND):
        wait_free(lab.tracker, key, 1, START_S)
