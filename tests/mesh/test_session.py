"""The ids a peer has used are remembered in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mesh.session import SeenIds


def test_an_id_is_first_once() -> None:
    seen = SeenIds()
    assert seen.first(5) and not seen.first(5) and 5 in seen and 6 not in seen


def test_memory_is_bounded_and_what_fell_out_counts_as_seen() -> None:
    seen = SeenIds(window=100)
    assert all(seen.first(number) for number in range(1, 10_001))
    assert len(seen) == 100
    assert not seen.first(1) and not seen.first(9_000) and seen.first(10_001)


@given(st.lists(st.integers(1, 300), max_size=400), st.integers(1, 50))
def test_nothing_is_first_twice_whatever_the_order(ids: list[int], window: int) -> None:
    seen = SeenIds(window)
    taken: set[int] = set()
    for number in ids:
        if seen.first(number):
            assert number not in taken
            taken.add(number)
        assert len(seen) <= window


@given(st.permutations(range(1, 41)))
def test_ids_out_of_order_within_the_window_are_all_taken(order: list[int]) -> None:
    seen = SeenIds(window=40)
    assert all(seen.first(number) for number in order)
