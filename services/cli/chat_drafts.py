"""Marks drafts in a terminal: which parts of an answer were drafted, their source, and what was rejected.

    The[suffix| quick brown]{ cat} fox        without colours
                ─────────── ‾‾‾‾              with them: underlined in its source's colour; struck through

An answer comes as pieces of text with the runs of their verify steps (`return_drafts`, docs/use/http.md). Pure: pieces
in, strings out. Knows no HTTP and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from services.api.methods import SOURCES

SHOWN = ("accepted", "all")
RESET = "\x1b[0m"
REJECTED = "\x1b[2;9m"  # faint and struck through
# Underlined, each source in a colour of its own; sources the table doesn't have share OTHER_STYLE.
COLOURS = (32, 36, 34, 35, 95, 33, 92)
# A server has one head at most.
HEAD_STYLE = "\x1b[4;94m"
_TEXT_SOURCES = [source.name for source in SOURCES.values() if not source.head]
STYLES = {
    **{name: f"\x1b[4;{colour}m" for name, colour in zip(_TEXT_SOURCES, cycle(COLOURS), strict=False)},
    **{source.name: HEAD_STYLE for source in SOURCES.values() if source.head},
}
OTHER_STYLE = "\x1b[4;91m"
# Control characters that a terminal would obey, except tabs and line ends, and halves of characters, which can't be
# printed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without control characters. What a server or a file's name says is printed on a terminal only so."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def in_one_line(text: str) -> str:
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))


@dataclass(frozen=True, slots=True)
class TextPart:
    """Characters of one source; "" is the model itself. `rejected` are the rejected draft tokens that followed."""

    text: str
    source: str = ""
    rejected: tuple[str, ...] = ()


def parts_of(text: str, runs: Sequence[dict[str, Any]], shown: int) -> Iterator[TextPart]:
    """A piece of the answer in parts; `shown` characters of the answer came before it.

    offsets of a run      o0    o1    o2  | of the next run
    accepted = 2          drafted     own
                                     └ the rejected token would have been here
    """
    runs = [run for run in runs if run.get("offsets")]
    ends = shown + len(text)
    at = shown
    for number, run in enumerate(runs):
        offsets, accepted = run["offsets"], run["accepted"]
        # A character that several tokens spell comes with the last of them: then a run has fewer, or none.
        end = runs[number + 1]["offsets"][0] if number + 1 < len(runs) else ends
        end = min(max(at, end), ends)
        middle = min(max(at, offsets[accepted]), end) if accepted < len(offsets) else end
        rejected = tuple(run.get("rejected", ()))
        if middle > at or rejected:
            yield TextPart(text[at - shown : middle - shown], run["source"], rejected)
        if end > middle:
            yield TextPart(text[middle - shown : end - shown])
        at = end
    if at < ends:
        yield TextPart(text[at - shown :])


@dataclass(slots=True)
class SourceFigures:
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class DraftView:
    """One answer. `paint` takes its pieces in order, `close` is what belongs behind the last."""

    colours: bool
    rejected: bool = False
    steps: int = 0
    own: int = 0
    sources: dict[str, SourceFigures] = field(default_factory=dict)
    _shown: int = 0
    _step: int = 0
    # The source whose bracket is open; only without colours.
    _open: str = ""

    @property
    def tokens(self) -> int:
        return self.own + sum(source.accepted for source in self.sources.values())

    def paint(self, text: str, runs: Sequence[dict[str, Any]]) -> str:
        self._count(runs)
        parts = list(parts_of(text, runs, self._shown))
        self._shown += len(text)
        return "".join([self._styled(part) if self.colours else self._bracketed(part) for part in parts])

    def close(self) -> str:
        closing, self._open = "]" if self._open else "", ""
        return closing

    def _count(self, runs: Sequence[dict[str, Any]]) -> None:
        for run in runs:
            if run.get("step") != self._step:
                self.steps += 1
                self._step = run.get("step", 0)
            self.own += run["tokens"] - run["accepted"]
            if run["drafted"]:
                source = self.sources.setdefault(run["source"], SourceFigures())
                source.drafted += run["drafted"]
                source.accepted += run["accepted"]

    def _styled(self, part: TextPart) -> str:
        text = _styled(printable(part.text), style_of(part.source))
        if self.rejected and part.rejected:
            text += _styled(in_one_line("".join(part.rejected)), REJECTED)
        return text

    def _bracketed(self, part: TextPart) -> str:
        before = ""
        if part.source != self._open and (part.text or not part.source):
            before = self.close()
            if part.source:
                before, self._open = f"{before}[{in_one_line(part.source)}|", part.source
        text = before + printable(part.text)
        if self.rejected and part.rejected:
            text += self.close() + "{" + in_one_line("".join(part.rejected)) + "}"
        return text

    # Behind the answer ------------------------------------------------------------------------------------

    def summary(self, tokens: int, seconds: float, first: float | None, width: int) -> list[str]:
        """Lines of `width` at most: the speed, and for each source the number of accepted tokens."""
        told = [f"{tokens} tokens", f"{tokens / max(seconds, 1e-9):.1f} tokens/s"]
        if first is not None:
            told.append(f"first after {first:.2f} s")
        accepted = sum(source.accepted for source in self.sources.values())
        if not self.steps:
            return filled([(each, "") for each in [*told, "the server doesn't report where tokens come from"]], width)
        told.append(f"{accepted / self.steps:.2f} accepted a step in {self.steps} steps")
        items = [(each, "") for each in told]
        for name, source in sorted(self.sources.items(), key=lambda each: -each[1].accepted):
            said = f"{in_one_line(name)}: {source.accepted} of {source.drafted} draft tokens accepted"
            items.append((said, style_of(name) if self.colours else ""))
        items.append((f"the model itself gave {self.own}", ""))
        return filled(items, width)


def style_of(source: str) -> str:
    """A corpus is named with its own name behind, corpus:NAME, and a merged draft with its head first."""
    return STYLES.get(source.partition("+")[0].partition(":")[0], OTHER_STYLE) if source else ""


def filled(items: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Items with their styles, as many on a line as fit; a longer one is cut."""
    lines: list[str] = []
    used = width
    for text, style in items:
        text = text[: max(1, width)]
        if used + 2 + len(text) > width:
            lines.append(_styled(text, style))
            used = len(text)
        else:
            lines[-1] += ", " + _styled(text, style)
            used += 2 + len(text)
    return lines


def _styled(text: str, style: str) -> str:
    """Line by line: what a terminal fills up behind an end of line shall not be underlined."""
    if not style:
        return text
    return "\n".join([f"{style}{line}{RESET}" if line else "" for line in text.split("\n")])
