"""URLs of models, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.client.inference.urls import parse_urls
from rpcsys.errors import UsageError

URLS = {
    "http://h:8000/v2/models/m": ("http", "h", 8000, "m", ""),
    "http://h/v2/models/m/versions/3/": ("http", "h", 80, "m", "3"),
    "https://[::1]:8443/a/b/v2/models/m": ("https", "::1", 8443, "m", ""),
    "grpc://h:8001/m": ("grpc", "h", 8001, "m", ""),
    "grpc://h:8001/m/0003-x": ("grpc", "h", 8001, "m", "0003-x"),
    "grpcs://models.example/m": ("grpcs", "models.example", 443, "m", ""),
}


@pytest.mark.parametrize("text", URLS)
def test_a_url_has_its_parts(text) -> None:
    (url,) = parse_urls(text)
    assert (url.scheme, url.host, url.port, url.model, url.version) == URLS[text]
    assert url.text == text


def test_urls_are_separated_by_spaces() -> None:
    assert [url.text for url in parse_urls(" ".join(URLS))] == list(URLS)


@pytest.mark.parametrize(
    "text",
    [
        "", "http://", "http://h", "http://h:8000/v2/models/", "http://h:8000/v2/models/m/versions/", "grpc://h/m",
        "http://h:8000/v1/models/m", "ftp://h:1/v2/models/m", "grpc://h:8001/", "grpc://h:8001/a/b/c", "http:/h/m",
        "http://h:99999/v2/models/m", "http://a@h:1/v2/models/m", "http://h:1/v2/models/m?x=1", "h:8000", "grpc:/h:1/m",
        "http://h:1/v2/models/é",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(text) -> None:
    with pytest.raises(UsageError):
        parse_urls(text)


@given(st.text(max_size=40) | st.from_regex(r"(http|grpc)s?://[ -~]{0,30}(/v2/models/[ -~]{0,9})?", fullmatch=True))
def test_any_text_is_urls_or_refused(text) -> None:
    try:
        urls = parse_urls(text)
    except UsageError:
        return
    assert all(url.model and 1 <= url.port <= 65535 for url in urls)
