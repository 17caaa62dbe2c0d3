"""How many connections fit into the limits of a process, whose table a test makes up."""

from __future__ import annotations

import resource

import pytest

from services.runtime.descriptors import KEPT, hard_limit, make_room_for, room_for


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit."""
    table = [1024, 4096]

    def change(which: int, values: tuple[int, int]) -> None:
        assert values[0] <= values[1] or values[1] == resource.RLIM_INFINITY
        table[:] = values

    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(table))
    monkeypatch.setattr(resource, "setrlimit", change)
    return table


def test_the_soft_limit_is_raised_as_far_as_the_connections_need(limits: list[int]) -> None:
    assert make_room_for(2048) == 2048
    assert limits == [2048 + KEPT, 4096]


def test_a_soft_limit_that_is_enough_is_left_alone(limits: list[int]) -> None:
    assert make_room_for(500) == 500
    assert limits == [1024, 4096]


def test_connections_are_capped_by_the_hard_limit(limits: list[int]) -> None:
    limits[1] = 1024
    assert make_room_for(2048) == 1024 - KEPT
    assert limits == [1024, 1024]


def test_no_limit_is_no_cap(limits: list[int]) -> None:
    limits[1] = resource.RLIM_INFINITY
    assert make_room_for(2048) == 2048
    assert hard_limit() > 10**6


def test_some_connections_fit_into_any_limit() -> None:
    assert [room_for(2048, limit=limit) for limit in (0, 1, 2, 64, 256)] == [1, 1, 1, 32, 128]
