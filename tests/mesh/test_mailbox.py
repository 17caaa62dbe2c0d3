"""A mailbox is bounded in letters and in bytes."""

from __future__ import annotations

from mesh.mailbox import Mail, Mailbox


def letter(weight: int = 1) -> Mail:
    return Mail(owner=None, id=0, kind="", body=bytes(weight), raw=(), call=None)  # type: ignore[arg-type]


def test_first_in_first_out() -> None:
    box = Mailbox(10, 100)
    letters = [letter() for _ in range(3)]
    assert all(box.put(letter) for letter in letters)
    assert [box.take() for _ in range(4)] == [*letters, None]


def test_a_full_box_takes_nothing_more() -> None:
    box = Mailbox(2, 100)
    assert box.put(letter()) and box.put(letter())
    assert not box.put(letter())
    box.take()
    assert box.put(letter())


def test_heavy_letters_fill_it_sooner() -> None:
    box = Mailbox(10, 100)
    assert box.put(letter(60))
    assert not box.put(letter(60))
    assert box.put(letter(40)) and box.weight == 100


def test_one_letter_always_fits_an_empty_box() -> None:
    box = Mailbox(10, 100)
    assert box.put(letter(1000))
    assert not box.put(letter(1))


def test_a_discarded_letter_frees_its_place() -> None:
    box = Mailbox(2, 100)
    first, second = letter(50), letter(50)
    box.put(first)
    box.put(second)
    assert box.discard(first) and not box.discard(first)
    assert (len(box), box.weight) == (1, 50)
    assert box.take() is second
