"""Reads what a request says its answer must be, as one grammar.

    response_format       {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {...}}},
                          {"type": "structural_tag", ...}
    structured_outputs    vLLM's: one of json, regex, choice, grammar, structural_tag, json_object
    guided_json, …        the same in vLLM's older form

What can't be compiled is seen later, and refused with the name of the field that it came from. Knows JSON values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from services.api.sampling import MAX_GRAMMAR
from services.streamer.agents.gbnf.lark import is_gbnf, lark_of
from services.streamer.agents.gbnf.syntax import GrammarSyntaxError
from services.streamer.agents.grammars import choice, json_schema, lark, regex
from services.streamer.openai.errors import ApiError, bad_value, unsupported
from services.streamer.openai.fields import BodyFields, check_list, shown, wrong_type
from services.streamer.openai.structural_tags import read_structural_tag

MAX_CHOICES = 4096
ANY_OBJECT: dict[str, Any] = {"type": "object"}
GUIDED = ("json", "regex", "choice", "grammar")
FORMATS = ("text", "json_object", "json_schema", "structural_tag")


class AskedForm(NamedTuple):
    """A grammar, and the field that asks for it; "" and "" for none. `free`: it may have free text."""

    grammar: str = ""
    field: str = ""
    free: bool = False


def read_grammar(fields: BodyFields) -> AskedForm:
    """Raises a 400 that names the field, also where two ask for different things."""
    asked = [each for each in (_response_format(fields), _structured_outputs(fields), *_guided(fields)) if each.field]
    for other in asked[1:]:
        raise bad_value(other.field, f"contradicts {asked[0].field}: give one of them")
    return check_size(asked[0]) if asked else AskedForm()


def check_size(asked: AskedForm) -> AskedForm:
    if len(asked.grammar) > MAX_GRAMMAR:
        message = f"makes a grammar of {len(asked.grammar)} characters, at most {MAX_GRAMMAR} are taken"
        raise bad_value(asked.field, message)
    return asked


def any_object(where: str) -> AskedForm:
    return AskedForm(json_schema(ANY_OBJECT), where)


def _response_format(fields: BodyFields) -> AskedForm:
    value = fields.get("response_format")
    if value is None:
        return AskedForm()
    wish = BodyFields(value, "response_format")
    kind = wish.get("type")
    if kind not in FORMATS:
        raise bad_value(wish.at("type"), f"must be one of {', '.join(FORMATS)}; not {shown(kind)}")
    asked = AskedForm()
    if kind == "json_object":
        asked = any_object(wish.path)
    if kind == "json_schema":
        asked = named_schema(BodyFields(_given(wish, "json_schema"), wish.at("json_schema")))
    if kind == "structural_tag":
        asked = AskedForm(read_structural_tag(wish), wish.path, free=True)
    wish.nothing_else()
    return asked


def named_schema(wish: BodyFields) -> AskedForm:
    """`name`, `description` and `strict` are for models that are told of the schema; here it always holds."""
    wish.text("name", 256)
    wish.text("description", 65536)
    wish.boolean("strict")
    asked = _json(_given(wish, "schema"), wish.at("schema"))
    wish.nothing_else()
    return asked


def _structured_outputs(fields: BodyFields) -> AskedForm:
    value = fields.get("structured_outputs")
    if value is None:
        return AskedForm()
    wish = BodyFields(value, "structured_outputs")
    kinds = [name for name in (*READERS, "json_object") if wish.get(name) not in (None, False)]
    if len(kinds) != 1:
        raise bad_value(wish.path, f"must have exactly one of {', '.join((*READERS, 'json_object'))}")
    (kind,) = kinds
    options = _options(wish)
    if options and kind not in ("json", "json_object"):
        raise bad_value(wish.at(next(iter(options))), f"has no meaning for {kind}")
    where = wish.at(kind)
    if kind == "json_object":
        wish.boolean(kind)
        asked = AskedForm(json_schema(ANY_OBJECT, **options), where)
    elif kind == "json":
        asked = _json(wish.get(kind), where, **options)
    else:
        asked = READERS[kind](wish.get(kind), where)
    # Which library does it is the server's affair, as in vLLM's newer versions.
    for name in ("_backend", "_backend_was_auto", "disable_fallback"):
        wish.get(name)
    wish.nothing_else()
    return asked


def _options(wish: BodyFields) -> dict[str, Any]:
    """How JSON may be written, by llguidance's names."""
    if wish.boolean("disable_additional_properties"):
        raise unsupported(wish.at("disable_additional_properties"), "is not supported: write it into the schema")
    pattern = wish.text("whitespace_pattern", 1024)
    if wish.boolean("disable_any_whitespace"):
        if pattern is not None:
            raise bad_value(wish.at("whitespace_pattern"), "contradicts disable_any_whitespace")
        return {"whitespace_flexible": False}
    return {} if pattern is None else {"whitespace_pattern": pattern}


