"""Records the agent's sessions against a running server: `python -m loadtest.workloads.agent.record URL`.

The model calls, the tools work on a copy of the project, and the results go into the next request. A session in which
a call was cut off is left out.
"""

from __future__ import annotations

import itertools
import json
import sys
import urllib.request
from typing import Any

from loadtest.workloads.agent import RECORDED, body
from loadtest.workloads.agent.project import FILES
from loadtest.workloads.agent.script import EXAMPLE, SYSTEM, Step, session
from loadtest.workloads.agent.tools import SCHEMAS, called

SESSIONS = 48
MODEL = "smollm2-135m-instruct"
Messages = list[dict[str, Any]]


class CutOff(Exception):
    """A call that reached the limit of tokens."""


def main(url: str) -> None:
    found: list[Messages] = []
    for number in itertools.count():
        if len(found) == SESSIONS:
            break
        try:
            found.append(recorded(url, session(number)))
        except CutOff:
            print(f"session {number}: cut off, left out")
    lines = ",\n".join(json.dumps(each) for each in found)
    told = {"model": MODEL, "tools": SCHEMAS, "beginning": beginning()}
    RECORDED.write_text(f'{json.dumps(told)[:-1]}, "sessions": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{RECORDED}: {len(found)} sessions, {RECORDED.stat().st_size} bytes")


def beginning() -> Messages:
    said: Messages = [{"role": "system", "content": SYSTEM}]
    for place, (says, tool, arguments, result) in enumerate(EXAMPLE):
        said += [{"role": "user", "content": says}, *exchanged(f"shown{place}", tool, json.dumps(arguments), result)]
    return said


def recorded(url: str, steps: list[Step]) -> Messages:
    """What is said from the first step to the last answer."""
    files = dict(FILES)
    said: Messages = []
    for place, step in enumerate(steps):
        said.append({"role": "user", "content": step.says})
        answer = ask(url, body(SCHEMAS, [*beginning(), *said], calls=step.calls))
        if not step.calls:
            said.append({"role": "assistant", "content": answer["message"]["content"]})
            continue
        if answer["finish_reason"] == "length":
            raise CutOff
        [call] = answer["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        said += exchanged(f"call{place}", name, arguments, called(files, name, json.loads(arguments)))
    return said


def exchanged(identity: str, name: str, arguments: str, result: str) -> Messages:
    """A call and its result."""
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": result},
    ]


def ask(url: str, asked: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps({**asked, "model": MODEL}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        choice: dict[str, Any] = json.load(answer)["choices"][0]
        return choice


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
