"""Check the documents: each relative link has a target, each example marked `run` succeeds.

The fence of an example marks it: ```python run or ```sh run. Each example runs in an empty folder, with this
interpreter's commands in the PATH, for at most two minutes.

    python docs/check.py            exit status 1 and one line per problem
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE_S = 120

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w+)? ?(run)?.*?$(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_COMMANDS = {"python": [sys.executable, "-"], "sh": ["sh", "-eu"]}


def documents() -> list[Path]:
    """All documents of the repository: at its root and in docs/."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def broken_links(path: Path) -> Iterator[str]:
    """A line for each link to a missing file or heading of this repository, or to a folder."""
    for target in _LINK.findall(_prose(path)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"no such file: {target}"
        elif file.is_dir():
            yield f"a folder has no page on the site: {target}"
        elif anchor and file.suffix == ".md" and anchor not in _anchors(file):
            yield f"no such heading: {target}"


def examples(path: Path) -> Iterator[tuple[str, str, int]]:
    """``(language, source, line)`` of each example with the mark `run`."""
    text = path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        language, marked, source = match.groups()
        if marked:
            yield language, source, text.count("\n", 0, match.start()) + 1


def failure(language: str, source: str) -> str | None:
    """Run one example; the reason if it fails, else None."""
    if language not in _COMMANDS:
        return f"{language} examples cannot be run (only {', '.join(_COMMANDS)})"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory(prefix="rpcsys-docs-") as folder:
        try:
            done = subprocess.run(
                _COMMANDS[language],
                input=source,
                cwd=folder,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=EXAMPLE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"still running after {EXAMPLE_S} s"
    return None if done.returncode == 0 else f"exit status {done.returncode}\n{done.stderr.strip()}"


def _prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def _anchors(path: Path) -> set[str]:
    """The anchors of the headings on a forge: lower case, hyphens for spaces, without other marks."""
    headings = _HEADING.findall(_prose(path))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main() -> int:
    """Check all documents; the exit status."""
    problems = 0
    ran = 0
    for path in documents():
        found = [*broken_links(path)]
        for language, source, line in examples(path):
            ran += 1
            reason = failure(language, source)
            found += [f"line {line}: {reason}"] if reason else []
        for problem in found:
            print(f"{path.relative_to(ROOT)}: {problem}", file=sys.stderr)
        problems += len(found)
    print(f"docs: {len(documents())} documents, {ran} examples run, {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
