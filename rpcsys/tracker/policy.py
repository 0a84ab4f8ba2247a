"""Reads the rules of a lab, ``policy.toml``, and names the line of a mistake."""

from __future__ import annotations

import math
import re
import stat
import sys
from collections.abc import Collection, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NoReturn

from rpcsys.errors import ConfigError
from rpcsys.tracker.access import MAX_AT_ONCE, MAX_PRIORITY, Access, Network, Oidc, Right, Rule, is_name
from rpcsys.wire.sign_in import is_issuer

if sys.version_info >= (3, 11):  # novermin
    import tomllib  # novermin
else:
    import tomli as tomllib

MAX_CHARACTERS = 1 << 20  # 10,000 rules take 900,000
NOBODY: Mapping[str, Collection[str]] = {}
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?(s|min|h|d)").fullmatch
_PATTERN = re.compile(r"[A-Za-z0-9*?\[\]!._@+-]{1,64}").fullmatch


def parse(text: str, lab: str, members: Mapping[str, Collection[str]] = NOBODY) -> Access:
    """Read the rules of ``lab``. Raises `ConfigError`: one line with the place of the mistake.

    ``members``: the lab's members by name, each with the groups that it was invited into. None may be a group's name.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"policy.toml has more than {MAX_CHARACTERS:,} characters: use groups and patterns")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"policy.toml is no TOML: {error}") from None
    return _Reader(text, members).access(data, lab)


def load(path: Path, lab: str, members: Mapping[str, Collection[str]] = NOBODY) -> Access:
    """Read the rules in a file, as :func:`parse` does. Raises `ConfigError`: it cannot be read, too."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path} is no file: put the lab's rules there")  # a pipe would be waited for
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; restore the lab's rules from a copy") from None
    return parse(text, lab, members)


def seconds(text: str) -> float | None:
    """A duration such as ``90s``, ``30min``, ``2h`` or ``1d``, in seconds; None: it is none."""
    found = _DURATION(text)
    return float(found[1]) * _UNITS[found[2]] if found and float(found[1]) else None


