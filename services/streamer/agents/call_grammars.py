"""Grammars of answers that must call tools, as each format spells calls, and of reasoning before an answer:
llguidance's dialect of Lark.

    reasoning? begin  before NAME middle ARGUMENTS after  (between before NAME middle ARGUMENTS after)*  end

ARGUMENTS are JSON of the tool's schema. Pure: what the text means is known to the worker's library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.streamer.agents.reasoning import CLOSER, OPENER, Reasoning
from services.streamer.agents.schemas import without_unknown_formats


@dataclass(frozen=True, slots=True)
class Spelling:
    """The texts around names and arguments."""

    before: str
    middle: str
    after: str
    between: str
    begin: str = ""
    end: str = ""


# Between reasoning and what follows it. A small model may write lines without end.
SPACES = r"/\s{0,8}/"
# Schemas of the arguments of the tools that may be called, by name.
Tools = Mapping[str, Mapping[str, Any]]
# Ids of special tokens by name: in a text they are one token and no other.
Special = Mapping[str, int]


def calls_grammar(
    spelling: Spelling, tools: Tools, special: Special, *, several: bool, reasoning: Reasoning | None
) -> str:
    """Of one call, or of one or more. `reasoning`: may come first."""
    rules = [f"tool{place}: {_call(spelling, name, place, special)}" for place, name in enumerate(tools)]
    rules += [f"arguments{place}: %json {_schema(each)}" for place, each in enumerate(tools.values())]
    call = " | ".join(f"tool{place}" for place in range(len(tools)))
    more = f"({_written(spelling.between, special)} call)*".replace("( ", "(") if several else ""
    before, thought = _thought(reasoning, special)
    start = [before, _written(spelling.begin, special), "call", more, _written(spelling.end, special)]
    return "\n".join([f"start: {' '.join(filter(None, start))}", f"call: {call}", *thought, *rules, ""])


def behind_reasoning(form: str, reasoning: Reasoning, special: Special) -> str:
    """A grammar (grammars.py) of reasoning, then a text of this one."""
    before, thought = _thought(reasoning, special)
    (rest,) = json.loads(form)["grammars"]
    lark = "\n".join([f"start: {before} @form", *thought, ""])
    return json.dumps({"grammars": [{"lark_grammar": lark}, {"name": "form", **rest}]}, ensure_ascii=False)


def _call(spelling: Spelling, name: str, place: int, special: Special) -> str:
    head = _written(f"{spelling.before}{name}{spelling.middle}", special)
    return f"{head} arguments{place} {_written(spelling.after, special)}"


def _schema(parameters: Mapping[str, Any]) -> str:
    # Arguments are an object, also where the schema doesn't say so.
    return json.dumps(without_unknown_formats({"type": "object", **parameters}), ensure_ascii=False)


def _thought(reasoning: Reasoning | None, special: Special) -> tuple[str, list[str]]:
    """What stands before the answer, and its rules."""
    if reasoning is None:
        return "", []
    end = f"/(?s:.*)/ {_written(CLOSER, special)}" if CLOSER in special else rf"/(?s:.*)<\/{CLOSER[2:-1]}>/"
    rule = f"thought{'' if CLOSER in special else '[lazy]'}: {end}"
    if reasoning.inside:
        return f"thought {SPACES}", [rule]
    return f"({_written(OPENER, special)} thought {SPACES})?", [rule]


def _written(text: str, special: Special) -> str:
    """As it stands in a rule."""
    names = "|".join(re.escape(name) for name in special)
    parts = re.split(f"({names})", text) if names else [text]
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part, ensure_ascii=False) for part in parts if part
    )