def _guided(fields: BodyFields) -> list[AskedForm]:
    asked = []
    for kind in GUIDED:
        where = f"guided_{kind}"
        if (value := fields.get(where)) is not None:
            asked.append(READERS[kind](value, where))
    if fields.boolean("guided_json_object"):
        asked.append(AskedForm(json_schema(ANY_OBJECT), "guided_json_object"))
    pattern = fields.text("guided_whitespace_pattern", 1024)
    if pattern is not None:
        where = "guided_whitespace_pattern"
        if len(asked) != 1 or not asked[0].field.startswith("guided_json"):
            raise bad_value(where, "needs guided_json")
        schema = orjson.loads(asked[0].grammar)["grammars"][0]["json_schema"]
        asked = [AskedForm(json_schema(schema, whitespace_pattern=pattern), asked[0].field)]
    return asked


def _json(value: Any, where: str, **options: Any) -> AskedForm:
    """A schema: an object, true, or their JSON as text."""
    if isinstance(value, str):
        value = _read_json(value, where)
    if not isinstance(value, dict | bool):
        raise wrong_type(where, "a JSON schema", value)
    try:
        return AskedForm(json_schema(value, **options), where)
    except orjson.JSONEncodeError:
        raise bad_value(where, "is nested too deeply") from None


def _read_json(text: str, where: str) -> Any:
    if len(text) > MAX_GRAMMAR:
        raise bad_value(where, f"is longer than {MAX_GRAMMAR} characters", "string_above_max_length")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise bad_value(where, f"is no JSON: {error}") from None


def _regex(value: Any, where: str) -> AskedForm:
    return AskedForm(regex(_text(value, where)), where)


def _rules(value: Any, where: str) -> AskedForm:
    """A grammar in Lark, GBNF or EBNF."""
    text = _text(value, where)
    try:
        return AskedForm(lark(lark_of(text) if is_gbnf(text) else text), where)
    except GrammarSyntaxError as error:
        raise bad_value(where, f"can't be read: {error}") from None


def _structural_tag(value: Any, where: str) -> AskedForm:
    """As response_format has it, or its JSON as text."""
    wish = BodyFields(_read_json(value, where) if isinstance(value, str) else value, where)
    wish.choice("type", ("structural_tag",))
    return AskedForm(read_structural_tag(wish), where, free=True)


def _choice(value: Any, where: str) -> AskedForm:
    texts = check_list(value, where, MAX_CHOICES)
    if not texts:
        raise bad_value(where, "is empty")
    for index, each in enumerate(texts):
        _text(each, f"{where}[{index}]", empty=True)
    return AskedForm(choice(list(dict.fromkeys(texts))), where)


def _text(value: Any, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise wrong_type(where, "a string", value)
    if not value and not empty:
        raise bad_value(where, "is empty")
    if len(value) > MAX_GRAMMAR:
        raise bad_value(where, f"is longer than {MAX_GRAMMAR} characters", "string_above_max_length")
    return value


def _given(wish: BodyFields, name: str) -> Any:
    if (value := wish.get(name)) is None:
        raise _missing(wish.at(name))
    return value


def _missing(where: str) -> ApiError:
    return bad_value(where, "is missing", "missing_required_parameter")


READERS: dict[str, Callable[[Any, str], AskedForm]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _rules,
    "structural_tag": _structural_tag,
}
