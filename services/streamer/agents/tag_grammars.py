"""Grammars of structural tags: forms within each other, some of which are free text up to a fixed one.

    Triggered(["<f="], [Tag("<f=a>", schema, ["</f>"])])      text <f= a> {...} </f> text ...

A lexer takes the longest text, so free text ends lazily: at the first of the fixed texts that may follow it. Those
belong to it then. Free text before anything else has no end.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from services.streamer.agents.grammars import between_slashes


@dataclass(frozen=True, slots=True)
class Texts:
    """One of these."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Any text that has none of these in it."""

    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Json:
    schema: Any


@dataclass(frozen=True, slots=True)
class Regex:
    pattern: str


@dataclass(frozen=True, slots=True)
class Rules:
    """A grammar in Lark."""

    lark: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Either:
    options: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    item: Form
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Tag:
    begin: str
    content: Form
    ends: tuple[str, ...]

    def behind(self, trigger: str) -> Sequence:
        return Sequence((Texts((self.begin[len(trigger) :],)), self.content, Texts(self.ends)))


@dataclass(frozen=True, slots=True)
class Triggered:
    """Free text with tags in it; `triggers`: each with the tags that begin with it. `at_least_one`: it begins with a
    tag."""

    triggers: tuple[tuple[str, tuple[Tag, ...]], ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


Form = Texts | Free | Json | Regex | Rules | Sequence | Either | Repeated | Tag | Triggered
# What follows a form: one of these texts, which then belong to it; none of them: something else; None: the end.
After = tuple[str, ...] | None


class FreeTextWithoutEnd(Exception):
    """Something follows it, and no fixed text."""


def tag_grammar(form: Form) -> str:
    """In llguidance's form. Raises FreeTextWithoutEnd."""
    return _Writer().grammar(form)


class _Writer:
    def __init__(self) -> None:
        self._rules: list[str] = []
        self._grammars: list[dict[str, str]] = []

    def grammar(self, form: Form) -> str:
        start = f"start: {self._form(form, None) or _text('')}"
        rules = "\n".join([start, *self._rules, ""])
        return orjson.dumps({"grammars": [{"lark_grammar": rules}, *self._grammars]}).decode()

    def _form(self, form: Form, after: After) -> str:
        """As it stands in a rule, with one of the texts that follow."""
        if isinstance(form, Sequence | Tag):
            return self._sequence(_flat(form), after)
        if isinstance(form, Either):
            return f"({' | '.join(self._form(each, after) or _text('') for each in form.options)})"
        if isinstance(form, Free):
            return self._free(form.excludes, after)
        if isinstance(form, Triggered):
            return self._triggered(form, after)
        if isinstance(form, Regex):
            # With the text behind it in one lexeme, it ends where that begins.
            return self._terminal(f"/{between_slashes(form.pattern)}/ {_one_of(after)}")
        return f"{self._closed(form)} {_one_of(after)}".strip()

    def _closed(self, form: Texts | Json | Rules | Repeated) -> str:
        if isinstance(form, Texts):
            return _one_of(form.texts)
        if isinstance(form, Json):
            return self._rule("j", f"%json {json.dumps(form.schema, ensure_ascii=False)}")
        if isinstance(form, Rules):
            self._grammars.append({"name": f"g{len(self._grammars)}", "lark_grammar": form.lark})
            return "@" + self._grammars[-1]["name"]
        count = f"{{{form.least},{'' if form.most is None else form.most}}}"
        return f"({self._form(form.item, ()) or _text('')}){count}"

    def _sequence(self, items: list[Form], after: After) -> str:
        """Texts belong to what they follow."""
        parts: list[str] = []
        place = 0
        while place < len(items):
            item, place = items[place], place + 1
            follows: After = after if place == len(items) else ()
            if place < len(items) and isinstance(texts := items[place], Texts):
                follows, place = texts.texts, place + 1
                parts.append(self._form(item, follows))
                if place == len(items):
                    parts.append(_one_of(after))
            else:
                parts.append(self._form(item, follows))
        return " ".join(filter(None, parts)) or _one_of(after)

    def _free(self, excludes: tuple[str, ...], after: After) -> str:
        if after is None:
            return self._terminal(_any_but(excludes))
        if not after:
            raise FreeTextWithoutEnd
        return self._up_to(excludes, after)

    def _triggered(self, form: Triggered, after: After) -> str:
        at_once, later = [], []
        for trigger, tags in form.triggers:
            behind = self._rule("b", " | ".join(self._form(tag.behind(trigger), ()) or _text("") for tag in tags))
            at_once.append(f"{_text(trigger)} {behind}")
            later.append(f"{self._up_to(form.excludes, (trigger,))} {behind}")
        first, tagged = f"({' | '.join(at_once)})", f"({' | '.join(later)})"
        if form.stop_after_first and form.at_least_one:
            return f"{first} {_one_of(after)}"
        rest = self._free(form.excludes, after)
        if form.stop_after_first:
            return f"({tagged} {_one_of(after)} | {rest})"
        return f"{first if form.at_least_one else ''} {tagged}* {rest}"

    def _up_to(self, excludes: tuple[str, ...], texts: tuple[str, ...]) -> str:
        return self._rule("f", self._terminal(f"({_any_but(excludes)}) {_one_of(texts)}"), "[lazy]")

    def _rule(self, letter: str, body: str, options: str = "") -> str:
        name = f"{letter}{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        return self._rule("T", body)


def _flat(form: Form) -> list[Form]:
    """Without empty texts, and without sequences and tags in it."""
    if isinstance(form, Tag):
        return _flat(form.behind(""))
    if isinstance(form, Sequence):
        return [each for item in form.items for each in _flat(item)]
    return [] if form == Texts(("",)) else [form]


def _any_but(excludes: tuple[str, ...]) -> str:
    patterns = [re.escape(each).replace("/", r"\/") for each in excludes]
    return " & ".join(["/(?s:.*)/", *(f"~/(?s:.*{each}.*)/" for each in patterns)])


def _one_of(texts: After) -> str:
    if not texts:
        return ""
    return _text(texts[0]) if len(texts) == 1 else f"({' | '.join(map(_text, texts))})"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
