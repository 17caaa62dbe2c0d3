"""Prints the table of docs/internals/verify.md: how far strategies that change the distribution are off, by drafter.

    python -m tests.laws.distribution
"""

from __future__ import annotations

from kernels.verify.cpu import verify
from tests.laws.distribution.cases import lossy
from tests.laws.distribution.draws import Verify, draw
from tests.laws.distribution.statistics import total_variation, total_variation_of_chance
from tests.laws.distribution.toy import blocks

DRAWS = 1_000_000
Row = tuple[str, str, str, float]


def distances(verify: Verify, draws: int) -> list[Row]:
    """(strategy, parameters, drafts, total variation distance from the target), less what chance alone shows."""
    found = []
    for strategy, parameters, drafts, case in lossy():
        probs = blocks(case.toy, case.sampling, case.length)
        distance = total_variation(draw(case, verify, draws), probs) - total_variation_of_chance(probs, draws)
        found.append((strategy, parameters, drafts, round(max(0.0, distance), 3)))
    return found


def table(off: list[Row]) -> list[str]:
    """Markdown: a line for each strategy and its parameters, a column for each drafter."""
    drafters = list(dict.fromkeys(drafts for _, _, drafts, _ in off))
    lines = [f"| strategy | with | {' | '.join(drafters)} |", "|---" * (2 + len(drafters)) + "|"]
    for strategy, parameters in dict.fromkeys((s, w) for s, w, _, _ in off):
        cells = {d: f"{x:.3f}" for s, w, d, x in off if (s, w) == (strategy, parameters)}
        lines.append(f"| `{strategy}` | {parameters} | {' | '.join(cells[d] for d in drafters)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(distances(verify, DRAWS))))
