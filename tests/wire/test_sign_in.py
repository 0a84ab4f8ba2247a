"""A lab's line, and which addresses of an issuer are asked."""

from __future__ import annotations

import pytest

from rpcsys.errors import ConfigError
from rpcsys.wire import tokens
from rpcsys.wire.sign_in import LabLine, is_issuer, is_safe, parse_line

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)
LINE = LabLine(("lab-host:9190", "[fd00::1]:9190"), PINS)


def test_a_line_is_read_back_also_with_line_breaks() -> None:
    text = LINE.text
    assert text.startswith("rpcsys-lab:")
    assert parse_line(text) == parse_line(f" {text[:40]}\n {text[40:]}\n") == LINE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "this is no line of a lab"),
        (tokens.invitation(LINE.addresses, PINS).text, "this is no line of a lab"),
        (LINE.text[:-5], "is not whole"),
        ("rpcsys-lab:AAAA", "is not whole"),
        ("rpcsys-lab:" + "A" * 9000, "is not whole"),
        (LabLine((), PINS).text, "is not whole"),
        (LabLine(LINE.addresses, ("sha256:1f", PINS[0])).text, "is not whole"),
        (LabLine(LINE.addresses, PINS[:1]).text, "is not whole"),
    ],
)
def test_another_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_line(text)


@pytest.mark.parametrize(
    "url", ["https://id.example", "https://id.example:8443/a?b=c", "http://127.0.0.1:8080/a", "http://[::1]/", "http://localhost"]
)  # fmt: skip
def test_https_is_asked_and_this_machine(url: str) -> None:
    assert is_safe(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "id.example", "//id.example", "http://id.example", "http://127.0.0.1.evil.example", "ftp://id.example"),
        *("https://", "https://a b", "https://id.example/\n", "https://ann:pw@id.example", "https://id.example/#x"),
        *("https://id.example:99999", "https://[::1", "https://" + "x" * 2000, "file:///etc/passwd", None, 7, b"x"),
    ],
)
def test_nothing_else_is_asked(url: object) -> None:
    assert not is_safe(url)
    assert not is_issuer(url)


def test_an_issuer_has_no_query_and_no_last_slash() -> None:
    assert is_issuer("https://id.example/realms/lab")
    assert not any(map(is_issuer, ["https://id.example/", "https://id.example?a", "https://id.example#"]))
