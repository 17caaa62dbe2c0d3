"""Fields of tools in the form of responses, where a function's fields stand beside its type.

Knows neither templates nor what a model writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.streamer.openai.errors import bad_value
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, shown
from services.streamer.openai.tools import (
    ALLOWED,
    AUTO,
    MAX_TOOLS,
    NONE,
    REQUIRED,
    Tools,
    check_different,
    check_name,
    check_parameters,
    only_functions,
    tools_of,
)

# Of a function, to the template.
TOLD = ("name", "description", "parameters")


@dataclass(frozen=True, slots=True)
class AskedTools:
    """`tools`: what the model is told. `told`: the same in the response, and so the others."""

    tools: Tools | None
    told: list[dict[str, Any]]
    choice: Any
    parallel: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    """`names`: the tools that may be called. `must`: one is."""

    names: list[str]
    must: bool = False
    one: bool = False


def read_tools(fields: BodyFields) -> AskedTools:
    value, choice = fields.get("tools"), fields.get("tool_choice")
    parallel = fields.get("parallel_tool_calls") is None or fields.boolean("parallel_tool_calls")
    given = check_list(value, "tools", MAX_TOOLS) if value is not None else []
    told = [_function(BodyFields(each, f"tools[{index}]")) for index, each in enumerate(given)]
    names = [each["name"] for each in told]
    check_different(names, "functions")
    chosen = _chosen(choice, names)
    called = [each for each in told if each["name"] in chosen.names and choice != NONE]
    tools = _tools(called, chosen, one_call=chosen.one or not parallel) if called else None
    return AskedTools(tools, told, AUTO if choice is None else choice, parallel)


def _tools(called: Sequence[Mapping[str, Any]], chosen: _Choice, *, one_call: bool) -> Tools:
    """In the form of chats, which templates are written for."""
    functions = [{name: each[name] for name in TOLD if each[name] is not None} for each in called]
    must = tuple(chosen.names) if chosen.must else ()
    return tools_of(functions, one_call=one_call, must=must, strict=[each["name"] for each in called if each["strict"]])


def _function(tool: BodyFields) -> dict[str, Any]:
    """As the response repeats it."""
    only_functions(tool)
    name, description = tool.needed("name", MAX_TEXT), tool.text("description", MAX_TEXT)
    check_name(name, tool.at("name"))
    check_parameters(tool)
    strict = tool.boolean("strict")
    # Of tools that are searched for, or that programs call.
    tool.only("defer_loading", False)
    tool.only("allowed_callers", ["direct"])
    tool.only("async", False)
    tool.nothing_else()
    known = {"name": name, "description": description, "parameters": tool.get("parameters")}
    return {"type": "function", **known, "strict": strict}


def _chosen(choice: Any, names: list[str]) -> _Choice:
    if choice in (None, NONE, AUTO):
        return _Choice(names)
    if choice == REQUIRED:
        if not names:
            raise bad_value("tool_choice", "needs tools")
        return _Choice(names, must=True)
    if not isinstance(choice, dict):
        allowed = f"must be {NONE}, {AUTO}, {REQUIRED} or an object that names tools, not {shown(choice)}"
        raise bad_value("tool_choice", allowed)
    wish = BodyFields(choice, "tool_choice")
    if wish.get("type") == ALLOWED:
        return _allowed(wish, names)
    return _Choice([_named(wish, names)], must=True, one=True)


def _allowed(wish: BodyFields, names: list[str]) -> _Choice:
    """The model is told of no others."""
    mode = wish.choice("mode", (AUTO, REQUIRED))
    given = check_list(wish.get("tools"), wish.at("tools"), MAX_TOOLS)
    found = [_named(BodyFields(each, f"{wish.at('tools')}[{index}]"), names) for index, each in enumerate(given)]
    if not found:
        raise bad_value(wish.at("tools"), "is empty")
    wish.nothing_else()
    return _Choice(list(dict.fromkeys(found)), must=mode == REQUIRED)


def _named(wish: BodyFields, names: list[str]) -> str:
    only_functions(wish)
    name = wish.needed("name", MAX_TEXT)
    wish.nothing_else()
    if name not in names:
        raise bad_value(wish.at("name"), f"{shown(name)} is none of the tools")
    return name
