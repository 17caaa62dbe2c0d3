"""White space between the parts of JSON: what followed a token once is guessed behind it again."""

from __future__ import annotations

import pytest

from services.worker.grammar.spaces import Spaces

TOKENS = [b",", b' "', b" ", b'":', b"\n", b"   ", b"ork", b" C", b"{", b' {"', b'",']
COMMA, QUOTE, SPACE, COLON, LINE, INDENT, WORD, SPACED_WORD, OPEN, OBJECT, QUOTE_COMMA = range(len(TOKENS))


@pytest.fixture
def spaces() -> Spaces:
    return Spaces(TOKENS.__getitem__)


def test_what_followed_is_guessed_the_longest_first(spaces: Spaces) -> None:
    for pair in ((COLON, SPACE), (COLON, QUOTE), (COLON, SPACE), (COMMA, LINE), (LINE, INDENT), (COMMA, OBJECT)):
        spaces.saw(*pair)
    assert spaces.behind(COLON) == [QUOTE, SPACE]
    assert spaces.behind(COMMA) == spaces.behind(QUOTE_COMMA) == [OBJECT, LINE]
    assert spaces.behind(LINE) == [INDENT] and spaces.behind(OPEN) == []


@pytest.mark.parametrize(
    "pair",
    [(WORD, SPACE), (COMMA, SPACED_WORD), (COMMA, WORD), (QUOTE, WORD), (OPEN, COLON), (WORD, QUOTE)],
)
def test_only_space_between_parts_is_guessed(spaces: Spaces, pair: tuple[int, int]) -> None:
    spaces.saw(*pair)
    assert spaces.behind(pair[0]) == []


def test_behind_a_name_the_colon_is_guessed(spaces: Spaces) -> None:
    spaces.saw(WORD, COLON)
    assert spaces.behind(SPACED_WORD) == [COLON]


def test_a_wrong_guess_is_forgotten_until_it_is_seen_again(spaces: Spaces) -> None:
    spaces.saw(COMMA, QUOTE)
    spaces.missed(COMMA, QUOTE)
    assert spaces.behind(COMMA) == []
    spaces.saw(COMMA, QUOTE)
    assert spaces.behind(COMMA) == [QUOTE]
