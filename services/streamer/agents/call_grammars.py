"""Grammars of calls, as each format spells them: llguidance's dialect of Lark.

    lead CALL (between before CALL)* end         lead: begin before         CALL: NAME number middle ARGUMENTS after

ARGUMENTS are JSON of the tool's schema. What else an answer may have is said in answer_grammars.py. Pure: what the text
means is known to the worker's library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.streamer.agents.reasoning import Reasoning
from services.streamer.agents.schemas import without_unknown_formats


@dataclass(frozen=True, slots=True)
class Spelling:
    """The texts around names and arguments. `opener`: the marker by which calls are told from other text; it begins
    them, or may stand before them. `at_start`: how they begin without it, at the beginning of an answer.
    `also_read`: markers behind which a reader finds calls, too. `in_messages`: text stands in messages, as calls do.
    `numbered`: what stands between a name and a number behind it; "": there is no number."""

    opener: str
    before: str
    middle: str
    after: str
    between: str
    begin: str = ""
    end: str = ""
    at_start: str = ""
    also_read: tuple[str, ...] = ()
    in_messages: bool = False
    numbered: str = ""

    @property
    def lead(self) -> str:
        return self.begin + self.before


# Schemas of the arguments of the tools that may be called, by name.
Tools = Mapping[str, Mapping[str, Any]]
# Ids of special tokens by name: in a text they are one token and no other.
Special = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of an answer: of one tool, or of several. `reasoning`: may come first."""

    spelling: Spelling
    tools: Tools
    special: Special
    several: bool
    reasoning: Reasoning | None = None

    def rules(self) -> list[str]:
        """`calls`, and `opened` for what follows their opener."""
        lead, opener = self.spelling.lead, self.spelling.opener
        tools = range(len(self.tools))
        return [
            f"calls: {self._behind(lead)}",
            f"opened: {self._behind(lead.removeprefix(opener))}",
            f"tool: {' | '.join(f'tool{place}' for place in tools)}",
            *(f"tool{place}: {self._call(name, place)}" for place, name in enumerate(self.tools)),
            *(f"arguments{place}: %json {_schema(each)}" for place, each in enumerate(self.tools.values())),
        ]

    def _behind(self, lead: str) -> str:
        spelling = self.spelling
        more = f"({self.written(spelling.between + spelling.before)} tool)*" if self.several else ""
        return " ".join(filter(None, [self.written(lead), "tool", more, self.written(spelling.end)]))

    def _call(self, name: str, place: int) -> str:
        spelling = self.spelling
        head = self.written(name + spelling.middle)
        if spelling.numbered:
            head = f"{self.written(name + spelling.numbered)} /[0-9]{{1,4}}/ {self.written(spelling.middle)}"
        return f"{head} arguments{place} {self.written(spelling.after)}"

    def written(self, text: str) -> str:
        return written(text, self.special)


def written(text: str, special: Special) -> str:
    """As it stands in a rule."""
    names = "|".join(re.escape(name) for name in special)
    parts = re.split(f"({names})", text) if names else [text]
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part, ensure_ascii=False) for part in parts if part
    )


def _schema(parameters: Mapping[str, Any]) -> str:
    # Arguments are an object, also where the schema doesn't say so.
    return json.dumps(without_unknown_formats({"type": "object", **parameters}), ensure_ascii=False)
