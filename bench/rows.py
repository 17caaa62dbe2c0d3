"""Rows of bench/results/NAME.jsonl: figures never travel without what they were measured on."""

from __future__ import annotations

import functools
import json
import os
import platform
import shlex
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
FLAGS_OF_INTEREST = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
PACKAGES = ("aiohttp", "msgspec", "numba", "numpy", "pyzmq", "tokenizers", "torch", "triton", "uvloop")
# Where figures and what is made of them go: they don't change what is measured.
NOT_MEASURED = (":!bench/results", ":!docs")
# Says which commit a copy is of that has no git, or one that has stayed behind.
COMMIT = "BENCH_COMMIT"

# How long is watched, before a benchmark begins, how busy others keep the cores.
WATCHED_SECONDS = 1.0
_busy_before: float | None = None

Row = dict[str, Any]
Hardware = tuple[str, int, tuple[str, ...], str]


def append(name: str, command: list[str], figures: dict[str, Any], folder: Path = RESULTS) -> Row:
    """Adds one row and returns it."""
    row: Row = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "dirty": COMMIT not in os.environ
        and bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_MEASURED)),
        "command": shlex.join(["python", "-m", "bench", *map(_without_folders, command)]),
        "hardware": hardware(),
        "versions": versions(),
        "figures": figures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def commit() -> str:
    return os.environ.get(COMMIT, "") or _git("rev-parse", "--short=12", "HEAD")


def read(name: str, folder: Path = RESULTS) -> list[Row]:
    """All rows of a benchmark, the oldest first; none where it never ran."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((json.loads(line) for line in lines if line.strip()), key=lambda row: str(row["date"]))


def read_all(folder: Path = RESULTS) -> dict[str, list[Row]]:
    return {path.stem: read(path.stem, folder) for path in sorted(folder.glob("*.jsonl"))}


def machine(row: Row) -> Hardware:
    """What has to be the same for figures of two rows to be compared."""
    own = row["hardware"]
    return own["cpu"], own["cores"], tuple(own["flags"]), own.get("gpu", "")


def hardware() -> dict[str, Any]:
    fields = _cpu_fields()
    present = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "flags": [flag for flag in FLAGS_OF_INTEREST if flag in present],
        # Figures taken while others used the machine are worth less: say so in the row. The load average also counts
        # the benchmark itself; the share of the cores that was busy before it began doesn't.
        "load_average": round(os.getloadavg()[0], 2),
        "busy_before": _busy_before,
    } | ({"gpu": gpu} if (gpu := _gpu()) else {})


def look_around(seconds: float = WATCHED_SECONDS) -> None:
    """Call it before a benchmark starts anything: rows say how busy the machine was then."""
    global _busy_before
    first = _cpu_times()
    time.sleep(seconds)
    idle, whole = (now - then for now, then in zip(_cpu_times(), first, strict=True))
    _busy_before = round(1 - idle / whole, 3) if whole else None


def _cpu_times() -> tuple[int, int]:
    """Of all cores since boot: idle, and all."""
    try:
        words = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    times = [int(word) for word in words]
    return times[3] + times[4], sum(times)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.lru_cache
def _gpu() -> str:
    """By the driver's own tool: most benchmarks do without torch."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(told.split("\n")).strip(", ")


def _cpu_fields() -> dict[str, str]:
    fields: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return fields
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _git(*command: str) -> str:
    try:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _without_folders(word: str) -> str:
    """Where somebody's environment lies says nothing about a figure."""
    return Path(word).name if word.startswith("/") else word
