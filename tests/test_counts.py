"""Circles and names that occur twice are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import counts


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The imports of each module of the package."""
    return counts.imports(counts.MODULES)


def test_circles_of_any_length_are_found_once() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert counts.circles(graph) == [["a", "b", "c"], ["f", "g"]]


def test_no_module_reaches_itself_where_imports_only_go_down() -> None:
    assert counts.circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_package_has_no_import_circles(graph: dict[str, set[str]]) -> None:
    assert counts.circles(graph) == []


def test_a_class_that_two_modules_define_is_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("class A: ...\nclass B:\n    class C: ...\n")
    other.write_text("if True:\n    class C: ...\nelse:\n    class D: ...\n    class D: ...\n")
    assert counts.twice({"one": one, "other": other}) == ["C"]


def test_the_root_imports_nothing_and_others_each_other(graph: dict[str, set[str]]) -> None:
    assert graph["rpcsys"] == set()
    assert "rpcsys.wire.tensor" in graph["rpcsys.wire.values"]
    assert all(targets <= set(counts.MODULES) for targets in graph.values())


def test_code_without_a_test_file_of_its_name_is_found(tmp_path: Path) -> None:
    package, tests = tmp_path / "package", tmp_path / "tests"
    code = [package / "a" / name for name in ("__init__.py", "__main__.py", "one.py", "two.py")]
    (tests / "a").mkdir(parents=True)
    (tests / "a" / "test_one.py").touch()
    (tests / "test_two.py").touch()
    assert counts.untested(code, package, tests) == ["a/two.py"]


def test_a_file_of_more_lines_is_found(tmp_path: Path) -> None:
    short, long = tmp_path / "short.py", tmp_path / "long.py"
    short.write_text("\n" * 3)
    long.write_text("\n" * 4)
    assert counts.long_files([short, long], lines=3) == ["long.py"]


def test_a_count_above_its_limit_is_an_error_with_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counts, "MODULES", {})
    monkeypatch.setattr(counts, "twice", lambda _: ["Twice", "Thrice"])
    monkeypatch.setattr(counts, "TWICE", 2)
    assert counts.main() == 0
    monkeypatch.setattr(counts, "TWICE", 1)
    assert counts.main() == 1
    first, second, names = capsys.readouterr().out.splitlines()
    assert "2 class names that occur twice (at most 2)" in first
    assert "2 class names that occur twice (at most 1)" in second
    assert names == "class names that occur twice: Twice, Thrice"


def test_more_lines_than_the_limit_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "a.py"
    module.write_text("x = 1\ny = 2\n")
    monkeypatch.setattr(counts, "MODULES", {"a": module})
    monkeypatch.setattr(counts, "untested", lambda *_: [])
    monkeypatch.setattr(counts, "LINES", 2)
    assert counts.main() == 0
    monkeypatch.setattr(counts, "LINES", 1)
    assert counts.main() == 1
