"""Grammars of answers with calls, and texts of them, as the library compiles them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from small_tokenizer import byte_level_tokenizer
from tokenizers import AddedToken, Tokenizer

from services.api.grammars import read_vocabulary, started
from services.streamer.agents.answer_grammars import calls_alone
from services.streamer.agents.call_grammars import Calls
from services.streamer.agents.families import TOOL_FORMATS, Formats, ReasoningFormat, ToolFormat, reasoning_format
from services.streamer.agents.grammars import lark
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
    """Random texts of a grammar, by a tokenizer in which some markers are tokens of their own, special or not."""

    def __init__(self, folder: Path, special: tuple[str, ...], called_special: bool = True) -> None:
        self.tokenizer = byte_level_tokenizer()
        add = self.tokenizer.add_special_tokens if called_special else self.tokenizer.add_tokens
        add([AddedToken(each, special=called_special, normalized=False) for each in special])
        file = folder / "tokenizer.json"
        self.tokenizer.save(str(file))
        self.special = Vocabulary(self.tokenizer).special(["<think>", "</think>", *special])
        self.vocabulary = read_vocabulary(file)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def allows(self, grammar: str, text: str) -> bool:
        """Whether this may be an answer."""
        ids = self.ids(text)
        matcher = started(self.vocabulary, grammar)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def text(self, grammar: str, draw: random.Random, begin: str = "", most: int = 5000) -> str:
        """An answer that begins with this."""
        matcher = started(self.vocabulary, grammar)
        ids = self.ids(begin)
        assert matcher.consume_tokens(ids), matcher.get_error()
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
    return lark(calls_alone(calls_of(format, walk, end, reasoning, **how)))


def calls_of(format: ToolFormat, walk: Walk, end: str = "", reasoning: str = "none", **how: Any) -> Calls:
    found = reasoning_format(reasoning, "")
    assert found is None or isinstance(found, ReasoningFormat)
    calls = Formats(format, found).calls(how.pop("tools", TOOLS), end, walk.special, **{"several": True, **how})
    assert calls is not None
    return calls
