"""The allowed imports, as data. An arrow may skip downwards; nothing else is allowed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rpcsys"

EVERYTHING = "*"

#: What each part imports directly. A dotted name is a part within a part, with rules of its own.
ARROWS: dict[str, tuple[str, ...]] = {
    "__main__": (EVERYTHING,),
    "cli": (EVERYTHING,),
    "lab": (EVERYTHING,),
    "local_daemons": ("errors",),
    "secure_lab": (EVERYTHING,),
    "query": ("client",),
    "pytest_plugin": (EVERYTHING,),
    "measure": ("client", "graph.samples", "intervals", "module"),
    "aio": ("client",),
    "tracing": ("client",),
    "graph": ("graph._plan",),
    # The topics of graph, from the top down.
    "graph._plan": ("graph._pipeline", "graph._show", "graph.samples"),
    "graph._pipeline": ("graph._build",),
    "graph._build": ("graph._ir", "client", "module.kinds.remote"),
    "graph._show": ("graph._cut",),
    "graph._cut": ("graph._ir",),
    "graph._ir": ("module", "notebook"),
    "graph.samples": ("wire",),
    "tracker": ("daemon", "result_store", "tracker.state", "tracker.sites.state"),
    # What decides about other sites.
    "tracker.sites.state": ("wire",),
    # The tracker's state, without sockets and files. From the top down.
    "tracker.state": ("tracker.servers", "tracker.restore"),
    "tracker.servers": ("tracker.peers", "tracker.heartbeats", "tracker.admissions", "tracker.canaries"),
    "tracker.admissions": ("tracker.views", "tracker.permissions"),
    "tracker.restore": ("tracker.requests", "tracker.leases", "tracker.canaries"),
    "tracker.canaries": ("tracker.health",),
    "tracker.peers": ("tracker.requests", "tracker.leases"),
    "tracker.heartbeats": ("tracker.leases",),
    "tracker.leases": ("tracker.health", "tracker.permissions"),
    "tracker.health": ("tracker.scheduler",),
    "tracker.requests": ("tracker.scheduler", "tracker.views", "tracker.permissions"),
    "tracker.permissions": ("tracker.records",),
    "tracker.scheduler": ("tracker.records", "tracker.permissions"),
    # The views of its records.
    "tracker.views": ("tracker.records", "tracker.permissions", "daemon"),
    # The records.
    "tracker.records": ("tracker.settling", "tracker.quotas", "tracker.board_speed"),
    # What canaries say of a board, and of a board among its siblings.
    "tracker.board_speed": ("tracker.siblings", "wire"),
    "tracker.siblings": ("tracker.speed",),
    "tracker.speed": ("wire",),
    "tracker.settling": ("tracker.matching",),
    "tracker.matching": ("tracker.entities", "tracker.shares"),
    "tracker.quotas": ("tracker.entities",),
    "tracker.entities": ("tracker.labels", "tracker.transitions", "tracker.addresses", "tracker.events"),
    "tracker.labels": ("tracker.versions", "wire"),
    "tracker.versions": (),
    "tracker.transitions": (),
    "tracker.addresses": (),
    "tracker.shares": (),
    "tracker.events": ("tracker.lab_view", "wire"),
    "tracker.lab_view": ("tracker.access", "wire"),
    "tracker.access": (),
    "proxy": ("daemon",),
    "forward": ("daemon", "client"),
    "gateway": ("daemon", "client", "module", "gateway.state"),
    # The gateway's state, without sockets. From the top down.
    "gateway.state": ("gateway.models",),
    "gateway.models": (
        *("gateway.places", "gateway.pools", "gateway.describing"),
        *("gateway.turns", "gateway.deadlines", "gateway.statistics"),
    ),
    "gateway.places": ("gateway.replicas",),
    "gateway.pools": ("gateway.replicas",),
    "gateway.describing": ("gateway.replicas", "gateway.batching"),
    "gateway.replicas": ("gateway.actions",),
    "gateway.actions": ("gateway.settings",),
    "gateway.settings": ("gateway.calls",),
    **dict.fromkeys(("gateway.batching", "gateway.turns", "gateway.deadlines"), ("gateway.calls",)),
    "gateway.calls": ("wire",),
    "gateway.statistics": (),
    "daemon": ("serve",),
    "server": ("server.supervisor", "server.sandbox.zygote"),
    # The programs of a server: supervisor, zygote, and the programs of children.
    "server.supervisor": ("server.config", "server.supervisor.state"),
    # The server's state, without sockets and files. From the top down.
    "server.supervisor.state": ("server.supervisor.admission", "server.supervisor.pinning"),
    "server.supervisor.pinning": ("server.supervisor.slots",),
    "server.supervisor.admission": ("server.supervisor.tracker", "server.supervisor.fronts"),
    "server.supervisor.fronts": ("server.supervisor.parking", "server.supervisor.process_table"),
    "server.supervisor.tracker": (
        "server.supervisor.slots",
        "server.supervisor.offers",
        "server.supervisor.health",
        "server.supervisor.deployments",
        "server.supervisor.admitted",
        "server.supervisor.canary_runs",
    ),
    "server.supervisor.canary_runs": ("server.supervisor.process_table",),
    "server.supervisor.deployments": ("server.supervisor.model_hosts",),
    "server.supervisor.model_hosts": ("server.supervisor.process_table",),
    "server.supervisor.slots": ("server.supervisor.process_table", "server.supervisor.session_record"),
    "server.supervisor.session_record": ("server.supervisor.parking",),
    "server.supervisor.parking": ("server.supervisor.records",),
    "server.supervisor.process_table": ("server.supervisor.records",),
    "server.supervisor.offers": ("server.supervisor.records",),
    "server.supervisor.admitted": ("server.supervisor.deployments", "server.supervisor.fronts"),
    "server.supervisor.health": ("server.supervisor.records",),
    "server.supervisor.records": ("server.supervisor.events",),
    "server.supervisor.events": ("server.supervisor.actions",),
    "server.supervisor.actions": ("server.models",),
    "server.sandbox.zygote": ("server.sandbox.child",),
    "server.sandbox.child": ("server.models", "server.front", "server.canary"),
    "server.canary": ("server.sandbox", "server.canary.setting", "module"),
    "server.canary.setting": ("errors",),
    "server.front": ("server.sandbox",),
    "server.models": ("server.session",),
    "server.session": ("server.cache", "server.devices", "secure_stream", "pump"),
    "server.devices": ("server.sandbox",),
    "server.sandbox": ("server.capabilities",),
    "server.cache": ("module", "serve"),
    "server.config": ("server.capabilities", "server.canary.setting"),
    "server.capabilities": ("server.versions", "module", "ffi", "serve", "link", "stream"),
    "server.versions": (),
    "selftest": ("server", "client"),
    "module": ("ffi.device_arrays", "data", "module.container", "module.packed", "module.external", "module.formats"),
    # Arrays in a device's memory, and the queues of devices.
    "ffi.device_arrays": ("module.placement", "ffi"),
    "module.placement": ("module.module",),
    "module.module": ("wire", "module.profiler"),
    "module.profiler": ("errors",),
    # The readers of model files, with which a client checks what it sends.
    "module.container": ("module.elf", "module.layout", "ffi"),
    "module.external": ("module.elf", "errors"),
    "module.elf": (),
    "module.formats": (),
    "module.layout": (),
    "module.packed": ("module.layout",),
    "tvm": ("graph._build", "client", "aio", "result_store"),
    "module.kinds.remote": ("module", "client"),
    "intervals": (),
    "result_store": ("errors",),
    "client": (
        "link",
        "intervals",
        "notebook",
        "progress",
        "secure_stream",
        "pump",
        "module.container",
        "module.packed",
        "module.external",
        "module.formats",
    ),
    "serve": ("link", "logs"),
    "secure_stream": ("stream",),
    # Bytes of programs and connections, over a session.
    "pump": ("byte_streams", "stream"),
    "byte_streams": ("wire",),
    "stream": ("link", "compiled", "speedups"),
    "compiled": ("module.elf", "speedups"),
    "speedups": (),  # in C
    "link": ("wire",),
    "wire": ("errors",),
    "ffi": ("wire",),
    "pack": ("module",),
    "board": ("pack", "client"),
    "data": (),
    "notebook": ("errors",),
    "progress": ("errors",),
    "errors": (),
    "logs": ("errors",),
}

#: Packages from outside, and the parts that may know them. One that is not listed may be used anywhere.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "click": ("cli", "query", "progress", "graph._pipeline.stats"),
    "onnx": ("graph", "module.kinds"),
    "opentelemetry": ("tracing",),
    "onnx_ir": ("graph", "module.kinds"),
    "onnxruntime": ("graph", "module.kinds"),
    "pytest": ("pytest_plugin",),
    "tqdm": ("progress",),
    "tornado": ("daemon", "tracker", "proxy"),
    "uvloop": ("daemon",),
}


def below(part: str) -> set[str]:
    """Everything that ``part`` may import: down any number of arrows."""
    reached: set[str] = set()
    todo = list(ARROWS[part])
    while todo:
        name = todo.pop()
        if name == EVERYTHING:
            return set(ARROWS)
        if name not in reached:
            reached.add(name)
            todo.extend(ARROWS[name])
    return reached


def part_of(module: str, parts: dict[str, tuple[str, ...]] = ARROWS) -> str | None:
    """The part a dotted module name (without ``rpcsys.``) belongs to; None if the table has none."""
    names = module.split(".")
    for length in range(len(names), 0, -1):
        if ".".join(names[:length]) in parts:
            return ".".join(names[:length])
    return None


def module_name(path: Path) -> str:
    names = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module the file imports, anywhere in it, with its line.

    Inside functions and under TYPE_CHECKING too: to know another part's types is to know the part.
    """
    here = module_name(path)
    package = here if path.name == "__init__.py" else here.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in MODULES else base), node.lineno


