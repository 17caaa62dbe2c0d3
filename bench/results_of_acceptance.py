"""Sections of docs/results.md about drafting methods and heads: on held-out prompts (bench/acceptance.py), and token by
token beside vLLM (bench/oracles/same_drafts.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from bench.plot import Axis, Line
from bench.rows import Row
from bench.section import Section, covering, number, source, table

Figures = dict[str, Any]
ALL = "all"
# So many are shown; `auto` drafts up to 48 tokens.
POSITIONS = 8


def acceptance(own: dict[str, list[Row]]) -> Section | None:
    rows = own.get("acceptance", [])
    shown = covering(rows, _cells)
    if not shown:
        return None
    section = Section("Accepted drafts on held-out prompts: methods × kinds of prompt")
    section.say(
        "One stream; each prompt goes to all methods in turn. `ngram:4` drafts at most 4 tokens, a method without a "
        "number as many as it likes. *Tokens a step*: 1 + accepted / steps, without the step of the prompt. All is "
        "cold: nothing is drafted from other answers.",
    )
    for row in shown:
        _say(section, row["figures"])
        section.say(source("acceptance", row, rows))
    return section


def _cells(figures: Figures) -> set[Hashable]:
    methods = {
        (figures["model"], temperature, method, kind)
        for temperature, by_method in figures.get("temperatures", {}).items()
        for method, by_kind in by_method.items()
        for kind in by_kind
    }
    return methods | {(figures["model"], "curve", point["head"]) for point in figures.get("curve", ())}


def _say(section: Section, figures: Figures) -> None:
    """A picture is of the newest row that has points for it."""
    section.say(_prompts(figures), _heads(figures.get("heads", {})))
    for temperature, tables in figures.get("temperatures", {}).items():
        section.say(f"Temperature {temperature}, tokens a step:", _by_kind(tables, _steps))
        section.say("Tokens/s while the answer is read:", _by_kind(tables, _rate))
        section.say("Accepted of the drafts that reached a position, by position:", _by_position(tables))
        if "acceptance" not in section.pictures:
            title = f"Accepted of the drafts that reached a position, temperature {temperature}"
            section.draw("acceptance", title, Axis("position"), Axis("share", low=0, high=1), _positions(tables))
    points = figures.get("curve", [])
    section.say("Tokens a step by what a head was trained on:" if points else "", _curve_table(points))
    if "acceptance-curve" not in section.pictures:
        axes = Axis("tokens it was trained on", log=True), Axis("tokens a step", low=1)
        section.draw("acceptance-curve", "Tokens a step of heads", *axes, _curve_lines(points))


def _prompts(figures: Figures) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in figures["prompts"].items())
    longest = figures["max_tokens"]
    said = f"{figures['model']}, {figures['dtype']}. Prompts: {counts}; answers of at most {longest} tokens."
    overlaps = [
        f"{seen['overlap']} of {seen['prompts']} training prompts in {name} are among the held-out ones."
        for name, seen in figures.get("training", {}).items()
    ]
    return " ".join([said, *overlaps])


def _heads(heads: Figures) -> str:
    names = ("answers", "tokens", "passes")
    lines = [[f"`{name}`", *(number(known.get(each)) for each in names)] for name, known in heads.items()]
    return table(["head, trained on", *names], lines)


def _by_kind(tables: Figures, cell: Callable[[Figures], str]) -> str:
    kinds = list(next(iter(tables.values())))
    lines = [[f"`{method}`", *(cell(by_kind[kind]) for kind in kinds)] for method, by_kind in tables.items()]
    return table(["method", *kinds], lines)


def _steps(cell: Figures) -> str:
    return f"{cell['tokens_per_step']:.2f}" + (f", {cell['texts_differ']} texts differ" if cell["texts_differ"] else "")


def _rate(cell: Figures) -> str:
    return f"{cell['decode_tokens_per_second']:.0f}"


def _by_position(tables: Figures) -> str:
    shares = {method: by_kind[ALL]["accepted_by_position"][:POSITIONS] for method, by_kind in tables.items()}
    most = max(map(len, shares.values()))
    lines = [
        [f"`{method}`", *(f"{share:.2f}" for share in own), *([number(None)] * (most - len(own)))]
        for method, own in shares.items()
        if own
    ]
    return table(["method", *(str(at + 1) for at in range(most))], lines)


def _positions(tables: Figures) -> list[Line]:
    return [
        Line(method, list(enumerate(by_kind[ALL]["accepted_by_position"][:POSITIONS], 1)), marks=True)
        for method, by_kind in tables.items()
        if by_kind[ALL]["accepted_by_position"]
    ]


def _curve_table(points: list[Figures]) -> str:
    kinds = list(points[0]["measured"]) if points else []
    lines = [
        [f"`{point['head']}:{point['length']}`", number(point["tokens"]), number(point.get("tokens_per_step"))]
        + [f"{point['measured'][kind]:.2f}" for kind in kinds]
        for point in points
    ]
    return table(["head", "tokens", "on prompts its training held out", *kinds], lines)


def _curve_lines(points: list[Figures]) -> list[Line]:
    kinds = list(points[0]["measured"]) if points else []
    return [
        Line(kind, [(point["tokens"], point["measured"][kind]) for point in points], marks=True) for kind in kinds
    ]


def same_drafts(own: dict[str, list[Row]]) -> Section | None:
    """The newest row of each kind of head."""
    rows = own.get("same_drafts", [])
    shown = covering(rows, lambda figures: {_kind(figures)} if "equal_tokens" in figures else set())
    if not shown:
        return None
    section = Section("The same head here and in vLLM: draft tokens")
    section.say(
        "One folder, read by both; greedy, float32, one sequence after the other. Draft tokens behind the same text "
        "are compared one by one. *Random*: weights from a seed, of which nothing can be accepted but by chance; "
        "*different tokens* says that they don't draft one token again and again. MTP blocks are read at all "
        "positions where the command says so ([heads.md](heads.md)). With `--eager` vLLM compiled nothing: its "
        "tokens/s are no measure of it then."
    )
    lines = [
        [
            _kind(figures), figures["vllm"], f"{figures['same_texts']} of {figures['prompts']}",
            str(figures["drafts"]), f"{figures['equal_tokens']} of {figures['draft_tokens']}",
            number(figures.get("different_tokens")), f"{figures['accepted_in_vllm']:.3f}",
            f"{figures['accepted_here']:.3f}", _speed(figures, "in_vllm"), _speed(figures, "here"),
        ]
        for figures in (row["figures"] for row in shown)
    ]  # fmt: skip
    head = ["head", "vLLM", "same texts", "drafts", "equal draft tokens", "different tokens"]
    head += ["accepted a draft there", "here", "tokens/s there", "here"]
    section.say(table(head, lines), *(source("same_drafts", row, rows) for row in shown))
    return section


def _speed(figures: Figures, where: str) -> str:
    """Rows of older forms have none."""
    found = figures.get(f"tokens_per_second_{where}")
    return number(None) if found is None else f"{found:.1f}"


def _kind(figures: Figures) -> str:
    family = f" of {figures['family']}" if figures.get("family") else ""
    return f"`{figures['method']}`{family}" + (", random" if figures.get("weights") == "random" else "")


ACCEPTANCE = (acceptance, same_drafts)
