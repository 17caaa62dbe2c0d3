"""Law 5: pages in use + pages free = all pages."""

from __future__ import annotations

import random

import pytest

from services.worker.cache.pages import Pages


def test_pages_are_taken_all_or_none() -> None:
    pages = Pages(4)
    taken = pages.take(3)
    assert taken is not None and len(set(taken)) == 3
    assert pages.take(2) is None
    assert (pages.free, pages.in_use) == (1, 3)
    pages.release(taken)
    assert pages.free == 4


def test_a_shared_page_is_free_when_its_last_holder_lets_go() -> None:
    pages = Pages(2)
    taken = pages.take(1)
    assert taken is not None
    pages.share(taken)
    pages.release(taken)
    assert pages.free == 1
    pages.release(taken)
    assert pages.free == 2


def test_releasing_or_sharing_a_free_page_is_a_bug() -> None:
    pages = Pages(2)
    with pytest.raises(AssertionError):
        pages.release([0])
    with pytest.raises(AssertionError):
        pages.share([1])


def test_no_page_is_lost_or_doubled_at_random() -> None:
    chance, pages = random.Random(1), Pages(50)
    held: list[list[int]] = []
    for _ in range(3000):
        act = chance.random()
        if act < 0.5:
            taken = pages.take(chance.randrange(8))
            if taken is not None:
                held.append(taken)
        elif act < 0.6 and held:
            shared = chance.choice(held)
            pages.share(shared)
            held.append(list(shared))
        elif held:
            pages.release(held.pop(chance.randrange(len(held))))
        pages.check()
        assert pages.in_use == len({page for each in held for page in each})
    for each in held:
        pages.release(each)
    assert pages.free == pages.total
