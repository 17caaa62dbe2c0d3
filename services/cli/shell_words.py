"""Reads a command line, or a short script, as a shell would, and runs nothing: statements with their environment.

It knows quotes, line ends, comments, `export` and variables; no loops, and no output of other commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

_SEPARATORS = frozenset("&;|\n")
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# $NAME, ${NAME} and ${NAME:-VALUE}, whose value may hold another one.
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::-((?:\$\{[^{}]*\}|[^{}])*))?\})")
_REDIRECTION = re.compile(r"\d?[<>]+(.*)")
# Variables within the values of variables.
_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Statement:
    environment: Mapping[str, str]
    words: tuple[str, ...]


def statements(text: str, environment: Mapping[str, str] | None = None) -> Iterator[Statement]:
    """Those that run something. Raises ValueError where a quote isn't closed."""
    lexer = shlex.shlex(_COMMENT.sub(r"\1", text.replace("\\\n", " ")), posix=True, punctuation_chars="&;|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    known = dict(environment or {})
    words: list[str] = []
    for token in chain(lexer, ["\n"]):
        if not token or not {*token} <= _SEPARATORS:
            words.append(token)
            continue
        own, rest = _assignments(words, known)
        if rest:
            yield Statement({**known, **own}, tuple(rest))
        else:
            known |= own
        words = []


def expanded(word: str, environment: Mapping[str, str]) -> str:
    """A variable that nobody set stays as it is written."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2]) or found[3] or found[0]

    for _ in range(_DEPTH):
        word = _VARIABLE.sub(value, word)
    return word


def _assignments(words: list[str], known: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Those in front of a command, and the command."""
    own: dict[str, str] = {}
    for place, word in enumerate(words):
        if found := _ASSIGNMENT.fullmatch(word):
            own[found[1]] = expanded(found[2], {**known, **own})
        # `$` is the prompt of a page.
        elif word not in ("export", "$"):
            return own, [expanded(each, {**known, **own}) for each in _without_files(words[place:])]
    return own, []


def _without_files(words: list[str]) -> Iterator[str]:
    """Without what the output goes to: `> FILE` or `>FILE`."""
    is_file = False
    for word in words:
        found = _REDIRECTION.fullmatch(word)
        if not found and not is_file:
            yield word
        is_file = found is not None and not found[1]
