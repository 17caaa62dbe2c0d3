"""Content blocks of the Messages API: a text, or a list of objects that name their type."""

from __future__ import annotations

from services.streamer.openai.errors import ApiError, bad_value, unsupported
from services.streamer.openai.fields import MAX_PARTS, MAX_TEXT, BodyFields, check_list, shown, wrong_type


def read_blocks(holder: BodyFields, name: str, taken: tuple[str, ...]) -> list[BodyFields]:
    """Of a field that isn't null. A text is one block of it."""
    value, where = holder.get(name), holder.at(name)
    if isinstance(value, str):
        blocks = [BodyFields({"type": "text", "text": value}, where)]
    elif isinstance(value, list):
        told = enumerate(check_list(value, where, MAX_PARTS))
        blocks = [BodyFields(each, f"{where}[{index}]") for index, each in told]
    else:
        raise wrong_type(where, "a string or a list of blocks", value)
    for block in blocks:
        if (kind := block.get("type")) not in taken:
            raise unsupported(block.at("type"), f"{shown(kind)} is not supported there: {', '.join(taken)} only")
    return blocks


def read_text(block: BodyFields) -> str:
    text = block.text("text", MAX_TEXT)
    if text is None:
        raise missing(block.at("text"))
    block.only("citations", [])
    any_cache_control(block)
    block.nothing_else()
    return text


def any_cache_control(holder: BodyFields) -> None:
    """Taken without effect: every full page of a prompt is cached."""
    value = holder.get("cache_control")
    if value is not None and not isinstance(value, dict):
        raise wrong_type(holder.at("cache_control"), "an object", value)


def missing(where: str) -> ApiError:
    return bad_value(where, "is missing", "missing_required_parameter")
