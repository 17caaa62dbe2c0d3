"""The judgements of the mesh benchmark; the measuring itself needs a mesh and runs in `make bench`."""

from __future__ import annotations

from bench.mesh import AT_REST, _growth, left_over, unserved


def test_memory_that_settles_is_flat_and_memory_that_climbs_is_not() -> None:
    settling = [100.0 + 20.0 * min(1.0, second / 10) for second in range(100)]
    climbing = [100.0 + 0.5 * second for second in range(100)]
    assert _growth(settling) == 0.0
    assert _growth(climbing) > 25


def test_more_open_files_than_before_are_left_over_and_fewer_are_not() -> None:
    assert left_over({"files streamer": 30.0}, {"files streamer": 28.0}) == []
    assert left_over({"files streamer": 30.0}, {"files streamer": 31.0}) != []


def test_a_gauge_that_is_not_zero_is_left_over_even_if_it_was_before() -> None:
    gauge = "gauge target specmesh:num_requests_running"
    assert left_over({gauge: 1.0}, {gauge: 1.0}) == [f"{gauge} is 1"]
    assert left_over({}, {gauge: 0.0}) == []


def test_a_gauge_nobody_serves_is_not_taken_for_zero() -> None:
    all_but_one = {f"gauge target {name}": 0.0 for name in AT_REST[1:]}
    assert unserved(all_but_one) == [AT_REST[0]]
    assert unserved(all_but_one | {f"gauge streamer {AT_REST[0]}": 0.0}) == []
