"""Reads a JSON object field by field and refuses unknown fields.

Every refusal names its field with a path such as messages[2].content[0].type. null means "not given", as
OpenAI's own clients send it. A bool is never a number. Knows JSON values, and the one shape that several parameters
share: a text, or its parts. Knows no parameter of the API but by its row (services/api/parameters.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from services.api.parameters import Parameter
from services.api.settings import did_you_mean
from services.streamer.openai.errors import ApiError, bad_value, unsupported

LARGEST_SHOWN = 60
MAX_PARTS = 256
_TEXT_PART = {"type", "text"}
MAX_TEXT = 2**31 - 1  # the body's size is the real limit


class BodyFields:
    """One JSON object. Ask for every field you know, then call `nothing_else`."""

    __slots__ = ("path", "values", "wanted")

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, dict):
            where = path or "body"
            raise bad_value(where, f"must be an object, not {_name(values)}", "invalid_type")
        self.values: dict[str, Any] = values
        self.path = path
        self.wanted: set[str] = set()

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> Any:
        self.wanted.add(name)
        return self.values.get(name)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.get(name)
        return None if value is None else check_integer(value, self.at(name), low, high)

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number in low..high; with `above`, greater than `low`."""
        value = self.get(name)
        return None if value is None else check_number(value, self.at(name), low, high, above=above)

    def read(self, row: Parameter) -> Any:
        """By the field's row; None: not given."""
        if row.kind == "number":
            return self.number(row.name, row.low, row.high, above=row.above)
        if row.kind == "text":
            return self.text(row.name, int(row.high))
        if row.kind == "boolean":
            return self.boolean(row.name)
        value = self.integer(row.name, int(row.low), int(row.high))
        return value if value is None or row.floor is None else max(value, int(row.floor))

    def read_all(self, rows: Mapping[str, Parameter]) -> dict[str, Any]:
        """What is given, by the attributes of the dataclass that has these rows."""
        read = ((row.attribute, self.read(row)) for row in rows.values())
        return {name: value for name, value in read if value is not None}

    def boolean(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self._wrong_type(name, "true or false")
        return bool(value)

    def text(self, name: str, longest: int) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self._wrong_type(name, "a string")
        if len(value) > longest:
            raise bad_value(self.at(name), f"is longer than {longest} characters", "string_above_max_length")
        return str(value)

    def needed(self, name: str, longest: int) -> str:
        """A text that must be there."""
        value = self.text(name, longest)
        if value is None:
            raise bad_value(self.at(name), "is missing", "missing_required_parameter")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in allowed:
            raise bad_value(self.at(name), f"must be one of {', '.join(allowed)}; not {shown(value)}")
        return value

    def only(self, name: str, *harmless: Any) -> None:
        """A field that is not supported yet: null and values without effect are accepted."""
        value = self.get(name)
        if value is None or any(value == each and type(value) is type(each) for each in harmless):
            return
        taken = f", other than as {' or '.join(orjson.dumps(each).decode() for each in harmless)}" if harmless else ""
        raise unsupported(self.at(name), f"is not supported by this server{taken}")

    def nothing_else(self) -> None:
        for name, value in self.values.items():
            if name not in self.wanted and value is not None:
                meant = did_you_mean(name[:LARGEST_SHOWN], self.wanted)
                raise unsupported(self.at(name[:LARGEST_SHOWN]), f"is not supported by this server{meant}")

    def _wrong_type(self, name: str, wanted: str) -> NoReturn:
        raise wrong_type(self.at(name), wanted, self.values[name])


def check_integer(value: Any, path: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(path, "an integer", value)
    if not low <= value <= high:
        raise bad_value(path, f"must be in {low}..{high}, not {shown(value)}", "out_of_range")
    return value


def check_number(value: Any, path: str, low: float, high: float, *, above: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(path, "a number", value)
    # An integer of any size compares exactly; only one inside the range is turned into a float.
    if not low <= value <= high or (above and value == low):
        border = f"greater than {low:g} and at most {high:g}" if above else f"in {low:g}..{high:g}"
        raise bad_value(path, f"must be {border}, not {shown(value)}", "out_of_range")
    return float(value)


def check_list(value: Any, path: str, longest: int) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(path, "a list", value)
    if len(value) > longest:
        raise bad_value(path, f"has {len(value)} items, at most {longest} are taken", "array_above_max_length")
    return value


def read_content(fields: BodyFields) -> str:
    """The field `content`: a text, or text parts, which are joined."""
    content = fields.get("content")
    where = fields.at("content")
    if content is None:
        raise bad_value(where, "is missing", "missing_required_parameter")
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, each in enumerate(check_list(content, where, MAX_PARTS)):
        if _is_text_part(each):
            texts.append(each["text"])
            continue
        part = BodyFields(each, f"{where}[{index}]")
        kind = part.get("type")
        if kind != "text":
            raise unsupported(part.at("type"), f"{shown(kind)} is not supported: text parts only")
        text = part.text("text", MAX_TEXT)
        if text is None:
            raise bad_value(part.at("text"), "is missing", "missing_required_parameter")
        texts.append(text)
        part.nothing_else()
    return "".join(texts)


def _is_text_part(value: Any) -> bool:
    """A part as nearly all are. A request may have ten thousand, and the way field by field takes 4 µs each."""
    if not isinstance(value, dict) or value.keys() != _TEXT_PART:
        return False
    return value["type"] == "text" and isinstance(value["text"], str)


def wrong_type(path: str, wanted: str, value: Any) -> ApiError:
    return bad_value(path, f"must be {wanted}, not {_name(value)}", "invalid_type")


def shown(value: Any) -> str:
    """A value for an error message: short and on one line."""
    if isinstance(value, dict | list):
        return _name(value)
    text = repr(value[: LARGEST_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= LARGEST_SHOWN else text[:LARGEST_SHOWN] + "…"


def _name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
