"""Sections of docs/results.md about a GPU: the stages of `bench on_gpu`, from rows measured on one. Rows of dry runs
are no figures, and are passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.rows import Row
from bench.section import Section, covering, number, source, table, times

Rows = dict[str, list[Row]]
Figures = dict[str, Any]


def parity(own: Rows) -> Section | None:
    rows = own.get("parity", [])
    shown = covering(rows, lambda figures: set(figures.get("files", ())))
    if not shown:
        return None
    section = Section("The kernels' tests")
    for row in shown:
        lines = [
            [file, str(seen["passed"]), str(len(seen["failed"])), str(seen["skipped"])]
            for file, seen in row["figures"]["files"].items()
        ]
        section.say(table(["", "passed", "failed", "skipped"], lines), source("parity", row, rows))
    return section


def environment(own: Rows) -> Section | None:
    row, rows = _newest(own, "gpu_environment", "compiled")
    if row is None:
        return None
    figures = row["figures"]
    lines = [
        [name, *(str(each.get(what, "–")) for what in ("kernels", "seconds", "registers", "shared", "spills_in_loops"))]
        for name, each in figures["compiled"].items()
    ]
    section = Section("The device, and its kernels compiled")
    section.say(
        table(["", ""], [[name.replace("_", " "), str(value)] for name, value in _flat(figures)]),
        table(["", "kernels", "s", "registers", "shared bytes", "spills in loops"], lines),
        source("gpu_environment", row, rows),
    )
    return section


def law3(own: Rows) -> Section | None:
    row, rows = _newest(own, "gpu_law3", "ways")
    if row is None:
        return None
    lines = [
        [way, str(each["tokens"]), str(each["accepted"]), "same" if each["first_difference"] < 0 else "**other**"]
        for way, each in row["figures"]["ways"].items()
    ]
    section = Section("The same text on the GPU")
    section.say(f"Weights: {row['figures']['weights']}. Each way against one sequence alone without drafts.")
    section.say(table(["", "tokens", "accepted", "text"], lines), source("gpu_law3", row, rows))
    return section


def steps(own: Rows) -> Section | None:
    row, rows = _newest(own, "gpu_steps", "graphs")
    if row is None:
        return None
    ways = {name: row["figures"][name] for name in ("graphs", "eager")}
    parts = {"step_ms": "step", "device_busy_ms": "device busy", "exposed_ms": "host exposed"}
    head = [f"{name}: {said}, ms" for name in ways for said in parts.values()]
    lines = [
        [size, *(number(way[part][size]) for way in ways.values() for part in parts)]
        for size in ways["graphs"]["step_ms"]
    ]
    section = Section("Steps of a small model on the GPU, random weights in the shape of SmolLM2-135M")
    if "overlap" not in row["figures"]:
        section.say(
            "Kernels that overlapped were added up here: the device was busy for less, and the host exposed for more."
        )
    section.say(table(["", *head], lines), source("gpu_steps", row, rows))
    return section


# A benchmark, its title, and which of its figures are tables of names in names: rows, then columns.
TABLES = (
    ("gpu_decode", "Decoding on the GPU, random weights in the shape of Llama 3.1 8B",
     {"step_ms": "ms a step", "times_limit": "times the bytes' limit"}, ("strict", "fast")),
    ("gpu_attention", "Attention on the GPU, in the shape of Llama 3.1 8B",
     {"us": "microseconds of a layer", "of_bandwidth": "share of the bandwidth"}, ()),
    ("gpu_prefill", "Prompts on the GPU, random weights in the shape of Llama 3.1 8B",
     {"tokens_per_s": "tokens per second", "of_matmul": "share of the device's rate of products"}, ()),
)  # fmt: skip


def _table(name: str, title: str, parts: dict[str, str], ways: tuple[str, ...]) -> Callable[[Rows], Section | None]:
    def made(own: Rows) -> Section | None:
        row, rows = _newest(own, name, *(ways or parts))
        if row is None:
            return None
        section = Section(title)
        for part, said in parts.items():
            figures = {way: row["figures"][way][part] for way in ways} if ways else row["figures"][part]
            if not isinstance(next(iter(figures.values())), dict):
                figures = {"": figures}
            columns = list(next(iter(figures.values())))
            lines = [[line, *(number(values[column]) for column in columns)] for line, values in figures.items()]
            section.say(table([said, *columns], lines))
        section.say(source(name, row, rows))
        return section

    return made


def runner(own: Rows) -> Section | None:
    row, rows = _newest(own, "gpu_runner", "weights")
    if row is None:
        return None
    lines = [
        [count, way, *(number(each[what]) for what in ("tokens_per_s", "tokens_per_step", "step_p50_ms"))]
        for count, ways in row["figures"].items()
        if count.endswith("at once")
        for way, each in ways.items()
    ]
    section = Section("Answers in process on the GPU")
    section.say(f"Weights: {row['figures']['weights']}.")
    section.say(table(["", "", "tokens/s", "tokens a step", "step, ms"], lines), source("gpu_runner", row, rows))
    return section


def http(own: Rows) -> Section | None:
    row, rows = _newest(own, "gpu_http", "runs")
    if row is None:
        return None
    columns = ("workload", "server", "concurrency", "tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "accepted_per_step",
               "failed")  # fmt: skip
    lines = [
        [value if isinstance(value := run[column], str) else number(value) for column in columns]
        for run in row["figures"]["runs"]
    ]
    section = Section("The whole mesh on the GPU, over HTTP")
    section.say(table([name.replace("_", " ") for name in columns], lines), source("gpu_http", row, rows))
    return section


def stages(own: Rows) -> Section | None:
    """How each stage ended last: one that left no figures is seen here."""
    newest = {row["figures"]["stage"]: row["figures"] for row in own.get("on_gpu", []) if _real(row, "stage")}
    if not newest:
        return None
    section = Section("The stages")
    section.say(table(["", "ended", "s"], [[n, each["how"], number(each["seconds"])] for n, each in newest.items()]))
    return section


def _real(row: Row, *known: str) -> bool:
    """Neither of a dry run nor of a form that is no longer known."""
    return not row["figures"].get("dry_run") and set(known) <= set(row["figures"])


def _newest(own: Rows, name: str, *known: str) -> tuple[Row | None, list[Row]]:
    rows = [row for row in own.get(name, []) if _real(row, *known)]
    return (rows[-1] if rows else None), rows


def _flat(figures: Figures) -> list[tuple[str, Any]]:
    return [*figures["machine"].items(), *figures["limits"].items(), ("arch", f"sm_{figures['arch']}")]


def gpu_verify(own: Rows) -> Section | None:
    rows = own.get("gpu_verify", [])
    shown = covering(rows, lambda figures: set(figures.get("us", ())))
    if not shown:
        return None
    section = Section("Verification on the GPU")
    section.say("Microseconds on the device, and how many times the time of reading the logits once.")
    for row in shown:
        us, floor = row["figures"]["us"], row["figures"]["times_floor"]
        batches = list(next(iter(us.values())))
        lines = [
            [kind, *(f"{number(seen[batch])} ({times(floor[kind][batch])})" for batch in batches)]
            for kind, seen in us.items()
        ]
        section.say(table(["", *batches], lines), source("gpu_verify", row, rows))
    return section


DECODE, ATTENTION, PREFILL = (_table(*each) for each in TABLES)
GPU = (stages, environment, parity, law3, steps, gpu_verify, DECODE, ATTENTION, runner, PREFILL, http)
