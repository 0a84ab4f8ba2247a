"""URLs of models on inference servers, and the errors that these servers answer with."""

from __future__ import annotations

import functools
import re
from typing import Callable, Dict, List, NamedTuple, Optional

from rpcsys import errors
from rpcsys.errors import RemoteArgumentError, RemoteError, RpcsysError, UsageError
from rpcsys.link.address import parse_address

_PORTS: Dict[str, Optional[int]] = {"http": 80, "https": 443, "grpc": None, "grpcs": 443}
_OVER_HTTP = re.compile(r"(?:.+/)?v2/models/([^/]+)(?:/versions/([^/]+))?")
_OVER_GRPC = re.compile(r"([^/]+)(?:/([^/]+))?")
#: The errors for HTTP's statuses.
_ERRORS: Dict[int, Callable[[str], RpcsysError]] = {
    **dict.fromkeys((400, 422), RemoteArgumentError),
    **dict.fromkeys((408, 504), errors.DeadlineExceeded),
    **dict.fromkeys((429, 503), functools.partial(errors.Busy, retryable=True, fault="device")),
    404: errors.RemoteFunctionError,
}


class InferenceUrl(NamedTuple):
    """The URL of a model. ``place``: HOST:PORT as written; ``path``: what stands behind it, with its slash."""

    text: str
    scheme: str
    place: str
    host: str
    port: int
    path: str
    model: str
    version: str


def parse_urls(text: str) -> List[InferenceUrl]:
    """The URLs in ``text``, separated by spaces. Raises `UsageError`, also where there is none."""
    return list(map(_parse, text.split() or [""]))


def _parse(text: str) -> InferenceUrl:
    scheme, _, rest = text.partition("://")
    place, _, path = rest.rstrip("/").partition("/")
    found = (_OVER_GRPC if scheme.startswith("grpc") else _OVER_HTTP).fullmatch(path)
    if scheme not in _PORTS or found is None or not re.fullmatch(r"[!-~]+", text) or {*text} & {*"?#@"}:
        how = "http://HOST:PORT/v2/models/NAME or grpc://HOST:PORT/NAME"
        raise UsageError(f"{text!r} is no URL of a model on an inference server: write {how}")
    host, port = parse_address(place, _PORTS[scheme])
    return InferenceUrl(text, scheme, place, host, port, f"/{path}", found[1], found[2] or "")


def error_of(url: InferenceUrl, status: int, said: str) -> RpcsysError:
    """The error for an answer with an HTTP status other than 200."""
    make = _ERRORS.get(status) or functools.partial(RemoteError, fault="device")
    return make(errors.printable(f"{url.text}: {' '.join(said[:1000].split()) or 'no reason given'} ({status})"))
