"""The kinds of request that benchmarks judge speculation by: four of the load harness's, and files of JSON lines.

A request is the body of a call of /v1/chat/completions (it has `messages`) or /v1/completions (it has `prompt`),
without the model's name. The same count and seed give the same requests; the same seed and a larger count begin with
the same ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.workloads import REQUESTS, Body, Kind

WORKLOADS: dict[str, Kind] = {name: REQUESTS[name] for name in ("edit", "agentic", "retrieval", "chat")}


def route(body: Body) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def from_lines(path: Path, count: int) -> list[Body]:
    """Bodies from a file of JSON lines, again from its beginning where it has fewer."""
    bodies: list[Body] = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if not bodies:
        raise ValueError(f"{path} has no requests")
    return [bodies[at % len(bodies)] for at in range(count)]
