"""Grammars of answers: a form or calls of tools behind reasoning, calls or a form, and text in which calls may stand.

    reasoning?  form
    reasoning?  calls
    reasoning?  (calls | form)
    reasoning?  text (opener calls text)*

A text ends where it would have the opener, which is llguidance's `lazy`; a special token ends it, too. Reasoning is
told from text as reasoning.py does. Pure, as call_grammars.py.
"""

from __future__ import annotations

import re

import orjson

from services.streamer.agents.call_grammars import Calls, Special, written
from services.streamer.agents.reasoning import Reasoning

ANY = "/(?s:.*)/"
# Between reasoning and what follows it. A small model may write lines without end.
SPACES = r"/\s{0,8}/"


def form_behind(form: str, reasoning: Reasoning, special: Special) -> str:
    """`form`: a grammar of agents/grammars.py."""
    start = f"start: {_thought(reasoning, special)} {_lead(reasoning, special)} @form"
    return _with_form(form, [start, *_thought_rules(reasoning, special)])


def calls_alone(calls: Calls) -> str:
    thought = calls.reasoning, calls.special
    return _lark([f"start: {_thought(*thought)} calls", *_thought_rules(*thought), *calls.rules()])


def calls_or_form(calls: Calls, form: str) -> str:
    """`form`: a grammar of agents/grammars.py. Calls begin with their opener, by which the reader knows them."""
    thought = calls.reasoning, calls.special
    other = f"{_lead(*thought)} @form"
    start = f"start: {_thought(*thought)} ({calls.written(calls.spelling.opener)} opened | {other})"
    return _with_form(form, [start, *_thought_rules(*thought), *calls.rules()])


def text_with_calls(calls: Calls) -> str:
    """`first` and `FIRST` are text up to the first call: what would be read as reasoning or as a call doesn't begin it.
    Where one call is allowed, the answer ends with it."""
    spelling = calls.spelling
    unread = [f".*{_pattern(each)}" for each in spelling.also_read]
    if spelling.opener in calls.special:
        unread.append(f".*{_pattern(spelling.opener)}")
    unbegun = [rf"\s*{_pattern(each)}" for each in _begins(calls)]
    free = ["FIRST", "first opened (head opened)* TEXT" if calls.several else "first opened"]
    if spelling.at_start:
        free.append(r"/\s*/ calls")
    return _lark([
        *_free_start(calls), f"free: {' | '.join(free)}", *_thought_rules(calls.reasoning, calls.special),
        _up_to("first", "FIRST", spelling.opener, calls.special),
        _up_to("head", "TEXT", spelling.opener, calls.special),
        f"FIRST: {_without([*unread, *unbegun])}", f"TEXT: {_without(unread)}", *calls.rules(),
    ])  # fmt: skip


def _begins(calls: Calls) -> list[str]:
    thinks = [calls.reasoning.marks.opener] if calls.reasoning is not None else []
    return [*thinks, calls.spelling.at_start] if calls.spelling.at_start else thinks


def _free_start(calls: Calls) -> list[str]:
    """Reasoning may be all of an answer."""
    if calls.reasoning is None:
        return ["start: free"]
    if calls.reasoning.inside:
        return [f"start: thought free | {ANY}"]
    marker = calls.reasoning.marks.opener
    opener = rf"/\s*/ {calls.written(marker)}" if marker in calls.special else rf"/\s*{_pattern(marker)}/"
    return [f"start: free | {opener} (thought free | {ANY})"]


def _up_to(rule: str, text: str, marker: str, special: Special) -> str:
    ends_text = any(marker.startswith(each) for each in special)
    return f"{rule}{'' if ends_text else '[lazy]'}: {text} {written(marker, special)}"


def _thought(reasoning: Reasoning | None, special: Special) -> str:
    """What stands before the answer."""
    if reasoning is None:
        return ""
    thought = f"thought {SPACES}"
    return thought if reasoning.inside else f"({written(reasoning.marks.opener, special)} {thought})?"


def _lead(reasoning: Reasoning | None, special: Special) -> str:
    return "" if reasoning is None else written(reasoning.marks.lead, special)


def _thought_rules(reasoning: Reasoning | None, special: Special) -> list[str]:
    return [] if reasoning is None else ["ANY: " + ANY, _up_to("thought", "ANY", reasoning.marks.closer, special)]


def _without(patterns: list[str]) -> str:
    """Any text but those that match one of these from their beginning."""
    return " & ".join([ANY, *(f"~/(?s:{each}.*)/" for each in patterns)])


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _with_form(form: str, rules: list[str]) -> str:
    """A grammar of these rules, in which `@form` is a text of the form."""
    first, *others = orjson.loads(form)["grammars"]
    return orjson.dumps({"grammars": [{"lark_grammar": _lark(rules)}, {"name": "form", **first}, *others]}).decode()


def _lark(rules: list[str]) -> str:
    return "\n".join([*rules, ""])