class _Reader:
    """Checks the tables of a file, and names the line of a mistake."""

    def __init__(self, text: str, members: Mapping[str, Collection[str]]) -> None:
        self._lines = text.split("\n")
        self._members = members
        self._invited: dict[str, set[str]] = {}  # group -> members
        for member, groups in members.items():
            for group in groups:
                self._invited.setdefault(group, set()).add(member)
        self._at: tuple[str, int] = ("", 0)  # the table that is read, and which of its name

    def access(self, data: dict[str, Any], lab: str) -> Access:
        self._known(data, ("groups", "allow", "tvm", "page", "oidc"))
        groups = self._groups(self._table(data, "groups"))
        allow = data.get("allow", [])
        if type(allow) is not list or not all(type(one) is dict for one in allow):
            self._wrong("allow", "tables: write [[allow]]")
        rules = tuple(self._rule(one, number) for number, one in enumerate(allow))
        networks = self._networks(data, "tvm", "from"), self._networks(data, "page", "open")
        return Access(lab, groups, rules, *networks, self._oidc(data))

    def _table(self, data: dict[str, Any], name: str) -> dict[str, Any]:
        self._at = (f"[{name}]", 0)
        table = data.get(name, {})
        if type(table) is not dict:
            self._wrong(name, f"a table: write [{name}]")
        return table

    def _networks(self, data: dict[str, Any], table: str, name: str) -> tuple[Network, ...]:
        fields = self._table(data, table)
        self._known(fields, (name,))
        found = []
        for one in self._strings(fields, name):
            try:
                found.append(ip_network(one))
            except ValueError:
                self._wrong(name, f"addresses and networks such as 10.1.0.0/16, not {one!r}")
        return tuple(found)

    def _oidc(self, data: dict[str, Any]) -> Oidc | None:
        table = self._table(data, "oidc")
        if "oidc" not in data:
            return None
        self._known(table, ("issuer", "client_id", "name_claim", "groups_claim", "lasts"))
        if not is_issuer(table.get("issuer")):
            self._wrong("issuer", 'a URL such as "https://id.example/realms/lab", without a slash at its end')
        return Oidc(
            table["issuer"],
            self._text(table, "client_id", None),
            self._text(table, "name_claim", Oidc.name_claim),
            self._text(table, "groups_claim", Oidc.groups_claim),
            self._duration(table, "lasts", Oidc.lasts_s),
        )

    def _text(self, table: dict[str, Any], name: str, default: str | None) -> str:
        value = table.get(name, default)
        if type(value) is not str or len(value) > 255 or not value.isprintable() or (name in table and not value):
            self._wrong(name, "a text")
        return value

    def _groups(self, table: dict[str, Any]) -> dict[str, frozenset[str]]:
        for name in table:
            if not is_name(name):
                self._wrong(name, "a name of letters, digits and ._@+-")
            if name in self._members:
                self._wrong(name, "no member's name, too: rename the group")
            if not self._strings(table, name, _PATTERN):
                self._wrong(name, "a list of members: nobody is in it")
        return {name: frozenset(self._members_of(name, table, ())) for name in {**table, **self._invited}}

    def _members_of(self, name: str, table: dict[str, Any], above: tuple[str, ...]) -> set[str]:
        if name in above:
            self._wrong(name, f"no part of itself ({' > '.join((*above, name))})")
        found = set(self._invited.get(name, ()))
        for one in table.get(name, ()):
            inner = one in table or one in self._invited
            found |= self._members_of(one, table, (*above, name)) if inner else {one}
        return found

    def _rule(self, table: dict[str, Any], number: int) -> Rule:
        self._at = ("[[allow]]", number)
        self._known(table, ("who", "keys", "priority", "session", "at_once", "code", "rights", "modules"))
        who = self._strings(table, "who", _PATTERN)
        if not who:
            self._wrong("who", 'a list of members and groups, such as ["ann"]')
        code = table.get("code", True)
        if type(code) is not bool:
            self._wrong("code", "true or false")
        return Rule(
            who,
            self._strings(table, "keys"),
            self._integer(table, "priority", 1, MAX_PRIORITY, 1),
            self._duration(table, "session", math.inf),
            self._integer(table, "at_once", 1, MAX_AT_ONCE, math.inf),
            code,
            self._rights(table),
            self._strings(table, "modules"),
        )

    def _duration(self, table: dict[str, Any], name: str, default: float) -> float:
        if name not in table:
            return default
        found = seconds(table[name]) if type(table[name]) is str else None
        if found is None:
            self._wrong(name, 'a duration such as "90s", "30min", "2h" or "1d"')
        return found

    def _rights(self, table: dict[str, Any]) -> frozenset[Right]:
        found = self._strings(table, "rights")
        for one in found:
            if one not in {right.value for right in Right}:
                self._wrong("rights", f"among {', '.join(right.value for right in Right)}, not {one!r}")
        return frozenset(map(Right, found))

    def _integer(self, table: dict[str, Any], name: str, low: int, high: int, default: Any) -> Any:
        value = table.get(name, default)
        if name in table and (type(value) is not int or not low <= value <= high):
            self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def _strings(self, table: dict[str, Any], name: str, form: Any = None) -> tuple[str, ...]:
        values = table.get(name, [])
        if type(values) is not list or not all(type(one) is str and 0 < len(one) <= 255 for one in values):
            self._wrong(name, "a list of texts")
        for one in values:
            if form is not None and not form(one):
                self._wrong(name, f"a list of names and patterns, without {one!r}")
        return tuple(values)

    def _known(self, table: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in table:
            if name not in names:
                self._wrong(name, f"one of {', '.join(names)}")

    def _wrong(self, name: str, wanted: str) -> NoReturn:
        raise ConfigError(f"policy.toml, line {self._line(name)}: {name} must be {wanted}")

    def _line(self, name: str) -> int:
        """The line of a field of the table that is read; of the table, if the field is written in another way."""
        header, number = self._at
        starts = [index for index, line in enumerate(self._lines) if line.strip().startswith(header or "\0")]
        start = starts[number] if number < len(starts) else 0
        for index in range(start, len(self._lines)):
            if re.match(rf"\s*\[*\s*[\"']?{re.escape(name)}[\"']?\s*[=.\]]", self._lines[index]):
                return index + 1
            if index > start and header and self._lines[index].lstrip().startswith("["):
                break
        return start + 1
