"""Reads structural tags, in both forms that vLLM takes.

    {"structures": [{"begin": "<f=a>", "schema": {...}, "end": "</f>"}], "triggers": ["<f="]}
    {"format": {"type": "triggered_tags", "triggers": [...], "tags": [...]}}

A kind of format is a row of KINDS. Knows JSON values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from services.api.sampling import MAX_GRAMMAR
from services.streamer.agents.gbnf.lark import is_gbnf, lark_of
from services.streamer.agents.gbnf.syntax import GrammarSyntaxError
from services.streamer.agents.tag_grammars import (
    Either,
    Form,
    Free,
    FreeTextWithoutEnd,
    Json,
    Regex,
    Repeated,
    Rules,
    Sequence,
    Tag,
    Texts,
    Triggered,
    tag_grammar,
)
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import BodyFields, check_list, shown, wrong_type

MOST_PARTS = 1024
MOST_NESTED = 32
MOST_REPEATED = 65536
# Reading one may take a tenth of a second.
MOST_GRAMMARS = 8


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a format is read: what it is nested in, and the grammars that were read."""

    depth: int = 0
    grammars: list[str] = field(default_factory=list)

    def deeper(self) -> Inside:
        return replace(self, depth=self.depth + 1)


def read_structural_tag(wish: BodyFields) -> str:
    """Its grammar. The caller has read `type`."""
    if wish.get("format") is not None:
        wish.nothing_else()
        form = _form(wish, "format", Inside())
    else:
        form = _structures(wish)
    try:
        return tag_grammar(form)
    except FreeTextWithoutEnd:
        raise bad_value(wish.path, "has free text without an end: a fixed text must follow it, or nothing") from None


def _structures(wish: BodyFields) -> Form:
    where = wish.at("structures")
    tags = []
    for index, each in enumerate(check_list(wish.get("structures"), where, MOST_PARTS)):
        one = BodyFields(each, f"{where}[{index}]")
        schema = one.get("schema")
        tag = Tag(_text(one, "begin"), Json({} if schema is None else _schema(schema, one.at("schema"))),
                  (_text(one, "end"),))  # fmt: skip
        one.nothing_else()
        tags.append(tag)
    triggers = _texts(wish, "triggers")
    wish.nothing_else()
    return Triggered(_by_trigger(triggers, tags, where))


def _form(parent: BodyFields, name: str, inside: Inside) -> Form:
    return _read(parent.get(name), parent.at(name), inside)


def _read(value: Any, where: str, inside: Inside) -> Form:
    if value is None:
        raise bad_value(where, "is missing", "missing_required_parameter")
    if inside.depth > MOST_NESTED:
        raise bad_value(where, "is nested too deeply")
    fields = BodyFields(value, where)
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise unsupported(fields.at("type"), f"{shown(kind)} is not supported: {', '.join(KINDS)} are")
    form = KINDS[kind](fields, inside.deeper())
    fields.nothing_else()
    return form


def _const(fields: BodyFields, inside: Inside) -> Form:
    return Texts((_text(fields, "value"),))


def _json_schema(fields: BodyFields, inside: Inside) -> Form:
    fields.only("style", "json")
    fields.only("any_order", False)
    return Json(_schema(fields.get("json_schema"), fields.at("json_schema")))


def _regex(fields: BodyFields, inside: Inside) -> Form:
    pattern = _text(fields, "pattern")
    if not pattern:
        raise bad_value(fields.at("pattern"), "is empty")
    return Regex(pattern)


def _grammar(fields: BodyFields, inside: Inside) -> Form:
    text = _text(fields, "grammar")
    inside.grammars.append(text)
    if len(inside.grammars) > MOST_GRAMMARS:
        raise bad_value(fields.at("grammar"), f"is one of more than {MOST_GRAMMARS} grammars")
    try:
        return Rules(lark_of(text) if is_gbnf(text) else text)
    except GrammarSyntaxError as error:
        raise bad_value(fields.at("grammar"), f"can't be read: {error}") from None


def _any_text(fields: BodyFields, inside: Inside) -> Form:
    return Free(_texts(fields, "excludes", empty=True))


def _sequence(fields: BodyFields, inside: Inside) -> Form:
    return Sequence(_elements(fields, inside))


def _or(fields: BodyFields, inside: Inside) -> Form:
    return Either(_elements(fields, inside))


def _elements(fields: BodyFields, inside: Inside) -> tuple[Form, ...]:
    where = fields.at("elements")
    found = check_list(fields.get("elements"), where, MOST_PARTS)
    if not found:
        raise bad_value(where, "is empty")
    return tuple(_read(each, f"{where}[{index}]", inside) for index, each in enumerate(found))


