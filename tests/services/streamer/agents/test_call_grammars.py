"""Grammars of calls as the library compiles them: what they allow, the format's parser reads as calls of the schema."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from cutting import joined
from small_tokenizer import byte_level_tokenizer
from tokenizers import AddedToken, Tokenizer

from services.api.grammars import GrammarError, read_vocabulary, started
from services.streamer.agents.families import TOOL_FORMATS, Formats, ReasoningFormat, ToolFormat, reasoning_format
from services.streamer.agents.grammars import lark

SPELLED = [each for each in TOOL_FORMATS if each.spelling is not None]
TOOLS: dict[str, Any] = {
    "weather": {
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"city": {"enum": ["Bonn", 'K"öln']}},
    },
    "get-time.now": {"type": "object", "properties": {}, "additionalProperties": False},
}


class Walk:
    """Random texts of a grammar, by a tokenizer in which some markers are special tokens."""

    def __init__(self, folder: Path, special: tuple[str, ...]) -> None:
        self.tokenizer = byte_level_tokenizer()
        self.tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
        file = folder / "tokenizer.json"
        self.tokenizer.save(str(file))
        self.special = {each: self.tokenizer.token_to_id(each) for each in special}
        self.vocabulary = read_vocabulary(file)

    def text(self, grammar: str, draw: random.Random, most: int = 5000) -> str:
        matcher = started(self.vocabulary, lark(grammar))
        ids: list[int] = []
        while len(ids) < most:
            mask = matcher.compute_bitmask()
            allowed = [each for each in range(len(mask) * 8) if mask[each // 8] >> each % 8 & 1]
            if matcher.is_accepting() and (allowed == [self.vocabulary.eos_token] or draw.random() < 0.5):
                break
            # JSON may have any number of spaces.
            bare = [each for each in allowed if not decoded(self.tokenizer, [each]).isspace()]
            token = draw.choice(bare if bare and draw.random() < 0.9 else allowed)
            if token != self.vocabulary.eos_token:
                assert matcher.consume_token(token), matcher.get_error()
                ids.append(token)
        assert matcher.is_accepting(), "the text has no end"
        return decoded(self.tokenizer, ids)


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def grammar_of(format: ToolFormat, walk: Walk, end: str = "", reasoning: str = "none", **how: Any) -> str:
    found = reasoning_format(reasoning, "")
    assert found is None or isinstance(found, ReasoningFormat)
    text = Formats(format, found).calls_grammar(TOOLS, end, walk.special, **{"several": True, **how})
    assert text is not None
    return text


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("format", SPELLED, ids=lambda each: each.name)
def test_what_a_grammar_allows_is_read_as_calls_of_its_tools(
    format: ToolFormat, special: bool, tmp_path: Path
) -> None:
    walk = Walk(tmp_path, format.markers if special else ())
    grammar = grammar_of(format, walk)
    draw = random.Random(1)
    seen = set()
    for _ in range(12):
        text = walk.text(grammar, draw)
        parser = format.parser({})
        content, calls = joined(parser.feed(text) + parser.flush())
        assert content == "" and calls, text
        for name, arguments in calls:
            value = json.loads(arguments)
            if name == "weather":
                assert value["city"] in ("Bonn", 'K"öln') and 0 < value["days"] < 10
            else:
                assert value == {}
            seen.add(name)
    assert seen == set(TOOLS)


@pytest.mark.parametrize("format", SPELLED, ids=lambda each: each.name)
def test_one_call_is_one_call(format: ToolFormat, tmp_path: Path) -> None:
    walk = Walk(tmp_path, ())
    grammar, draw = grammar_of(format, walk, several=False), random.Random(2)
    for _ in range(8):
        parser = format.parser({})
        text = walk.text(grammar, draw)
        assert len(joined(parser.feed(text) + parser.flush())[1]) == 1


@pytest.mark.parametrize("special", [(), ("<think>", "</think>")])
@pytest.mark.parametrize(
    ("end", "text", "allowed"),
    [
        ("<think>\n", "hm <x\n</think>\n\nCALL", True),
        ("<think>\n", "CALL", False),
        ("", "<think>hm</think>CALL", True),
        ("", "CALL", True),
        ("", "hm CALL", False),
        ("<think>\n\n</think>\n\n", "CALL", True),
        ("<think>\n\n</think>\n\n", "<think>hm</think>CALL", False),
    ],
)
def test_reasoning_comes_before_the_calls(
    end: str, text: str, allowed: bool, special: tuple[str, ...], tmp_path: Path
) -> None:
    walk = Walk(tmp_path, special)
    (hermes,) = [each for each in SPELLED if each.name == "hermes"]
    matcher = started(walk.vocabulary, lark(grammar_of(hermes, walk, end, "qwen3")))
    call = '<tool_call>\n{"name": "get-time.now", "arguments": {}}\n</tool_call>'
    ids = walk.tokenizer.encode(text.replace("CALL", call), add_special_tokens=False).ids
    taken = matcher.try_consume_tokens(ids)
    assert (taken == len(ids) and matcher.is_accepting()) == allowed


def test_a_schema_that_cannot_be_held_is_told(tmp_path: Path) -> None:
    walk = Walk(tmp_path, ())
    (hermes,) = [each for each in SPELLED if each.name == "hermes"]
    text = Formats(hermes).calls_grammar({"f": {"type": 5}}, "", {}, several=False)
    assert text is not None
    with pytest.raises(GrammarError):
        started(walk.vocabulary, lark(text))


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_formats_without_json_cannot_be_held_to(name: str) -> None:
    (format,) = [each for each in TOOL_FORMATS if each.name == name]
    assert Formats(format).calls_grammar(TOOLS, "", {}, several=True) is None
