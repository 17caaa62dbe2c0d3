"""An agent that works through packages: each turn is a plan of tool calls as JSON, one for each file of a listing.

A session is one package with its turns in order; each prompt contains the turns before it. Sessions resemble each
other: they use the same tools on different files.
"""

from __future__ import annotations

import json
import random
from typing import Any

TURNS = (
    ("read every file", "read_file"),
    ("search every file for unused imports", "find_unused_imports"),
    ("run the tests that belong to every file", "run_tests"),
)
WORDS = (
    "account", "address", "archive", "batch", "billing", "cache", "catalog", "channel", "client", "cluster", "command",
    "config", "contract", "customer", "delivery", "device", "document", "event", "export", "filter", "gateway",
    "history", "import", "index", "invoice", "journal", "ledger", "limits", "locale", "mailbox", "market", "message",
    "metrics", "model", "network", "notice", "order", "parser", "payment", "planner", "policy", "profile", "project",
    "queue", "record", "region", "report", "request", "route", "schema", "search", "session", "signal", "stock",
    "storage", "stream", "supplier", "ticket", "token", "tracker", "transfer", "upload", "vendor", "worker",
)  # fmt: skip
SYSTEM = (
    "You are an agent that works on source trees with tools. Every answer is a plan in JSON: a list of steps, one for "
    "each file of the listing, in its order. A step has its number, the tool, its arguments and why it is taken."
)
FILES = 6
MAX_TOKENS = 360


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"agentic {seed}")
    found: list[dict[str, Any]] = []
    while len(found) < count:
        package, *files = chance.sample(WORDS, FILES + 1)
        found += [_request(package, files, turn) for turn in range(len(TURNS))]
    return found[:count]


def _request(package: str, files: list[str], turn: int) -> dict[str, Any]:
    example = ("shop", ["basket", "checkout", "price", "shelf", "window"])
    messages = [{"role": "system", "content": SYSTEM}]
    shown = [(*example, 0), *((package, files, earlier) for earlier in range(turn))]
    for name, names, at in shown:
        messages += [_task(name, names, at), {"role": "assistant", "content": _plan(name, names, at)}]
    messages.append(_task(package, files, turn))
    return {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}


def _task(package: str, files: list[str], turn: int) -> dict[str, str]:
    task, tool = TURNS[turn]
    listing = "\n".join(f"{package}/{name}.py" for name in files)
    return {"role": "user", "content": f"Task: {task}, with the tool {tool}.\nFiles:\n{listing}"}


def _plan(package: str, files: list[str], turn: int) -> str:
    task, tool = TURNS[turn]
    steps = [
        {"step": number, "tool": tool, "arguments": {"path": f"{package}/{name}.py"}, "why": f"to {task}"}
        for number, name in enumerate(files, 1)
    ]
    return "[\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]"
