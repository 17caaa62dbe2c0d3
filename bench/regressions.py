"""Which figures of a row are worse than in the row before: of the same benchmark, machine and command.

Only figures that stand in WATCHED are compared, since only of those it is said which way is better. A change within
the noise is none. Nothing fails by this: it is shown, and whoever reads it decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from bench.rows import Row, machine

HIGHER, LOWER = 1, -1
# Two runs of the same code on a virtual machine: times differ by this much, and ratios within a run by that.
OF_TIMES, OF_RATIOS = 0.3, 0.12
# What is counted doesn't depend on who else uses the machine.
OF_COUNTS = 0.03


class Watched(NamedTuple):
    """`path`: names in the figures, joined by slashes, each a pattern; a place in a list is its number."""

    path: str
    better: int
    noise: float


WATCHED: dict[str, tuple[Watched, ...]] = {
    "bus": (
        Watched("*/p50_us", LOWER, OF_TIMES),
        Watched("*/*_per_s", HIGHER, OF_TIMES),
    ),
    "engine": (
        Watched("step_ms/*", LOWER, OF_TIMES),
        Watched("prefill_tokens_per_second", HIGHER, OF_TIMES),
        Watched("ceilings/step_of_one_row_times_floor", LOWER, OF_RATIOS),
    ),
    "faults": (
        Watched("cells/*/speed", HIGHER, OF_RATIOS),
        Watched("cells/*/failed", LOWER, 0.0),
        Watched("cells/*/differ", LOWER, 0.0),
    ),
    "gpu_attention": (Watched("us/*/*", LOWER, OF_RATIOS),),
    "gpu_decode": (Watched("*/step_ms/*", LOWER, OF_RATIOS),),
    "gpu_prefill": (Watched("tokens_per_s/*", HIGHER, OF_RATIOS),),
    "gpu_runner": (Watched("*/*/tokens_per_s", HIGHER, OF_TIMES),),
    "gpu_steps": (Watched("*/step_ms/*", LOWER, OF_RATIOS), Watched("*/exposed_ms/*", LOWER, OF_TIMES)),
    "gpu_verify": (Watched("us/*/*", LOWER, OF_RATIOS),),
    "harness": (
        Watched("ceiling/chunks_per_s", HIGHER, OF_TIMES),
        Watched("mesh/tokens_per_s", HIGHER, OF_TIMES),
        Watched("arrivals_*/left_within_1_ms", HIGHER, OF_COUNTS),
    ),
    "mesh": (
        Watched("throughput_*/tokens_per_s", HIGHER, OF_TIMES),
        Watched("resident_mb/*", LOWER, OF_RATIOS),
    ),
    "never_slower": (
        Watched("cells/*/ratio", HIGHER, OF_RATIOS),
        Watched("cells/*/differ", LOWER, 0.0),
    ),
    "peers": (
        Watched("tokens_per_second/ours*", HIGHER, OF_TIMES),
        Watched("times_transformers/ours*", HIGHER, OF_RATIOS),
    ),
    "proposer": (
        Watched("ours/step/*_us", LOWER, OF_TIMES),
        Watched("ours/learn/ns_per_token", LOWER, OF_TIMES),
        Watched("ours/learn/bytes_per_token", LOWER, OF_COUNTS),
        Watched("brings/kinds/*/ours/*/1", HIGHER, OF_COUNTS),
        Watched("brings/*/geometric_mean", HIGHER, OF_COUNTS),
    ),
    "restart": (
        Watched("*/ready_after_seconds", LOWER, OF_TIMES),
        Watched("*/tokens_a_step_*", HIGHER, OF_RATIOS),
    ),
    "segments": (
        Watched("sizes/*/open_s", LOWER, OF_TIMES),
        Watched("sizes/*/bytes_per_token", LOWER, OF_COUNTS),
        Watched("sizes/*/guess/p50_us", LOWER, OF_TIMES),
    ),
    "serving": (
        Watched("*_tokens_per_second", HIGHER, OF_TIMES),
        Watched("http_of_in_process", HIGHER, OF_RATIOS),
        Watched("batch_times_single", HIGHER, OF_RATIOS),
        Watched("prefix_ttft_of_cold", LOWER, OF_RATIOS),
    ),
    "speculation": (
        Watched("workloads/*/*/*/throughput", HIGHER, OF_RATIOS),
        Watched("workloads/*/1/*/decode/0", HIGHER, OF_RATIOS),
        Watched("workloads/*/*/naive/tokens_per_second", HIGHER, OF_TIMES),
        Watched("workloads/*/*/*/texts_differ", LOWER, 0.0),
    ),
    "step_overhead": (
        Watched("*/itl_p50_ms", LOWER, OF_RATIOS),
    ),
    "verify": (
        Watched("call_us", LOWER, OF_TIMES),
        Watched("*/verify/*/rows 8/share", LOWER, OF_TIMES),
    ),
}


def worse(name: str, row: Row, earlier: Sequence[Row]) -> list[str]:
    """A line for each figure that is. `earlier`: rows of the same benchmark, the newest last."""
    same = [each for each in earlier if each["command"] == row["command"] and machine(each) == machine(row)]
    if not same:
        return []
    last = same[-1]
    then = leaves(last["figures"])
    return [
        f"worse than {last['date'][:10]} {last['commit'] or 'without a commit'}: {path}"
        f" {number(then[path])} -> {number(value)} ({change(then[path], value)})"
        for path, value in leaves(row["figures"]).items()
        for watched in [of(name, path)]
        if watched is not None and path in then and is_worse(watched, then[path], value)
    ]


def of(name: str, path: str) -> Watched | None:
    """The first that fits."""
    return next((each for each in WATCHED.get(name, ()) if fits(each.path, path)), None)


def is_worse(watched: Watched, then: float, now: float) -> bool:
    return (then - now) * watched.better > watched.noise * abs(then)


def change(then: float, now: float) -> str:
    return f"{100 * (now - then) / then:+.0f} %" if then else "from none"


def fits(pattern: str, path: str) -> bool:
    wanted, found = pattern.split("/"), path.split("/")
    return len(wanted) == len(found) and all(map(fnmatchcase, found, wanted))


def leaves(figures: Any) -> dict[str, float]:
    return dict(_leaves(figures, ""))


def _leaves(figures: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(figures, (int, float)) and not isinstance(figures, bool):
        yield path, figures
    elif isinstance(figures, (dict, list)):
        for name, each in figures.items() if isinstance(figures, dict) else enumerate(figures):
            yield from _leaves(each, f"{path}/{name}" if path else str(name))


def number(value: float) -> str:
    """As a reader wants it: three or four digits, thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"
