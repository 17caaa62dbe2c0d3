"""Does verification keep the target's distribution? Blocks of tokens over several steps, drawn a million times with a
toy model and drafters of every mind, against exact probabilities (bench/distribution/).

Lossless strategies are held to p > 1e-4 over all cases together; of the others it says how far they are off.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from bench.distribution.cases import lossless, lossy
from bench.distribution.draws import Case, Verify, draw
from bench.distribution.statistics import holm, p_values, total_variation, total_variation_of_chance
from bench.distribution.toy import blocks
from bench.shown import Shown

HELP = "lossless strategies against exact probabilities, and how far topp and typical are off"
BAR = 1e-4
Row = tuple[str, str, str, float]
SHOWN = (
    Shown("Lossless strategies against exact probabilities", "",
          {"draws": "draws", "lossless_cases": "cases", "least_p_after_holm": "least p after Holm's correction"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draws", type=int, default=1_000_000, help="of each case")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--table", action="store_true", help="print docs/internals/verify.md's table and nothing else")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from kernels.verify.cpu import verify

    off = distances(verify, options.draws)
    if options.table:
        print("\n".join(table(off)))
        return {}
    cases = [case for case in lossless() if options.only in case.name]
    least = least_p(cases, verify, options.draws, say=True)
    name, value = min(least.items(), key=lambda item: item[1])
    return {
        "draws": options.draws,
        "lossless_cases": len(cases),
        "least_p_after_holm": value,
        "of": name,
        "total_variation": [{"strategy": s, "with": w, "drafts": d, "distance": x} for s, w, d, x in off],
        "missed": [f"{name}: p {p:.2g}" for name, p in least.items() if p <= BAR],
    }


def least_p(cases: Iterable[Case], verify: Verify, draws: int, say: bool = False) -> dict[str, float]:
    """Of each case, the least of its p-values after Holm's correction over those of all."""
    found: list[tuple[str, float]] = []
    for case in cases:
        counts = draw(case, verify, draws)
        values = p_values(counts, blocks(case.toy, case.sampling, case.length), case.toy.vocab_size, case.length)
        found += [(case.name, value) for value in values]
        if say:
            print(f"{case.name}: least p of {len(values)} is {min(values):.2g}", flush=True)
    least: dict[str, float] = {}
    for (name, _), value in zip(found, holm([value for _, value in found]), strict=True):
        least[name] = min(value, least.get(name, 1.0))
    return least


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
