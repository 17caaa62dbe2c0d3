"""Fields of tools: those that a request brings, and those that its messages call.

    tools, tool_choice, parallel_tool_calls ─▶ Tools ─▶ the chat template (JSON), and the parser of the answer
    messages[].tool_calls ─▶ ToolCall ─▶ the chat template

Knows neither templates nor what a model writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from services.api.messages import ToolCall
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, shown, wrong_type

MAX_TOOLS = 128
MAX_CALLS = 128
TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
NONE, AUTO, REQUIRED = "none", "auto", "required"
ALLOWED = "allowed_tools"
LONGEST_ID = 256
# The schema of the arguments of a function that says nothing of them: it has none.
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tools:
    """Of a request. `text`: the list as JSON, for the template. `parameters`: of each tool the schema of its arguments.
    `one_call`: the answer calls one tool at most. `must`: it calls one of these; none: it may call none. `strict`:
    arguments of these follow their schema, whether or not a call is asked for."""

    text: str
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    one_call: bool = False
    must: tuple[str, ...] = ()
    strict: frozenset[str] = frozenset()


def read_tools(fields: BodyFields) -> Tools | None:
    """None: the model is told of none."""
    value, choice = fields.get("tools"), fields.get("tool_choice")
    parallel = fields.get("parallel_tool_calls")
    if parallel is not None:
        fields.boolean("parallel_tool_calls")
    told = check_list(value, "tools", MAX_TOOLS) if value is not None else []
    functions, strict = [], set()
    for index, each in enumerate(told):
        function, is_strict = _function(BodyFields(each, f"tools[{index}]"))
        functions.append(function)
        strict |= {function["name"]} if is_strict else set()
    names = [each["name"] for each in functions]
    check_different(names, "functions")
    choice, functions = _allowed(choice, functions)
    must = _must(choice, [each["name"] for each in functions])
    if not functions or choice == NONE:
        return None
    return tools_of(functions, one_call=parallel is False or isinstance(choice, dict), must=must, strict=strict)


def _function(tool: BodyFields) -> tuple[dict[str, Any], bool]:
    """What the template is given of a tool, and whether it is strict."""
    only_functions(tool)
    value = tool.get("function")
    if value is None:
        raise bad_value(tool.at("function"), "is missing", "missing_required_parameter")
    tool.nothing_else()
    function = BodyFields(value, tool.at("function"))
    name = _name(function)
    function.text("description", MAX_TEXT)
    check_parameters(function)
    strict = function.boolean("strict")
    function.nothing_else()
    check_name(name, function.at("name"))
    # A promise of the server, which the model isn't told of.
    told = {key: each for key, each in function.values.items() if key != "strict" and each is not None}
    return told, strict


def only_functions(tool: BodyFields) -> None:
    kind = tool.get("type")
    if kind not in ("function", None):
        raise unsupported(tool.at("type"), f"{shown(kind)} is not supported: tools are functions")


def check_parameters(function: BodyFields) -> None:
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(function.at("parameters"), "an object", parameters)


def check_name(name: str, where: str) -> None:
    if not TOOL_NAME.fullmatch(name):
        raise bad_value(where, f"must be 1..128 letters, digits, dots, underscores or hyphens, not {shown(name)}")


def check_different(names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise bad_value("tools", f"has two {what} with the name {shown(twice)}")


def tools_of(
    functions: list[dict[str, Any]], *, one_call: bool, must: tuple[str, ...], strict: Iterable[str]
) -> Tools:
    """`functions`: each with its name, and with its description and parameters if it has any."""
    text = as_json([{"type": "function", "function": each} for each in functions], "tools")
    parameters = {each["name"]: each.get("parameters", NO_PARAMETERS) for each in functions}
    return Tools(text, parameters, one_call, must, frozenset(strict))


def _name(function: BodyFields) -> str:
    name = function.text("name", MAX_TEXT)
    if name is None:
        raise bad_value(function.at("name"), "is missing", "missing_required_parameter")
    return name


def _allowed(choice: Any, functions: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
    """Of a choice among some of the tools the choice, and these."""
    if not isinstance(choice, dict) or choice.get("type") != ALLOWED:
        return choice, functions
    outer = BodyFields(choice, "tool_choice")
    outer.get("type")
    fields = BodyFields(outer.get(ALLOWED), outer.at(ALLOWED))
    outer.nothing_else()
    mode = fields.choice("mode", (AUTO, REQUIRED))
    if mode is None:
        raise bad_value(fields.at("mode"), "is missing", "missing_required_parameter")
    where = fields.at("tools")
    told = check_list(fields.get("tools"), where, MAX_TOOLS)
    fields.nothing_else()
    known = [each["name"] for each in functions]
    names = {_named(BodyFields(each, f"{where}[{index}]"), known) for index, each in enumerate(told)}
    return mode, [each for each in functions if each["name"] in names]


def _must(choice: Any, names: list[str]) -> tuple[str, ...]:
    if choice in (None, NONE, AUTO):
        return ()
    if choice == REQUIRED:
        if not names:
            raise bad_value("tool_choice", "needs tools")
        return tuple(names)
    if not isinstance(choice, dict):
        allowed = f"must be {NONE}, {AUTO}, {REQUIRED} or an object that names a function, not {shown(choice)}"
        raise bad_value("tool_choice", allowed)
    return (_named(BodyFields(choice, "tool_choice"), names),)


def _named(choice: BodyFields, names: list[str]) -> str:
    """A function of these that is chosen by its name."""
    only_functions(choice)
    function = BodyFields(choice.get("function"), choice.at("function"))
    choice.nothing_else()
    name = _name(function)
    function.nothing_else()
    if name not in names:
        raise bad_value(function.at("name"), f"{shown(name)} is none of the tools")
    return name


def read_calls(message: BodyFields) -> list[ToolCall]:
    """The field `tool_calls` of a message."""
    if (value := message.get("tool_calls")) is None:
        return []
    where = message.at("tool_calls")
    calls = check_list(value, where, MAX_CALLS)
    return [_call(BodyFields(each, f"{where}[{index}]")) for index, each in enumerate(calls)]


def _call(call: BodyFields) -> ToolCall:
    only_functions(call)
    given = call.text("id", LONGEST_ID)
    # What clients join from a stream has it.
    call.integer("index", 0, MAX_CALLS)
    function = BodyFields(call.get("function"), call.at("function"))
    call.nothing_else()
    name, arguments = _name(function), read_arguments(function)
    # The arguments once more: openai's client sends back what it has parsed.
    function.get("parsed_arguments")
    function.nothing_else()
    return ToolCall(id=given, name=name, arguments=arguments)


def read_arguments(function: BodyFields) -> str:
    """As JSON. Some clients send the object itself."""
    value, where = function.get("arguments"), function.at("arguments")
    if isinstance(value, dict):
        return as_json(value, where)
    if value is None or value == "":
        return "{}"
    if not isinstance(value, str):
        raise wrong_type(where, "a text that is a JSON object", value)
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise bad_value(where, f"is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise wrong_type(where, "a text that is a JSON object", found)
    as_json(found, where)
    return value


def as_json(value: Any, where: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise bad_value(where, "is nested too deep") from None
