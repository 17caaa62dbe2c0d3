"""Tools for models whose chat template knows none: a description for the system message, and calls and results as text.

The format is that of services/streamer/agents/hermes.py, which many models have seen. Knows no templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turns = Sequence[Mapping[str, Any]]

_BEGIN = "You can call functions. These are described as JSON, one in a line:"
_CALL = """To call a function, answer with a JSON object of its name and arguments, in such tags, once for each call:
<tool_call>
{"name": "the function's name", "arguments": {"an argument's name": "its value"}}
</tool_call>"""


def tools_in_words(turns: Turns, tools: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The turns, with a description of the tools in the system message."""
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in tools)
    words = f"{_BEGIN}\n<tools>\n{listed}\n</tools>\n{_CALL}"
    if turns and turns[0]["role"] == "system":
        first = turns[0]
        return [{**first, "content": f"{first['content']}\n\n{words}"}, *turns[1:]]
    return [{"role": "system", "content": words}, *turns]


def turns_in_words(turns: Turns) -> list[Mapping[str, Any]]:
    """The turns with calls as text of the assistant, and results as text of the user. Results that follow each other
    are one turn: many templates want user and assistant to alternate."""
    told: list[Mapping[str, Any]] = []
    for place, turn in enumerate(turns):
        if turn["role"] != "tool":
            told.append(_with_calls(turn))
            continue
        result = f"<tool_response>\n{turn['content']}\n</tool_response>"
        if place and turns[place - 1]["role"] == "tool":
            told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{result}"}
        else:
            told.append({"role": "user", "content": result})
    return told


def _with_calls(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    if not (calls := turn.get("tool_calls")):
        return turn
    functions = [{key: call["function"][key] for key in ("name", "arguments")} for call in calls]
    texts = [f"<tool_call>\n{json.dumps(each, ensure_ascii=False)}\n</tool_call>" for each in functions]
    content = "\n".join([turn["content"], *texts] if turn["content"] else texts)
    return {"role": turn["role"], "content": content}
