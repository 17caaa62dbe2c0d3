"""Writes a grammar in GBNF or EBNF as Lark, as llguidance reads it. The texts of both are the same."""

from __future__ import annotations

import re

from services.streamer.agents.gbnf.divided import Counted, Divided, Either, Lexeme, Reference
from services.streamer.agents.gbnf.lexemes import Division, divide
from services.streamer.agents.gbnf.regular import Rules, TooLarge, counted, written
from services.streamer.agents.gbnf.syntax import ROOT, GrammarSyntaxError, read_rules

_RULE = re.compile(r"^[ \t]*[\w.-]+[ \t]*::=", re.MULTILINE | re.ASCII)


def is_gbnf(text: str) -> bool:
    """Rather than Lark, which has a colon behind the name of a rule."""
    return _RULE.search(text) is not None


def lark_of(text: str) -> str:
    """Raises GrammarSyntaxError."""
    rules = read_rules(text)
    try:
        division = divide(rules)
    except TooLarge:
        raise GrammarSyntaxError("it takes too much computing: shorten it, or write it in Lark") from None
    return _Writer(rules, division).text()


class _Writer:
    def __init__(self, rules: Rules, division: Division) -> None:
        self._rules, self._division = rules, division
        self._names = {name: f"r{place}" for place, name in enumerate(division.rules)}
        self._terminals: dict[str, str] = {}

    def text(self) -> str:
        rules = [f"{self._names[name]}: {self._rule(rule)}" for name, rule in self._division.rules.items()]
        terminals = [f"{name}: {pattern}" for pattern, name in self._terminals.items()]
        return "\n".join([f"start: {self._names[ROOT]}", *rules, *terminals, ""])

    def _rule(self, rule: Divided) -> str:
        if isinstance(rule, Lexeme):
            return self._lexeme(rule)
        if isinstance(rule, Reference):
            return self._names[rule.name]
        if isinstance(rule, Counted):
            return f"({self._rule(rule.item)}){counted(rule.count)}"
        if isinstance(rule, Either):
            return f"({' | '.join(map(self._rule, rule.options))})"
        return " ".join(map(self._rule, rule.items)) or '""'

    def _lexeme(self, lexeme: Lexeme) -> str:
        """One that may be empty is one that isn't, or none."""
        part = self._division.parts[lexeme]
        if not part.first:
            return '""' if part.nullable else self._terminal(r"/[^\s\S]/")
        pattern = f"/{written(lexeme.node, self._rules)}/"
        return f"{self._terminal(pattern + ' & /(?s:.+)/')}?" if part.nullable else self._terminal(pattern)

    def _terminal(self, pattern: str) -> str:
        return self._terminals.setdefault(pattern, f"T{len(self._terminals)}")
