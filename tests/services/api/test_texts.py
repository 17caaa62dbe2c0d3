"""Long texts in pieces: nothing is lost, none is too long, and most end behind a line."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.texts import pieces


@given(st.text(alphabet="aé\n", max_size=400), st.integers(1, 50))
@settings(max_examples=400)
def test_pieces_are_the_text_and_none_is_too_long(text: str, longest: int) -> None:
    parts = list(pieces(text, longest))
    assert "".join(parts) == text
    assert all(0 < len(part) <= longest for part in parts)


def test_pieces_end_behind_a_line() -> None:
    longest = 65536
    first, *_, last = pieces("a line of some words\n" * 10_000, longest)
    assert first.endswith("\n") and longest // 2 < len(first) <= longest and last.endswith("\n")
