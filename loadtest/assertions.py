"""`--assert 'p99(ttft)<0.5'`: compares one figure with a number. Parsed by a pattern; nothing is evaluated.

WHAT OP NUMBER[UNIT]     OP: < <= > >= == !=     UNIT: s, ms, us, % or none
WHAT: p99(ttft)          mean, min, p50, p90, p99, max or n of ttft, itl, chunk_gap, tpot, e2e or lateness
      throughput         or another of the names in NAMED, or a path into the figures, like tokens.output
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest import objectives

Figures = Mapping[str, Any]

NAMED = {
    "throughput": "throughput.output_tokens_per_s",
    "requests_per_s": "throughput.requests_per_s",
    "goodput": "goodput.requests_per_s",
    "good_share": "goodput.share",
    "error_rate": "requests.error_rate",
    "failed": "requests.failed",
    "acceptance": "acceptance.acceptance_rate",
    "wasted_rows": "acceptance.wasted_rows",
}
# Figures of a comparison of two sides.
COMPARED = {
    "texts_differ": "texts.differ",
    "speedup": "throughput.ratio",
    "speedup_low": "throughput.low",
    "e2e_speedup": "e2e.ratio",
    "ttft_speedup": "ttft.ratio",
    "tpot_speedup": "tpot.ratio",
}
METRICS = {name: f"{name}_s" for name in ("ttft", "itl", "chunk_gap", "tpot", "e2e")} | {"lateness": "start_lateness_s"}
STATISTICS = ("mean", "min", "p50", "p90", "p99", "max", "n")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
UNITS = {**objectives.UNITS, "%": 1e-2}
_FORM = re.compile(
    r"\s*(?:(?P<statistic>\w+)\s*\(\s*(?P<metric>\w+)\s*\)|(?P<name>[A-Za-z_][\w.]*))"
    r"\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<number>[0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+)?)\s*(?P<unit>ms|us|s|%|)\s*"
)


@dataclass(frozen=True, slots=True)
class Assertion:
    text: str
    path: str
    compares: str
    number: float
    of_comparison: bool

    def failures(self, runs: Sequence[Figures], comparisons: Sequence[Figures]) -> list[str]:
        """It must hold for every run, or every comparison. A missing figure fails."""
        where = comparisons if self.of_comparison else runs
        if not where:
            return [f"{self.text}: nothing was compared"]
        return [told for figures in where if (told := self._failure(figures))]

    def _failure(self, figures: Figures) -> str:
        value = looked_up(figures, self.path)
        at = f" ({figures['title']})" if figures.get("title") else ""
        if value is None:
            return f"{self.text}{at}: there is no such figure"
        return "" if OPERATORS[self.compares](value, self.number) else f"{self.text}{at}: it is {value:.6g}"


def assertion(text: str) -> Assertion:
    """Raises ValueError with what is wrong."""
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not like p99(ttft)<0.5 or error_rate==0")
    path, of_comparison = _path(match, text)
    return Assertion(text, path, match["operator"], float(match["number"]) * UNITS[match["unit"]], of_comparison)


def _path(match: re.Match[str], text: str) -> tuple[str, bool]:
    if match["metric"]:
        if match["metric"] not in METRICS or match["statistic"] not in STATISTICS:
            known = f"{', '.join(STATISTICS)} of {', '.join(METRICS)}"
            raise ValueError(f"{text!r}: there are {known}")
        return f"{METRICS[match['metric']]}.{match['statistic']}", False
    name = match["name"]
    if name in COMPARED:
        return COMPARED[name], True
    if name not in NAMED and "." not in name:
        raise ValueError(f"{text!r}: there are {', '.join([*NAMED, *COMPARED])}, and paths like tokens.output")
    return NAMED.get(name, name), False


def looked_up(figures: Figures, path: str) -> float | None:
    value: Any = figures
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
