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
from services.streamer.agents.grammars import choice, json_schema, lark, regex
from services.streamer.choice.detokenize import Vocabulary

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

    def __init__(self, folder: Path, special: tuple[str, ...], called_special: bool = True) -> None:
        self.tokenizer = byte_level_tokenizer()
        add = self.tokenizer.add_special_tokens if called_special else self.tokenizer.add_tokens
        add([AddedToken(each, special=called_special, normalized=False) for each in special])
        file = folder / "tokenizer.json"
        self.tokenizer.save(str(file))
        self.special = Vocabulary(self.tokenizer).special(["<think>", "</think>", *special])
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


MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HERMES = next(each for each in SPELLED if each.name == "hermes")


# As Qwen3 has them, markers are tokens of their own and not special.
@pytest.fixture(params=["spelled", "special", "added"])
def marked(request: pytest.FixtureRequest, tmp_path: Path) -> Walk:
    return Walk(tmp_path, () if request.param == "spelled" else MARKERS, request.param != "added")


def is_whole(walk: Walk, grammar: str, text: str) -> bool:
    matcher = started(walk.vocabulary, grammar)
    ids = walk.tokenizer.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


# The end of the prompt, a text, and whether it is one.
REASONED = [
    ("<think>\n", "hm <x\n</think>\n\nANSWER", True),
    ("<think>\n", "ANSWER", False),
    ("", "<think>hm</think>ANSWER", True),
    ("", "ANSWER", True),
    ("", "hm ANSWER", False),
    ("<think>\n\n</think>\n\n", "ANSWER", True),
    ("<think>\n\n</think>\n\n", "<think>hm</think>ANSWER", False),
]


@pytest.mark.parametrize(("end", "text", "allowed"), REASONED)
def test_reasoning_comes_before_the_calls(end: str, text: str, allowed: bool, marked: Walk) -> None:
    call = '<tool_call>\n{"name": "get-time.now", "arguments": {}}\n</tool_call>'
    grammar = lark(grammar_of(HERMES, marked, end, "qwen3"))
    assert is_whole(marked, grammar, text.replace("ANSWER", call)) == allowed


NUMBERED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "answer", "wrong"),
    [
        (json_schema(NUMBERED), '{"a": 1}', "{}"),
        (regex("[a-z]+/[0-9]{2}"), "ab/12", "ab/1"),
        (choice(["yes", "no"]), "no", "perhaps"),
        (lark('start: word+\nword: "x" | "y"'), "xyx", "xz"),
    ],
)
@pytest.mark.parametrize(("end", "text", "allowed"), REASONED)
def test_reasoning_comes_before_a_form(
    form: str, answer: str, wrong: str, end: str, text: str, allowed: bool, marked: Walk
) -> None:
    reasoning = reasoning_format("qwen3", "")
    grammar = Formats(reasoning=reasoning).form_grammar(form, end, marked.special)
    assert is_whole(marked, grammar, text.replace("ANSWER", answer)) == allowed
    assert not is_whole(marked, grammar, text.replace("ANSWER", wrong))
    assert Formats().form_grammar(form, end, marked.special) == form


def test_a_schema_that_cannot_be_held_is_told(tmp_path: Path) -> None:
    walk = Walk(tmp_path, ())
    text = Formats(HERMES).calls_grammar({"f": {"type": 5}}, "", {}, several=False)
    assert text is not None
    with pytest.raises(GrammarError):
        started(walk.vocabulary, lark(text))


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_formats_without_json_cannot_be_held_to(name: str) -> None:
    (format,) = [each for each in TOOL_FORMATS if each.name == name]
    assert Formats(format).calls_grammar(TOOLS, "", {}, several=True) is None
