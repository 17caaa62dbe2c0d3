"""Counts of the last seconds from totals."""

from __future__ import annotations

from typing import Any

from mesh_seen import member

from services.cli.top_window import MOST_LOOKS, Window


def body(drafted: int, accepted: int, pid: int = 1) -> dict[str, Any]:
    source = {"name": "suffix", "drafted": drafted, "accepted": accepted, "drafted_lately": 7, "accepted_lately": 7}
    return {"members": [member("worker", pid=pid, sources=[source])]}


def lately(seen: dict[str, Any]) -> tuple[int, int]:
    (source,) = seen["members"][0]["sources"]
    return source["drafted_lately"], source["accepted_lately"]


def test_the_window_is_the_last_ten_seconds_and_the_first_look_is_the_servers() -> None:
    window = Window()
    assert lately(window.add(body(100, 50), 0.0)) == (7, 7)
    seen = [lately(window.add(body(100 + 10 * at, 50 + at), float(at))) for at in range(1, 31)]
    assert seen[0] == (10, 1) and seen[8] == (90, 9)
    assert seen[9:] == [(100, 10)] * 21


def test_a_restarted_worker_counts_from_nothing() -> None:
    window = Window()
    window.add(body(100, 50), 0.0)
    assert lately(window.add(body(8, 4, pid=2), 1.0)) == (8, 4)


def test_it_keeps_so_many_looks_however_fast_they_come() -> None:
    window = Window()
    for number in range(4 * MOST_LOOKS):
        window.add(body(number, 0), number * 1e-6)
    assert len(window._looks) == MOST_LOOKS
