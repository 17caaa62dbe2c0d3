"""A mailbox is bounded in letters and in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.mailbox import Mailbox


@dataclass(eq=False)
class Letter:
    weight: int = 1


def test_first_in_first_out() -> None:
    box: Mailbox[Letter] = Mailbox(10, 100)
    letters = [Letter() for _ in range(3)]
    assert all(box.put(letter) for letter in letters)
    assert [box.take() for _ in range(4)] == [*letters, None]


def test_a_full_box_takes_nothing_more() -> None:
    box: Mailbox[Letter] = Mailbox(2, 100)
    assert box.put(Letter()) and box.put(Letter())
    assert not box.put(Letter())
    box.take()
    assert box.put(Letter())


def test_heavy_letters_fill_it_sooner() -> None:
    box: Mailbox[Letter] = Mailbox(10, 100)
    assert box.put(Letter(60))
    assert not box.put(Letter(60))
    assert box.put(Letter(40)) and box.weight == 100


def test_one_letter_always_fits_an_empty_box() -> None:
    box: Mailbox[Letter] = Mailbox(10, 100)
    assert box.put(Letter(1000))
    assert not box.put(Letter(1))


def test_a_discarded_letter_frees_its_place() -> None:
    box: Mailbox[Letter] = Mailbox(2, 100)
    first, second = Letter(50), Letter(50)
    box.put(first)
    box.put(second)
    assert box.discard(first) and not box.discard(first)
    assert (len(box), box.weight) == (1, 50)
    assert box.take() is second
