"""What is counted of calls."""

from __future__ import annotations

from rpcsys.gateway.statistics import BACKEND, CANCELED, ModelStatistics, Times


def test_counts_are_those_of_the_protocol() -> None:
    statistics = ModelStatistics()
    statistics.ran(3, 0.5)
    statistics.succeeded(1, Times(1.0, 0.5, 0.5), 7.0)
    statistics.succeeded(2, Times(2.0, 1.5, 0.5), 8.0)
    statistics.failed(BACKEND, 0.25)
    statistics.failed(CANCELED)
    nothing = {"count": 0, "ns": 0}
    assert statistics.to_json("m", "3", 1234) == {
        "name": "m",
        "version": "3",
        "last_inference": 1234,
        "inference_count": 3,
        "execution_count": 1,
        "inference_stats": {
            "success": {"count": 2, "ns": 3 * 10**9},
            "fail": {"count": 2, "ns": 25 * 10**7},
            "queue": {"count": 2, "ns": 2 * 10**9},
            "compute_input": nothing,
            "compute_infer": {"count": 2, "ns": 10**9},
            "compute_output": nothing,
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 3,
                "compute_input": {"count": 1, "ns": 0},
                "compute_infer": {"count": 1, "ns": 5 * 10**8},
                "compute_output": {"count": 1, "ns": 0},
            }
        ],
        "memory_usage": [],
    }
    assert statistics.failures == {BACKEND: 1, CANCELED: 1}
    assert statistics.last == 8.0
