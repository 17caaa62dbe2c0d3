"""What a terminal shows of drafts: of an answer's text which part was drafted, by what, and what became of the rest.

    The[suffix| quick brown]{ cat} fox        without colours
                ─────────── ‾‾‾‾              with them: underlined in its source's colour; struck through

An answer comes as pieces of text with the runs of their verify steps (`return_drafts`, docs/http.md). Pure: pieces in,
strings out. Knows no HTTP and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = ("accepted", "all")
RESET = "\x1b[0m"
REJECTED = "\x1b[2;9m"  # faint and struck through
# Underlined, and a colour for each. Whatever else a server names has the last one.
STYLES = {
    "ngram": "\x1b[4;36m",
    "suffix": "\x1b[4;32m",
    "shared": "\x1b[4;34m",
    "store": "\x1b[4;35m",
    "prediction": "\x1b[4;33m",
}
OTHER_STYLE = "\x1b[4;91m"
# What a text could do to a terminal: all but tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text without what a terminal would obey."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


@dataclass(frozen=True, slots=True)
class Part:
    """Characters of one origin; `source` is "" for the model's own. `rejected` was to stand behind them."""

    text: str
    source: str = ""
    rejected: tuple[str, ...] = ()


def parts_of(text: str, runs: Sequence[dict[str, Any]], shown: int) -> Iterator[Part]:
    """A piece of the answer in parts; `shown` characters of the answer came before it.

    offsets of a run      o0    o1    o2  | of the next run
    accepted = 2          drafted     own
                                     └ what was rejected would have stood here
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
            yield Part(text[at - shown : middle - shown], run["source"], rejected)
        if end > middle:
            yield Part(text[middle - shown : end - shown])
        at = end
    if at < ends:
        yield Part(text[at - shown :])


@dataclass(slots=True)
class Source:
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class DraftView:
    """One answer. `paint` takes its pieces in order, `close` is what belongs behind the last."""

    colours: bool
    rejected: bool = False
    steps: int = 0
    own: int = 0
    sources: dict[str, Source] = field(default_factory=dict)
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
                source = self.sources.setdefault(run["source"], Source())
                source.drafted += run["drafted"]
                source.accepted += run["accepted"]

    def _styled(self, part: Part) -> str:
        text = _styled(printable(part.text), STYLES.get(part.source, OTHER_STYLE) if part.source else "")
        if self.rejected and part.rejected:
            text += _styled(_in_one_line("".join(part.rejected)), REJECTED)
        return text

    def _bracketed(self, part: Part) -> str:
        before = ""
        if part.source != self._open and (part.text or not part.source):
            before = self.close()
            if part.source:
                before, self._open = f"{before}[{part.source}|", part.source
        text = before + printable(part.text)
        if self.rejected and part.rejected:
            text += self.close() + "{" + _in_one_line("".join(part.rejected)) + "}"
        return text

    # Behind the answer ------------------------------------------------------------------------------------

    def summary(self, tokens: int, seconds: float, first: float | None, width: int) -> list[str]:
        """Lines of `width` at most: how fast it was, and of each source, in its colour, how much of it stood."""
        told = [f"{tokens} tokens", f"{tokens / max(seconds, 1e-9):.1f} tokens/s"]
        if first is not None:
            told.append(f"first after {first:.2f} s")
        accepted = sum(source.accepted for source in self.sources.values())
        if not self.steps:
            return filled([(each, "") for each in [*told, "the server doesn't tell where tokens come from"]], width)
        told.append(f"{accepted / self.steps:.2f} accepted a step in {self.steps} steps")
        items = [(each, "") for each in told]
        for name, source in sorted(self.sources.items(), key=lambda each: -each[1].accepted):
            said = f"{printable(name)}: {source.accepted} of {source.drafted} drafted tokens stood"
            items.append((said, STYLES.get(name, OTHER_STYLE) if self.colours else ""))
        items.append((f"the model itself gave {self.own}", ""))
        return filled(items, width)


def filled(items: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Items with their styles, as many a line as fit; one that is too long for a line is cut."""
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


def _in_one_line(text: str) -> str:
    return printable(text.replace("\n", "\\n").replace("\t", "\\t"))
