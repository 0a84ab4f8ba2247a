"""Another release of TVM beside the installed one, in an environment of its own."""

from __future__ import annotations

from pathlib import Path

from tests.live.environments import Environment

CLIENT = Path(__file__).with_name("tvm_release_client.py")
#: Each with the apache-tvm-ffi that was current when it appeared.
RELEASES = {"0.25": Environment("tvm-0.25", ("apache-tvm[rpc]~=0.25.0", "apache-tvm-ffi==0.1.12"))}
