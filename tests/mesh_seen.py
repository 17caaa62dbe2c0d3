"""A body of /v1/mesh, for what draws it."""

from __future__ import annotations

from typing import Any


def member(role: str, **more: Any) -> dict[str, Any]:
    return {
        "role": role, "instance": f"{role}-1", "pid": 4711, "state": "ready", "reasons": [], "heard_ago_s": 0.04,
        "since_s": 75.0, "restarts": 0, "queue": 0, "figures": {}, "sources": [], **more,
    }  # fmt: skip


def source(name: str, accepted: int, drafted: int) -> dict[str, Any]:
    lately = {"drafts_lately": 1, "drafted_lately": drafted, "accepted_lately": accepted}
    return {"name": name, "drafts": 9, "drafted": 10 * drafted, "accepted": accepted, **lately}


BODY: dict[str, Any] = {
    "now": 1.0,
    "demo": False,
    "members": [
        member("proposer", figures={"store_tokens": 123456.0}, restarts=2),
        member("streamer"),
        member(
            "worker",
            queue=3,
            figures={"running": 2.0, "tokens_per_s": 221.2, "accepted_per_step": 0.487, "kv_used": 0.25},
            sources=[source("ngram", 1, 10), source("suffix", 30, 40)],
        ),
    ],
    "links": [
        {"from": "streamer-1", "to": "worker-1", "round_trip_ms": 0.52, "open": True},
        {"from": "worker-1", "to": "proposer-1", "round_trip_ms": None, "open": False},
    ],
}
