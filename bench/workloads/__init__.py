"""Requests that stand for what servers are asked: a file a kind, each with `requests(count, seed)`.

A request is the body of a call of /v1/chat/completions (it has `messages`) or /v1/completions (it has `prompt`),
without the model's name. The same count and seed give the same requests; the same seed and a larger count begin with
the same ones. The texts are ours or come with Python. They are shaped for SmolLM2-135M-Instruct: a model that small
does what its prompt shows, not what a sentence says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.workloads import agentic, chat, edit, retrieval

Body = dict[str, Any]


class Workload(NamedTuple):
    requests: Callable[[int, int], list[Body]]
    says: str


WORKLOADS: dict[str, Workload] = {
    "edit": Workload(edit.requests, "a file or a text is repeated with a small change"),
    "agentic": Workload(agentic.requests, "plans of tool calls as JSON, turn by turn; sessions resemble each other"),
    "retrieval": Workload(retrieval.requests, "a paragraph of the prompt is quoted and then explained"),
    "chat": Workload(chat.requests, "open questions"),
}


def route(body: Body) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def from_lines(path: Path, count: int) -> list[Body]:
    """Bodies from a file of JSON lines, again from its beginning where it has fewer."""
    bodies: list[Body] = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if not bodies:
        raise ValueError(f"{path} has no requests")
    return [bodies[at % len(bodies)] for at in range(count)]
