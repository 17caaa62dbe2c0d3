from __future__ import annotations

import json
from pathlib import Path

import pytest
from llguidance import LLMatcher

from services.api.grammars import read_vocabulary, started
from services.streamer.agents.grammars import choice, regex
from services.streamer.openai.structured import MAX_CHOICES
from tests.services.tokenizer.conftest import make_tokenizer


@pytest.mark.parametrize("pattern", ["a/b", r"a\/b", r"\\/", "a\nb", "a\\\nb", "[/]+", r"\d{3}", "é|ü", '"'])
def test_a_pattern_is_written_as_llguidance_would(pattern: str) -> None:
    theirs = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    assert json.loads(regex(pattern))["grammars"][0]["lark_grammar"] == theirs


CONTROL = [chr(each) for each in (*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF)]


def test_a_choice_may_hold_any_character(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(file))
    vocabulary = read_vocabulary(file)
    for text in [*CONTROL, *(f"a{each}b" for each in CONTROL), "\\u007f\x7f", 'a"/\\', "é\U0001f600"]:
        matcher = started(vocabulary, choice([text, "no"]))
        assert matcher.consume_tokens(vocabulary.tokenize_str(text)) and matcher.is_accepting(), ascii(text)
        assert not started(vocabulary, choice([text + "!", "no"])).consume_tokens(vocabulary.tokenize_str(text + "?"))


def test_a_choice_may_have_as_many_texts_as_a_request(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(file))
    vocabulary = read_vocabulary(file)
    texts = [f"{number * 7919 % 100_003} cats" for number in range(MAX_CHOICES)]
    matcher = started(vocabulary, choice(texts))
    assert matcher.consume_tokens(vocabulary.tokenize_str(texts[-1])) and matcher.is_accepting()
