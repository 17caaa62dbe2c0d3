"""Sections of docs/results.md about a GPU: whether its kernels are right, what a step takes, and verification."""

from __future__ import annotations

from typing import Any

from bench.rows import Row
from bench.section import Section, covering, number, source, table, times

Rows = dict[str, list[Row]]
Figures = dict[str, Any]


def parity(own: Rows) -> Section | None:
    rows = own.get("parity", [])
    shown = covering(rows, lambda figures: {"files"} & set(figures))
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


def gpu(own: Rows) -> Section | None:
    rows = own.get("gpu", [])
    shown = covering(rows, lambda figures: {(figures["dtype"], name) for name in ("strict", "fast") if name in figures})
    if not shown:
        return None
    section = Section("Steps on the GPU, random weights in the shape of Llama 3.1 8B")
    for row in shown:
        figures = row["figures"]
        ways = {name: figures[name] for name in ("strict", "fast") if name in figures}
        names = [name for name, value in next(iter(ways.values())).items() if isinstance(value, (int, float))]
        steps = [[f"{name}, ms", *(number(way["step_ms"][name]) for way in ways.values())] for name in _steps(ways)]
        others = [[name.replace("_", " "), *(number(way[name]) for way in ways.values())] for name in names]
        section.say(
            f"The device copies {figures['copy_gb_s']} GB/s (bytes read and written).",
            table([figures["dtype"], *ways], steps + others),
            source("gpu", row, rows),
        )
    return section


def _steps(ways: Figures) -> list[str]:
    return list(next(iter(ways.values()))["step_ms"])


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


GPU = (parity, gpu, gpu_verify)
