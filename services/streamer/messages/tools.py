"""Tools of a Messages request: name, description and input_schema, and which of them the answer must call."""

from __future__ import annotations

from typing import Any

from services.streamer.messages.blocks import any_cache_control, missing
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, shown, wrong_type
from services.streamer.openai.tools import MAX_TOOLS, Tools, check_different, check_name, tools_of

CUSTOM = "custom"
AUTO, ANY, TOOL, NONE = CHOICES = ("auto", "any", "tool", "none")


def read_tools(fields: BodyFields) -> Tools | None:
    """None: the model is told of none."""
    value = fields.get("tools")
    told = check_list(value, "tools", MAX_TOOLS) if value is not None else []
    functions, strict = [], set()
    for index, each in enumerate(told):
        tool = BodyFields(each, f"tools[{index}]")
        functions.append(_function(tool))
        if tool.boolean("strict"):
            strict.add(functions[-1]["name"])
    names = [each["name"] for each in functions]
    check_different(names, "tools")
    kind, must, one_call = _choice(fields, names)
    if not functions or kind == NONE:
        return None
    return tools_of(functions, one_call=one_call, must=must, strict=strict)


def _function(tool: BodyFields) -> dict[str, Any]:
    """What the chat template is given of a tool: OpenAI's form, which templates are written for."""
    if (kind := tool.get("type")) not in (CUSTOM, None):
        raise unsupported(tool.at("type"), f"{shown(kind)} is not supported: tools are the client's own")
    name, description = tool.text("name", MAX_TEXT), tool.text("description", MAX_TEXT)
    if name is None:
        raise missing(tool.at("name"))
    check_name(name, tool.at("name"))
    schema, where = tool.get("input_schema"), tool.at("input_schema")
    if not isinstance(schema, dict):
        raise missing(where) if schema is None else wrong_type(where, "an object", schema)
    for flag in ("strict", "eager_input_streaming"):  # asked of the server: the model isn't told
        tool.boolean(flag)
    tool.only("defer_loading", False)
    tool.only("allowed_callers", ["direct"])
    tool.only("input_examples", [])
    any_cache_control(tool)
    tool.nothing_else()
    told = {} if description is None else {"description": description}
    return {"name": name, **told, "parameters": schema}


def _choice(fields: BodyFields, names: list[str]) -> tuple[str, tuple[str, ...], bool]:
    """Its kind, the tools of which one must be called, and whether there is one call at most."""
    value = fields.get("tool_choice")
    if value is None:
        return AUTO, (), False
    choice = BodyFields(value, "tool_choice")
    kind = choice.choice("type", CHOICES)
    if kind is None:
        raise missing(choice.at("type"))
    one_call = choice.boolean("disable_parallel_tool_use")
    name = choice.text("name", MAX_TEXT) if kind == TOOL else None
    choice.nothing_else()
    if kind in (ANY, TOOL) and not names:
        raise bad_value("tool_choice", "needs tools")
    if kind == ANY:
        return kind, tuple(names), one_call
    if kind != TOOL:
        return kind, (), one_call
    if name is None:
        raise missing(choice.at("name"))
    if name not in names:
        raise bad_value(choice.at("name"), f"{shown(name)} is none of the tools")
    return kind, (name,), True
