"""Rows of bench/results/NAME.jsonl: figures never travel without what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
FLAGS_OF_INTEREST = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
PACKAGES = ("aiohttp", "msgspec", "numpy", "pyzmq", "tokenizers", "torch", "uvloop")


def append(name: str, command: list[str], figures: dict[str, Any], folder: Path = RESULTS) -> dict[str, Any]:
    """Adds one row and returns it."""
    row = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "command": shlex.join(["python", "-m", "bench", *command]),
        "hardware": hardware(),
        "versions": versions(),
        "figures": figures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def hardware() -> dict[str, Any]:
    fields = _cpu_fields()
    present = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "flags": [flag for flag in FLAGS_OF_INTEREST if flag in present],
        # Figures taken while others used the machine are worth less: say so in the row.
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_fields() -> dict[str, str]:
    fields: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
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
