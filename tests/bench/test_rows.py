from __future__ import annotations

import json
from pathlib import Path

from bench import rows


def test_a_row_carries_what_its_figures_were_measured_on(tmp_path: Path) -> None:
    rows.append("bus", ["bus", "--items", "10"], {"p50": 1.5}, folder=tmp_path)
    rows.append("bus", ["bus"], {"p50": 1.6}, folder=tmp_path)
    first, second = (json.loads(line) for line in (tmp_path / "bus.jsonl").read_text().splitlines())
    assert first["figures"] == {"p50": 1.5} and second["figures"] == {"p50": 1.6}
    assert first["command"] == "python -m bench bus --items 10"
    assert first["hardware"]["cores"] >= 1 and first["hardware"]["memory_gb"] > 0
    assert first["versions"]["pyzmq"] and first["commit"] and isinstance(first["dirty"], bool)
