"""Sessions of an agent with tools, as they were recorded: requests with schemas, calls, results and edits of files.

The model's calls, the results of the real tools and the next request are in sessions.json, made by record.py, so that
every run sends the same requests, whatever a server answers. After the last session the first comes again with another
name of the project.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from loadtest.workloads.agent.project import NAME

RECORDED = Path(__file__).parent / "sessions.json"
TURNS = 6
NAMES = (
    NAME, "orchard", "lantern", "harbour", "meadow", "granite", "compass", "juniper", "sparrow", "velvet", "thicket",
    "quarry",
)  # fmt: skip
MAX_TOKENS, MAX_WORDS = 320, 96  # of a call, of an answer in words


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    """The seed decides with which session and which name it begins."""
    sessions = len(recorded()["sessions"])
    begin = random.Random(f"agent {seed}").randrange(sessions)
    found: list[dict[str, Any]] = []
    number = 0
    while len(found) < count:
        found += session((begin + number) % sessions, NAMES[(seed + number // sessions) % len(NAMES)])
        number += 1
    return found[:count]


def session(number: int, name: str = NAME) -> list[dict[str, Any]]:
    """A request for each answer of the model, with all that was said before it. `name`: of the project."""
    told = recorded()
    beginning, said = told["beginning"], told["sessions"][number]
    bodies = [
        body(told["tools"], [*beginning, *said[:place]], calls="tool_calls" in answer)
        for place, answer in enumerate(said)
        if answer["role"] == "assistant"
    ]
    return json.loads(json.dumps(bodies).replace(NAME, name))  # type: ignore[no-any-return]


def body(tools: list[dict[str, Any]], messages: list[dict[str, Any]], *, calls: bool) -> dict[str, Any]:
    """The model wouldn't call by itself, so it must."""
    asked = {"tool_choice": "required", "parallel_tool_calls": False} if calls else {"tool_choice": "none"}
    longest = MAX_TOKENS if calls else MAX_WORDS
    return {"messages": messages, "tools": tools, **asked, "max_tokens": longest, "temperature": 0}


@cache
def recorded() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return told
