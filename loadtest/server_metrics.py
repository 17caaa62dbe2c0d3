"""The growth of a server's Prometheus counters during a run. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Counters that mean the same under every prefix; summed over positions and labels.
COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "spec_decode_num_steps_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)

Sample = tuple[str, str]  # name, labels as written


def parse(text: str) -> dict[Sample, float]:
    """`name{labels} value [time]` lines; comments and what does not parse are skipped."""
    samples: dict[Sample, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if "{" in line:
            name, _, rest = line.partition("{")
            labels, brace, values = rest.rpartition("}")
            if not brace:
                continue
        else:
            name, _, values = line.partition(" ")
            labels = ""
        try:
            samples[name, labels] = float(values.split()[0])
        except (ValueError, IndexError):
            continue
    return samples


def counted(before: Mapping[Sample, float], after: Mapping[Sample, float]) -> dict[str, float]:
    """Growth of the known counters, without prefix. A counter that fell was reset, so its whole value counts."""
    by_prefix: dict[str, dict[str, float]] = {}
    for sample, value in after.items():
        prefix, name = _split(sample[0])
        if name in COUNTERS:
            old = before.get(sample, 0.0)
            totals = by_prefix.setdefault(prefix, {})
            totals[name] = totals.get(name, 0.0) + (value - old if value >= old else value)
    # A server may serve the same counters under two prefixes; count them once.
    grown: dict[str, float] = {}
    for totals in by_prefix.values():
        for name, value in totals.items():
            grown.setdefault(name, value)
    return grown


def merged(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums over the processes of a server, with the resulting acceptance rate."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    if drafted := total.get("spec_decode_num_draft_tokens_total"):
        accepted = total.get("spec_decode_num_accepted_tokens_total", 0.0)
        total["acceptance_rate"] = accepted / drafted
        # A step computes its own row and one per draft token. Some servers don't count steps without a draft.
        steps = total.get("spec_decode_num_steps_total") or total.get("spec_decode_num_drafts_total", 0.0)
        total["wasted_rows"] = (drafted - accepted) / (steps + drafted)
    return total


def _split(name: str) -> tuple[str, str]:
    prefix, colon, rest = name.rpartition(":")
    return (prefix, rest) if colon else ("", name)