def _optional(fields: BodyFields, inside: Inside) -> Form:
    return Repeated(_form(fields, "content", inside), 0, 1)


def _star(fields: BodyFields, inside: Inside) -> Form:
    return Repeated(_form(fields, "content", inside), 0, None)


def _plus(fields: BodyFields, inside: Inside) -> Form:
    return Repeated(_form(fields, "content", inside), 1, None)


def _repeat(fields: BodyFields, inside: Inside) -> Form:
    least, most = fields.integer("min", 0, MOST_REPEATED), fields.integer("max", -1, MOST_REPEATED)
    for name, value in (("min", least), ("max", most)):
        if value is None:
            raise bad_value(fields.at(name), "is missing", "missing_required_parameter")
    assert least is not None and most is not None
    if -1 < most < least:
        raise bad_value(fields.at("max"), "is less than min")
    return Repeated(_form(fields, "content", inside), least, None if most < 0 else most)


def _tag(fields: BodyFields, inside: Inside) -> Tag:
    end = fields.get("end")
    ends = (_text(fields, "end"),) if not isinstance(end, list) else _texts(fields, "end")
    return Tag(_text(fields, "begin"), _form(fields, "content", inside), ends)


def _tags(fields: BodyFields, inside: Inside) -> list[Tag]:
    where = fields.at("tags")
    tags = []
    for index, each in enumerate(check_list(fields.get("tags"), where, MOST_PARTS)):
        one = BodyFields(each, f"{where}[{index}]")
        if (kind := one.get("type")) not in ("tag", None):
            raise bad_value(one.at("type"), f"must be tag, not {shown(kind)}")
        tags.append(_tag(one, inside.deeper()))
        one.nothing_else()
    if not tags:
        raise bad_value(where, "is empty")
    return tags


def _triggered_tags(fields: BodyFields, inside: Inside) -> Form:
    tags, triggers = _tags(fields, inside), _texts(fields, "triggers")
    return Triggered(
        _by_trigger(triggers, tags, fields.at("tags")),
        fields.boolean("at_least_one"), fields.boolean("stop_after_first"), _texts(fields, "excludes", empty=True),
    )  # fmt: skip


def _tags_with_separator(fields: BodyFields, inside: Inside) -> Form:
    tag, separator = Either(tuple(_tags(fields, inside))), Texts((_text(fields, "separator"),))
    needed, one = fields.boolean("at_least_one"), fields.boolean("stop_after_first")
    tags: Form = tag if one else Sequence((tag, Repeated(Sequence((separator, tag)), 0, None)))
    return tags if needed else Repeated(tags, 0, 1)


def _by_trigger(
    triggers: tuple[str, ...], tags: list[Tag], where: str
) -> tuple[tuple[str, tuple[Tag, ...]], ...]:
    """Each trigger with its tags."""
    found: dict[str, list[Tag]] = {each: [] for each in triggers}
    for index, tag in enumerate(tags):
        own = [each for each in found if tag.begin.startswith(each)]
        if len(own) != 1:
            raise bad_value(f"{where}[{index}].begin", f"must begin with one of the triggers, not with {len(own)}")
        found[own[0]].append(tag)
    for trigger, of_it in found.items():
        if not of_it:
            raise bad_value(where, f"has none that begins with the trigger {shown(trigger)}")
    return tuple((trigger, tuple(of_it)) for trigger, of_it in found.items())


def _schema(value: Any, where: str) -> Any:
    if not isinstance(value, dict | bool):
        raise wrong_type(where, "a JSON schema", value)
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise bad_value(where, "is nested too deeply") from None
    return value


def _text(fields: BodyFields, name: str) -> str:
    if isinstance(fields.get(name), dict):
        raise unsupported(fields.at(name), "as a token is not supported: write text")
    text = fields.text(name, MAX_GRAMMAR)
    if text is None:
        raise bad_value(fields.at(name), "is missing", "missing_required_parameter")
    return text


def _texts(fields: BodyFields, name: str, *, empty: bool = False) -> tuple[str, ...]:
    value, where = fields.get(name), fields.at(name)
    texts = [] if value is None and empty else check_list(value, where, MOST_PARTS)
    if not texts and not empty:
        raise bad_value(where, "is empty")
    for index, each in enumerate(texts):
        if not isinstance(each, str):
            raise wrong_type(f"{where}[{index}]", "a string", each)
        if not each:
            raise bad_value(f"{where}[{index}]", "is empty")
    return tuple(dict.fromkeys(texts))


KINDS: dict[str, Callable[[BodyFields, Inside], Form]] = {
    "const_string": _const,
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "any_text": _any_text,
    "sequence": _sequence,
    "or": _or,
    "optional": _optional,
    "star": _star,
    "plus": _plus,
    "repeat": _repeat,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}
