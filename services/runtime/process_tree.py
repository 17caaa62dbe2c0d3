"""Processes below a process, and what memory they take: as the kernel tells it."""

from __future__ import annotations

import re
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Living descendants of a process: pid -> command line."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue
            if stat[0] != "Z":
                parents[int(entry.name)] = int(stat[1])
    wanted = {pid}
    while more := {child for child, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return {child: _command(child) for child in wanted - {pid}}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def memory_mb(pid: int) -> float:
    """Of a process and all below it. What they share counts once; one that ends meanwhile counts as nothing."""
    return sum(map(_proportional_mb, (pid, *descendants(pid))))


def _proportional_mb(pid: int) -> float:
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", told, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
