"""Sections of docs/results.md about the processes: the mesh, its bus, the harness, a restart, faults, what is kept."""

from __future__ import annotations

from typing import Any

from bench.plot import Axis, Line, at
from bench.rows import Row
from bench.section import Section, covering, number, percent, source, table

Rows = dict[str, list[Row]]
Figures = dict[str, Any]
RESTARTS = {"kept": "what was learned is on disk", "cold": "nothing is", "all": "kept, the parent dies, too"}


def mesh(own: Rows) -> Section | None:
    rows = own.get("mesh", [])
    shown = covering(rows, _mesh_parts)
    if not shown:
        return None
    section = Section("The mesh alone")
    section.say("All four processes with the mock engine at zero latency, loaded over HTTP from the same cores.")
    told: set[str] = set()
    for row in shown:
        # A soak is rare, and its row is old: of that one only what no newer row has.
        figures = {name: seen for name, seen in row["figures"].items() if name not in told}
        told |= set(figures) - {"missed"}
        section.say(_throughput(figures), *_soak(figures), source("mesh", row, rows))
    return section


def _mesh_parts(figures: Figures) -> set[str]:
    return set(figures) & {"throughput_naive", "throughput_ngram", "soak", "disconnects"}


def _throughput(figures: Figures) -> str:
    lines = []
    for name, said in {"throughput_naive": "no drafts", "throughput_ngram": "n-gram drafts"}.items():
        if seen := figures.get(name):
            share = ", ".join(f"{role} {percent(each)}" for role, each in seen["cpu_share"].items() if each >= 0.05)
            first, gap = seen["ttft_ms"], seen["itl_ms"]
            ends = [number(each) for each in (seen["tokens_per_s"], first["p50"], first["p99"], gap["p50"], gap["p99"])]
            lines.append([said, *ends, share])
    head = ["", "tokens/s", "first token p50, ms", "p99", "between chunks p50, ms", "p99", "CPU"]
    return table(head, lines)


def _soak(figures: Figures) -> list[str]:
    said = []
    if soak := figures.get("soak"):
        grown = ", ".join(f"{role} {mb:+.1f}" for role, mb in soak["memory_growth_mb"].items())
        said.append(
            f"{soak['wall_s']:.0f} s of load: {number(soak['requests']['ok'])} requests, {soak['requests']['failed']} "
            f"failed; memory grew by (MB): {grown}."
        )
    if hung_up := figures.get("disconnects"):
        sent = hung_up["requests"]
        kept = sum(hung_up["after"].get(name, 0) > was for name, was in hung_up["before"].items())
        said.append(
            f"{number(sent['sent'])} requests of which {number(sent['abandoned'])} were hung up in the middle: of "
            f"{len(hung_up['before'])} counts of files, threads and what is held, {kept} are higher than before."
        )
    return said


def bus(own: Rows) -> Section | None:
    rows, steps = own.get("bus", []), own.get("step_overhead", [])
    shown = covering(rows, lambda figures: {"bus"} if "ask" in figures else set())
    overhead = covering(steps, lambda figures: set(figures.get("drafts", ())))
    if not shown and not overhead:
        return None
    section = Section("The bus, and what the mesh adds to a step")
    for row in shown:
        figures = row["figures"]
        lines = [
            ["question and answer, p50, µs", number(figures["ask"]["p50_us"])],
            ["the same, p99, µs", number(figures["ask"]["p99_us"])],
            ["the same from a thread that waits, p50, µs", number(figures["blocking"]["p50_us"])],
            ["64 questions at once, answers a second", number(figures["ask_64_at_once"]["asks_per_s"])],
            ["one stream, items a second", number(figures["stream_1"]["items_per_s"])],
            ["64 streams, items a second", number(figures["stream_64"]["items_per_s"])],
        ]
        section.say(table(["between two processes over ipc", "seen"], lines), source("bus", row, rows))
    for row in overhead:
        section.say(_overhead(row["figures"]), source("step_overhead", row, steps))
    return section


DRAFTS = {"prepared": "with a draft that was there", "waited": "with a draft that was waited for"}


def _overhead(figures: Figures) -> str:
    """What is added: to the sleep of the mock engine, and by a draft to a step without one."""
    plain = figures["naive"]
    lines = [["without a draft", number(plain["itl_p50_ms"]), number(plain["added_p50_ms"])]]
    for name, said in DRAFTS.items():
        seen = figures["drafts"][name]
        lines.append([said, number(seen["p50_ms"]), number(seen["added_p50_ms"])])
    return table([f"a step of {number(figures['step_ms'])} ms", "between tokens over HTTP p50, ms", "added, ms"], lines)


def harness(own: Rows) -> Section | None:
    rows = own.get("harness", [])
    shown = covering(rows, lambda figures: set(figures) & {"ceiling", "arrivals_constant", "mesh"})
    if not shown:
        return None
    section = Section("The load harness itself")
    for row in shown:
        section.say(table(["", "seen"], list(_harness(row["figures"]))), source("harness", row, rows))
    return section


