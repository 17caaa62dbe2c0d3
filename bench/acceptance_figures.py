"""What is counted of the answers of bench/acceptance.py, and its tables.

Tokens a step is 1 + accepted / steps, over all steps but the one that computes the prompt. By position: the share of
the drafts that reached this position of which the token there was accepted, and all before it. Texts are held to those
of naive wherever the verify strategy is an exact one, which at temperature 0 it always is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.speculation import NAIVE
from bench.streams import Heard
from loadtest.acceptance import by_position
from services.api.strategies import STRATEGIES

ALL = "all"
# So many are shown; `auto` drafts up to 48 tokens.
POSITIONS = 8
Figures = dict[str, Any]


def by_method(heard: Mapping[str, Mapping[str, list[Heard]]]) -> dict[str, dict[str, Figures]]:
    """Method -> kind -> figures, and those of all kinds together. Naive's texts are what the others' are held to, or
    the first method's."""
    base = heard[NAIVE if NAIVE in heard else next(iter(heard))]
    told = {}
    for label, own in heard.items():
        told[label] = {kind: cell(seen, base[kind]) for kind, seen in own.items()}
        told[label][ALL] = cell(_joined(own), _joined(base))
    return told


def cell(heard: Sequence[Heard], base: Sequence[Heard]) -> Figures:
    steps = sum(decode_steps(each) for each in heard)
    drafted, accepted = sum(each.drafted for each in heard), sum(each.accepted for each in heard)
    return {
        "prompts": len(heard),
        "tokens": sum(each.tokens for each in heard),
        "steps": steps,
        "tokens_per_step": round(1 + accepted / max(1, steps), 3),
        "accepted_of_drafted": round(accepted / max(1, drafted), 3),
        "accepted_by_position": [round(share, 3) for share in by_position(each.drafts for each in heard)],
        "decode_tokens_per_second": round(
            sum(each.tokens - 1 for each in heard) / sum(each.decode_seconds for each in heard), 1
        ),
        "texts_compared": sum(is_exact(each) for each in heard),
        "texts_differ": sum(
            is_exact(each) and each.text != other.text for each, other in zip(heard, base, strict=True)
        ),
    }


def decode_steps(heard: Heard) -> int:
    """Without the step that computed the end of the prompt and gave the first token."""
    return heard.steps - 1


def is_exact(heard: Heard) -> bool:
    """Strategies that keep only the distribution give another text with the same seed. Without drafts the server names
    no strategy: the text is the target model's own."""
    return STRATEGIES[heard.drafts.get("verify_strategy", "greedy")].exact


def _joined(by_kind: Mapping[str, list[Heard]]) -> list[Heard]:
    return [each for own in by_kind.values() for each in own]


def missed(temperatures: Mapping[str, Mapping[str, Mapping[str, Figures]]]) -> list[str]:
    return [
        f"temperature {temperature}: {tables[ALL]['texts_differ']} texts of {label} differ"
        for temperature, by_label in temperatures.items()
        for label, tables in by_label.items()
        if tables[ALL]["texts_differ"]
    ]


# Printing -------------------------------------------------------------------------------------------------


def lines(head: str, tables: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    kinds = list(next(iter(tables.values())))
    told: list[str] = []
    for title, name, form in (
        ("tokens a step", "tokens_per_step", ".2f"),
        ("tokens/s while it is read", "decode_tokens_per_second", ".0f"),
        ("texts compared", "texts_compared", "d"),
        ("texts that differ", "texts_differ", "d"),
    ):
        rows = {label: [format(seen[kind][name], form) for kind in kinds] for label, seen in tables.items()}
        told += _table(f"{head}, {title}", kinds, rows)
    shares = {label: seen[ALL]["accepted_by_position"] for label, seen in tables.items()}
    most = min(max(map(len, shares.values())), POSITIONS)
    rows = {label: [f"{share:.2f}" for share in own[:most]] for label, own in shares.items() if own}
    return told + _table(f"{head}, accepted by position", [str(at + 1) for at in range(most)], rows)


def curve_lines(points: Sequence[Figures]) -> list[str]:
    """Heads by what they were trained on. Their own figure is of the prompts that their training held out."""
    if not points:
        return []
    kinds = list(points[0]["measured"])
    rows = {
        point["head"]: [
            str(point["tokens"]), f"{point['tokens_per_step']:.2f}" if "tokens_per_step" in point else "-",
            *(f"{point['measured'][kind]:.2f}" for kind in kinds),
        ]
        for point in points
    }  # fmt: skip
    title = f"tokens a step, drafts of {points[0]['length']}"
    return _table(title, ["tokens", "its own", *kinds], rows)


def _table(title: str, columns: Iterable[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    if not rows:
        return []
    head = f"{title:<44}" + "".join(f"{column:>10}" for column in columns)
    return [head, *(f"  {label:<42}" + "".join(f"{each:>10}" for each in own) for label, own in rows.items())]