def complaints(path: Path) -> Iterator[str]:
    name = module_name(path).partition(".")[2]
    part = part_of(name)
    where = path.relative_to(ROOT)
    if part is None:
        yield f"{where}: the table has no entry for {name}"
        return
    allowed = below(part) | {part}
    for target, line in imported(path):
        top, _, inner = target.partition(".")
        if top != "rpcsys":
            homes = OUTSIDE.get(top)
            if homes and not any(name == home or name.startswith(home + ".") for home in homes):
                yield f"{where}:{line}: {part} must not import {top} (only {', '.join(homes)})"
            continue
        if not inner:
            continue
        other = part_of(inner)
        if other not in allowed:
            yield f"{where}:{line}: {part} must not import {inner}"


@pytest.mark.parametrize("path", [path for name, path in MODULES.items() if name != "rpcsys"], ids=module_name)
def test_imports_only_what_lies_below(path: Path) -> None:
    assert list(complaints(path)) == []


def test_root_imports_nothing_of_the_package_at_run_time() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in at_once if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in at_once if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] == "rpcsys"}


def test_table_has_no_cycle_and_no_loose_end() -> None:
    for part, targets in ARROWS.items():
        assert EVERYTHING in targets or part not in below(part)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import rpcsys.tracker.state", "server must not import tracker.state"),
        ("from rpcsys import tracker", "server must not import tracker"),
        ("def f():\n    from ..tracker import state", "server must not import tracker"),
        ("if TYPE_CHECKING:\n    from rpcsys.lab import Lab", "server must not import lab"),
        ("import onnxruntime", "server must not import onnxruntime (only graph, module.kinds)"),
        ("import rpcsys.nowhere", "server must not import nowhere"),
    ],
)
def test_a_climb_is_seen(source: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = PACKAGE / "server" / "made_up.py"
    for name in ("rpcsys.tracker", "rpcsys.tracker.state"):
        monkeypatch.setitem(MODULES, name, path)
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_kwargs: source)
    found = list(complaints(path))
    assert len(found) == 1
    assert complaint in found[0]
