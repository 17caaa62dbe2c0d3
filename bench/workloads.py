"""The kinds of request that benchmarks judge speculation by: some of the load harness's.

A request is the body of a call of /v1/chat/completions (it has `messages`) or /v1/completions (it has `prompt`),
without the model's name. The same count and seed give the same requests; the same seed and a larger count begin with
the same ones.
"""

from __future__ import annotations

from loadtest.workloads import REQUESTS, Body, Kind

# Those that are measured where none is named; the functions of `edit-favourable` were chosen because drafts fit them.
LEADING = ("edit", "agent", "retrieval", "chat")
WORKLOADS: dict[str, Kind] = {name: REQUESTS[name] for name in (*LEADING, "edit-favourable", "schemas")}


def salt_of(workload: str, salt: str, number: int) -> str:
    """Of the request with this number: in a cold workload nothing is drafted from other answers."""
    return f"{salt} {number}" if workload in WORKLOADS and WORKLOADS[workload].cold else salt


def route(body: Body) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"
