"""Rows as a benchmark leaves them, with figures made up."""

from __future__ import annotations

from typing import Any

from bench.rows import Row

CPU: dict[str, Any] = {"cpu": "Some CPU", "cores": 2, "memory_gb": 8.0, "flags": ["avx2"], "load_average": 1.25}


def row(name: str, figures: dict[str, Any], flags: str = "", day: int = 1, **changed: Any) -> Row:
    return {
        "date": f"2026-11-{day:02}T10:20:30+00:00",
        "commit": f"abc{day}",
        "dirty": False,
        "command": f"python -m bench {name} {flags}".strip(),
        "hardware": CPU,
        "versions": {"python": "3.11"},
        "figures": figures,
    } | changed
