"""A grammar of an answer as one text, in llguidance's form (Sampling.grammar). The server treats it as data.

Whether it can be compiled is seen later, in tokenizer/grammar_process.py. Pure: knows no library of grammars.
"""

from __future__ import annotations

from typing import Any

import orjson

from services.streamer.agents.schemas import without_unknown_formats


def json_schema(schema: Any, **options: Any) -> str:
    """Of JSON that a schema describes. `options`: llguidance's, such as whitespace_pattern."""
    if options:
        schema = {**(schema if isinstance(schema, dict) else {}), "x-guidance": options}
    return _grammar({"json_schema": without_unknown_formats(schema)})


def regex(pattern: str) -> str:
    """Of the texts that match it whole."""
    return _grammar({"lark_grammar": f"start: /{between_slashes(pattern)}/"})


def choice(texts: list[str]) -> str:
    """Of exactly these texts. As one terminal: of rules the library reads at most 2000."""
    return _grammar({"lark_grammar": f"start: CHOICE\nCHOICE: {' | '.join(map(_quoted, texts))}"})


def lark(grammar: str) -> str:
    """In the dialect of Lark that llguidance reads. The rule `start` is the text."""
    return _grammar({"lark_grammar": grammar})


def _grammar(one: dict[str, Any]) -> str:
    return orjson.dumps({"grammars": [one]}).decode()


def _quoted(text: str) -> str:
    """As a JSON string, but for the one control character that JSON leaves as it is and Lark doesn't take."""
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f")


def between_slashes(pattern: str) -> str:
    """As Lark wants it on one line: a slash ends the pattern."""
    found, escaped = [], False
    for each in pattern:
        found.append({"/": "/" if escaped else "\\/", "\n": "n" if escaped else "\\n"}.get(each, each))
        escaped = each == "\\" and not escaped
    return "".join(found)