def _harness(figures: Figures) -> list[list[str]]:
    lines = []
    if "ceiling" in figures:
        lines += [
            ["chunks a second it takes in on a core", number(figures["ceiling"]["chunks_per_s"])],
            ["what it adds to the p99 between chunks, at 20 000 a second, ms", number(figures.get("added_itl_p99_ms"))],
        ]
    for name, seen in figures.items():
        if name.startswith("arrivals_"):
            said = f"{name.removeprefix('arrivals_')} arrivals, {seen['requests_per_s']:.0f} a second: left within 1 ms"
            lines.append([said, percent(seen["left_within_1_ms"])])
    if real := figures.get("mesh"):
        lines += [
            ["tokens a second from the mesh with the mock engine", number(real["tokens_per_s"])],
            ["what it adds there to the p99 between chunks, ms", number(real.get("added_p99_ms"))],
        ]
    return lines


def restart(own: Rows) -> Section | None:
    rows = own.get("restart", [])
    shown = covering(rows, lambda figures: {name for name in RESTARTS if name in figures})
    if not shown:
        return None
    section = Section("A proposer that is killed")
    seen = shown[0]["figures"]
    curves = [Line(said, seen[name]["curve"]) for name, said in RESTARTS.items() if name in seen]
    if highest := max((rate for line in curves for _, rate in line.points), default=0):
        x, y = Axis("seconds since then"), Axis("tokens a step", low=0)
        section.draw("restart", "A proposer dies and comes back", x, y, [*curves, at(0.0, "kill -9", 0.0, highest)])
    for row in shown:
        lines = [
            [
                said, number(seen["ready_after_seconds"]), number(seen["back_after_seconds"]),
                number(seen["tokens_a_step_before"]), number(seen["tokens_a_step_after"]),
            ]
            for name, said in RESTARTS.items()
            for seen in [row["figures"].get(name)]
            if seen and "ready_after_seconds" in seen
        ]  # fmt: skip
        head = ["", "ready after, s", "as many tokens a step as usual after, s", "tokens a step before", "after"]
        section.say(table(head, lines), source("restart", row, rows))
    return section


def faults(own: Rows) -> Section | None:
    rows = own.get("faults", [])
    shown = covering(rows, lambda figures: set(figures.get("cells", ())))
    if not shown:
        return None
    section = Section("A proposer that fails, of the speed without speculation")
    section.say(
        "Killed every 3 s, stopped, answers 200 ms late, or is sure of nonsense; with the interval of 95 %. Drafts are "
        "warm but for `edit`: they also come from the answers to earlier requests of the cell."
    )
    for row in shown:
        cells = row["figures"]["cells"]
        counts = list(dict.fromkeys(key.rpartition(", ")[2] for key in cells))
        lines = [
            [case, *(_cell(cells.get(f"{case}, {count}")) for count in counts)]
            for case in dict.fromkeys(key.rpartition(", ")[0] for key in cells)
        ]
        section.say(table(["", *counts], lines), source("faults", row, rows))
    return section


def _cell(seen: Figures | None) -> str:
    if seen is None:
        return number(None)
    low, high = seen["of_95_%"]
    wrong = f"; {seen['failed']} failed, {seen['differ']} texts differ" if seen["failed"] or seen["differ"] else ""
    return f"{seen['speed']:.2f} ({low:.2f}–{high:.2f}){wrong}"


def segments(own: Rows) -> Section | None:
    rows = own.get("segments", [])
    shown = covering(rows, lambda figures: {size["tokens"] for size in figures.get("sizes", ())})
    if not shown:
        return None
    section = Section("What was learned, on disk")
    for row in shown:
        lines = [
            [
                number(size["tokens"]), number(size["bytes_per_token"]), number(size["open_s"]),
                number(size["build_s_per_million"]), number(size["guess"]["p50_us"]), number(size["guess"]["p99_us"]),
            ]
            for size in row["figures"]["sizes"]
        ]  # fmt: skip
        head = ["tokens", "bytes a token", "opened in, s", "built, s a million", "a guess p50, µs", "p99, µs"]
        section.say(table(head, lines), source("segments", row, rows))
    return section


def same_text(own: Rows) -> Section | None:
    rows = own.get("same_text", [])
    shown = covering(rows, lambda figures: {(figures["dtype"], way) for way in figures.get("ways", ())})
    if not shown:
        return None
    section = Section("The same text in every way")
    for row in shown:
        figures = row["figures"]
        lines = [[way, str(seen["differ"])] for way, seen in figures["ways"].items()]
        head = [f"{figures['dtype']}, {figures['requests']} requests, {number(figures['tokens'])} tokens"]
        section.say(table([*head, "texts that differ"], lines), source("same_text", row, rows))
    return section


MESH = (mesh, bus, harness, restart, faults, segments, same_text)
