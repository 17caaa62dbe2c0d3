"""Grammars of answers as llguidance compiles them: the limits, and what is wrong with one in plain words.

Used where a grammar is checked (tokenizer/grammar_process.py) and where it masks tokens (worker/grammar/), so that both
say the same. Knows no requests and no sequences. The library is imported with the first grammar: not every machine that
runs a model has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LONGEST_PROBLEM = 300  # characters
# Of a grammar's lexer, which makes them as texts need them: one or two kilobytes each.
MOST_STATES = 1 << 15
# What llguidance says of it.
NOTHING_LEFT = ("", "NoExtension", "NoExtensionBias")

# Tokens that a mask takes as a whole, in this order, where the grammar allows all of such texts: white space, and what
# stands in JSON strings, by length, since a string with a maxLength allows all that aren't longer than what is left.
_IN_STRINGS = r'[^"\\\x00-\x1F\x7F]'
_LENGTHS = (2, 4, 6, 8, 10, 12, 15, 20, 30)
SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_IN_STRINGS}{{1,{length}}}" for length in _LENGTHS), f"{_IN_STRINGS}+"]


class GrammarError(Exception):
    """A grammar that can't be used. The message is for the author of the grammar."""


def read_vocabulary(tokenizer: Path, size: int = 0, ends: Sequence[int] = ()) -> LLTokenizer:
    """Of a tokenizer.json, for a model whose logits have `size` ids (0: as many as it has tokens) and whose texts end
    with `ends` (none: what the file says). Takes half a second. Raises ValueError."""
    from llguidance import LLTokenizer

    text = tokenizer.read_text(encoding="utf-8")
    tokens = json.loads(text)
    # Some files carry the truncation and padding of their training.
    tokens["truncation"] = tokens["padding"] = None
    return LLTokenizer(json.dumps(tokens), n_vocab=size or None, eos_token=list(ends) or None, slices=SLICES)


def started(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of a text, with its first mask computed. Raises GrammarError."""
    from llguidance import LLMatcher, LLParserLimits

    # Without parts of grammars in messages.
    limits = LLParserLimits(max_lexer_states=MOST_STATES, verbose_errors=False)
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    possible = not matcher.is_error() and any(matcher.compute_bitmask())
    if matcher.is_error() or not possible:
        raise GrammarError(problem_of(matcher))
    return matcher


def problem_of(matcher: LLMatcher) -> str:
    """Of a matcher in error, or without a token that may follow."""
    lines = (line.strip() for line in matcher.get_error().splitlines())
    told = "; ".join(line for line in lines if line and line != "<non-verbose/>")
    if told in NOTHING_LEFT:
        return "no text follows it"
    return told if len(told) <= LONGEST_PROBLEM else told[:LONGEST_PROBLEM] + "…"
