"""An engine elsewhere: etcd's JSON gateway in memory, whose answers take 2 ms and hardly any time of these cores."""

from __future__ import annotations

import asyncio
import base64
import bisect
import json
from typing import Any

from tornado import httpserver, netutil, web

from benchmarks.peers.subject import announce, take_children_along

DELAY_S = 0.002


class Store:
    """Keys in order, each with its value, revision and lease. No lease ends by itself."""

    def __init__(self) -> None:
        self.revision = 1
        self._order: list[str] = []
        self._found: dict[str, dict[str, Any]] = {}

    def transaction(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do one, and answer it."""
        held = all(self._holds(one) for one in asked["compare"])
        self.revision += 1
        done = [self._do(one) for one in asked["success" if held else "failure"]]
        return {"succeeded": held, "responses": done}

    def _holds(self, condition: dict[str, Any]) -> bool:
        pair = self._found.get(text(condition["key"]))
        return int(condition["mod_revision"]) == (int(pair["mod_revision"]) if pair else 0)

    def _do(self, operation: dict[str, Any]) -> dict[str, Any]:
        ((kind, asked),) = operation.items()
        if kind == "request_put":
            self._put(text(asked["key"]), asked)
            return {"response_put": {}}
        keys = self._keys(asked)
        if kind == "request_delete_range":
            for key in keys:
                del self._found[key]
                del self._order[bisect.bisect_left(self._order, key)]
            return {"response_delete_range": {}}
        limit = int(asked.get("limit", 0)) or len(keys)
        pairs = [self._found[key] for key in keys[:limit]]
        return {"response_range": {"kvs": pairs, "more": len(keys) > limit}}

    def _put(self, key: str, asked: dict[str, Any]) -> None:
        if key not in self._found:
            bisect.insort(self._order, key)
        stamp = {"mod_revision": str(self.revision), "lease": str(asked["lease"])}
        self._found[key] = {"key": asked["key"], "value": asked["value"], **stamp}

    def _keys(self, asked: dict[str, Any]) -> list[str]:
        first = text(asked["key"])
        if "range_end" not in asked:
            return [first] if first in self._found else []
        ends = (bisect.bisect_left(self._order, key) for key in (first, text(asked["range_end"])))
        return self._order[slice(*ends)]


class Gateway(web.RequestHandler):
    """Answers each request after a while."""

    async def post(self, path: str) -> None:
        await asyncio.sleep(DELAY_S)
        store: Store = self.application.settings["store"]
        asked = json.loads(self.request.body)
        answers = {
            "kv/txn": lambda: store.transaction(asked),
            "lease/grant": lambda: {"ID": "1", "TTL": str(asked["TTL"])},
            "lease/keepalive": lambda: {"result": {"ID": "1", "TTL": "2"}},
            "lease/revoke": dict,
        }
        self.write(answers[path]())

    def get(self, path: str) -> None:
        self.write("")


def text(encoded: str) -> str:
    """A key."""
    return base64.b64decode(encoded).decode()


async def main() -> None:
    take_children_along()
    sockets = netutil.bind_sockets(0, "127.0.0.1")
    paths = [(r"/v3/(.*)", Gateway), (r"/(metrics)", Gateway)]
    httpserver.HTTPServer(web.Application(paths, store=Store(), log_function=lambda _: None)).add_sockets(sockets)
    announce(sockets[0].getsockname()[1])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
