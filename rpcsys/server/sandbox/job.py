"""What a waiting child is handed together with a client's connection.

One message on the child's tether: this, as JSON, and the client's descriptor beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

RPCSYS = "rpcsys/1"
TVM = "tvm"
TVM_END = "tvm-end"
HOST = "host"
DEPLOYER = "deployer"


@dataclass(frozen=True)
class Job:
    """A session to serve.

    ``kind``: ``rpcsys/1``, ``tvm``, or ``tvm-end`` (tell a TVM client in ``words`` why its session has ended); or ``host``, the
    host of a deployed module, which begins without a client, and ``deployer``, which takes modules in;
    ``reply``: the handshake's answer, which the child sends first; ``workdir``: the session's directory,
    made and removed by the supervisor; ``limit_s``: seconds the session may last, None for no limit;
    ``options``: facts of the server (``load_library``, ``tvm``, ``allow_pickle``, ``imports``).
    """

    kind: str
    reply: bytes
    workdir: str
    key: str
    peer: str
    limit_s: float | None = None
    lease: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    words: str = ""

    def to_bytes(self) -> bytes:
        """One tether message."""
        plain = {**vars(self), "reply": self.reply.decode("latin-1")}
        return json.dumps(plain).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Job:
        """The inverse of :meth:`to_bytes`."""
        plain = json.loads(data)
        plain["reply"] = plain["reply"].encode("latin-1")
        return cls(**plain)
