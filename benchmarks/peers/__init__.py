"""The subjects of the benchmarks, ours and the peers, with one file for each.

A subject's file may import its package at the top: if the import fails, the row's note is "not installed".
"""

from __future__ import annotations

import importlib

from benchmarks.peers.subject import Subject

SUBJECTS = {
    "rpcsys": "benchmarks.peers.ours:Rpcsys",
    "rpcsys-eight-slots": "benchmarks.peers.ours:RpcsysEightSlots",
    "rpcsys-two-sessions": "benchmarks.peers.ours:RpcsysTwoSessions",
    "rpcsys-tls": "benchmarks.peers.encrypted:EncryptedRpcsys",
    "tls-alone": "benchmarks.peers.encrypted:EncryptionAlone",
    "rpcsys-link": "benchmarks.peers.links:OverLink",
    "rpcsys-tls-link": "benchmarks.peers.links:EncryptedOverLink",
    "rpcsys-faster-link": "benchmarks.peers.links:FasterLink",
    "rpcsys-tls-faster-link": "benchmarks.peers.links:EncryptedOverFasterLink",
    "gateway": "benchmarks.peers.inference:Gateway",
    "gateway-batching": "benchmarks.peers.inference:BatchingGateway",
    "gateway-unused": "benchmarks.peers.inference:UnusedGateway",
    "mlserver": "benchmarks.peers.inference:MLServer",
    "raw": "benchmarks.peers.raw:RawSocket",
    "raw-two": "benchmarks.peers.raw:TwoRawSockets",
    "tvm": "benchmarks.peers.tvm_rpc:TvmSessions",
    "tvm-to-rpcsys": "benchmarks.peers.tvm_rpc:TvmClientOfOurs",
    "tvm-behind-connect": "benchmarks.peers.tvm_rpc:TvmBehindConnect",
    "grpc": "benchmarks.peers.grpc_bytes:GrpcBytes",
    "grpc-tls": "benchmarks.peers.grpc_bytes:EncryptedGrpc",
    "rpyc": "benchmarks.peers.rpyc_service:RpycService",
    "rpyc-tls": "benchmarks.peers.rpyc_service:EncryptedRpyc",
    "rpcsys-lease": "benchmarks.peers.ours:RpcsysLease",
    "rpcsys-lab-lease": "benchmarks.peers.ours:RpcsysLabLease",
    "board": "benchmarks.peers.ours:Board",
    "lab-board": "benchmarks.peers.ours:LabBoard",
    "tvm-lease": "benchmarks.peers.tvm_rpc:TvmLease",
    "tvm-lease-of-rpcsys": "benchmarks.peers.tvm_rpc:TvmLeaseOfOurs",
    "libraries": "benchmarks.peers.libraries:Libraries",
    "local": "benchmarks.peers.local:LocalOnnxruntime",
    "tracker-rpcsys": "benchmarks.peers.trackers:OurTracker",
    "tracker-rpcsys-all": "benchmarks.peers.trackers:OurTrackerWithAll",
    "tracker-open": "benchmarks.peers.closed_labs:OpenTracker",
    "tracker-closed": "benchmarks.peers.closed_labs:ClosedTracker",
    "serving": "benchmarks.peers.serving:Serving",
    "offloading": "benchmarks.peers.offloading:Offloading",
    "plans": "benchmarks.peers.plans:Plans",
    "chips": "benchmarks.peers.chips:Chips",
    "pipelines": "benchmarks.peers.pipelines:Pipelines",
    "proxy": "benchmarks.peers.relays:Proxy",
    "socat": "benchmarks.peers.relays:Socat",
    "haproxy": "benchmarks.peers.relays:HaProxy",
    "bare relay": "benchmarks.peers.bare_relay:BareRelay",
    "no relay": "benchmarks.peers.relays:Direct",
    "raw-proxied": "benchmarks.peers.relays:ProxiedPing",
    "rpcsys-proxied-pinned": "benchmarks.peers.relays:ProxiedCalls",
    "rpcsys-proxied": "benchmarks.peers.relays:ProxiedSessions",
    "rpcsys-bare-relayed": "benchmarks.peers.bare_relay:BareRelayedSessions",
    "tracker-tvm": "benchmarks.peers.trackers:TvmTracker",
    "tuning": "benchmarks.peers.tuning:Tuning",
    "tuning-boards": "benchmarks.peers.tuning:SimulatedBoards",
    "tuning-tvm": "benchmarks.peers.tuning:TvmTuning",
    "tuning-tvm-of-rpcsys": "benchmarks.peers.tuning:TvmTuningOfOurs",
    "tracker-one": "benchmarks.peers.replicas:Trackers",
    "tracker-replicas": "benchmarks.peers.replicas:Replicas",
    "tracker-replicas-elsewhere": "benchmarks.peers.replicas:ReplicasElsewhere",
}


def load(name: str) -> type[Subject]:
    """The class of a subject. Raises ModuleNotFoundError if its package is not installed."""
    module, _, attribute = SUBJECTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
