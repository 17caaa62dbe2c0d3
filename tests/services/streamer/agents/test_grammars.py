from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher

from services.streamer.agents.grammars import regex


@pytest.mark.parametrize("pattern", ["a/b", r"a\/b", r"\\/", "a\nb", "a\\\nb", "[/]+", r"\d{3}", "é|ü", '"'])
def test_a_pattern_is_written_as_llguidance_would(pattern: str) -> None:
    theirs = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    assert json.loads(regex(pattern))["grammars"][0]["lark_grammar"] == theirs
