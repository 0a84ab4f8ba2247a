"""The queue at a glance, as text: the layout of TVM's query tool, which people's scripts read.

Two things differ from TVM's, where its figures are wrong: a key is everything behind ``server:``, colons
included (TVM stops at the next colon), and servers behind one of TVM's proxies are counted under their keys.
"""

from __future__ import annotations

import collections
from typing import Any, Dict, List

from rpcsys.errors import ProtocolError, printable
from rpcsys.wire.keys import MAX_KEY

_RULE = "-" * 30
_PREFIX = "server:"


def text_summary(summary: Dict[str, Any]) -> str:
    """The server list and the queue status of a tracker's summary (``queue_info`` and ``server_info``).

    Raises
    ------
    ProtocolError: the summary is not of that form.
    """
    try:
        lines = _server_list(summary["server_info"]) + _queue_status(summary)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ProtocolError("the tracker's summary is not of the form that trackers send") from None
    return "\n".join(lines) + "\n"


def _server_list(servers: List[Dict[str, Any]]) -> List[str]:
    rows = [
        "{:21s}    {}".format(printable(":".join(map(str, server["addr"]))), printable(server["key"]))
        for server in sorted(servers, key=lambda server: str(server["key"]))
    ]
    return ["Server List", _RULE, "server-address           key", _RULE, *rows, _RULE, ""]


def _queue_status(summary: Dict[str, Any]) -> List[str]:
    queues = summary["queue_info"]
    totals = collections.Counter(key for server in summary["server_info"] for key in _keys(server["key"]))
    width = min(MAX_KEY, max((len(printable(key)) for key in queues), default=0))
    title = "{:<{}s}   total  free  pending".format("key", width)
    rule = "-" * (len(title) + 1)  # TVM counts the end of the line
    rows = []
    for key in sorted(queues):
        free, pending = queues[key]["free"], queues[key]["pending"]
        if totals[key] or pending:
            name = printable(key)
            rows.append("{:<{}}   {:<5d}  {:<4d}  {:<7d}".format(name, width, totals[key], free, pending))
    return ["Queue Status", rule, title, rule, *rows, rule]


def _keys(name: str) -> List[str]:
    """The device keys behind a server's name: ``server:KEY``, or ``server:proxy[KEY1,KEY2]``."""
    key = name[len(_PREFIX) :] if name.startswith(_PREFIX) else name
    if key.startswith("proxy[") and key.endswith("]"):
        return [inner for inner in key[len("proxy[") : -1].split(",") if inner]
    return [key]
