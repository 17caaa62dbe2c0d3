from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.streamer.choice.stops import StopMatcher, StopTable


def shown(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, str | None]:
    """What is shown of the pieces in all, and the stop string found."""
    matcher = StopMatcher(StopTable(stops))
    text = ""
    for piece in pieces:
        text += matcher.feed(piece)
        if matcher.found is not None:
            return text, matcher.found
    return text + matcher.flush(), None


def truth(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """Character by character, looking back at everything."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_text_without_stop_strings_passes_at_once() -> None:
    matcher = StopMatcher(StopTable(()))
    assert matcher.feed("anything") == "anything"
    assert matcher.held == ""


def test_a_stop_string_inside_one_piece_cuts_it() -> None:
    assert shown(("END",), ["one END two"]) == ("one ", "END")


def test_a_stop_string_over_three_pieces_is_never_shown_in_part() -> None:
    matcher = StopMatcher(StopTable(("\n\nUser:",)))
    assert [matcher.feed(piece) for piece in ("Hello", "\n", "\nUs", "er", ":")] == ["Hello", "", "", "", ""]
    assert matcher.found == "\n\nUser:"


def test_a_beginning_that_comes_to_nothing_is_shown() -> None:
    matcher = StopMatcher(StopTable(("\n\nUser:",)))
    assert [matcher.feed(piece) for piece in ("\n", "\nUs", "age")] == ["", "", "\n\nUsage"]


def test_a_beginning_at_the_end_is_shown_by_the_flush() -> None:
    matcher = StopMatcher(StopTable(("END",)))
    assert matcher.feed("the EN") == "the "
    assert matcher.flush() == "EN"


def test_the_stop_string_completed_first_counts_though_another_began_before() -> None:
    assert shown(("abcd", "bc"), ["abcd"]) == ("a", "bc")


def test_of_those_completed_together_the_longest_counts() -> None:
    assert shown(("c", "abc"), ["xabc"]) == ("x", "abc")


def test_overlapping_beginnings_are_followed() -> None:
    assert shown(("aab",), ["a", "a", "a", "b"]) == ("a", "aab")


def test_a_stop_string_before_min_tokens_does_not_count_but_one_across_the_border_does() -> None:
    matcher = StopMatcher(StopTable(("END",)))
    assert matcher.feed("END E", armed=False) == "END "
    assert matcher.feed("ND") == ""
    assert matcher.found == "END"


def test_a_stop_string_wholly_before_the_border_is_not_found_later() -> None:
    matcher = StopMatcher(StopTable(("b", "abc")))
    matcher.feed("ab", armed=False)
    matcher.feed("x")
    assert matcher.found is None


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_the_cut_does_not_depend_on_how_the_text_was_split(stops: list[str], pieces: list[str]) -> None:
    assert shown(tuple(stops), pieces) == truth(tuple(stops), "".join(pieces))


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.tuples(st.text("abc", max_size=5), st.booleans()), max_size=8),
)
def test_before_min_tokens_nothing_is_lost_and_no_more_is_held_than_a_stop_string_goes_on_from(
    stops: list[str], pieces: list[tuple[str, bool]]
) -> None:
    matcher, given_, shown_ = StopMatcher(StopTable(tuple(stops))), "", ""
    for piece, armed in pieces:
        given_ += piece
        shown_ += matcher.feed(piece, armed=armed)
        if matcher.found is not None:
            assert armed and given_.startswith(shown_ + matcher.found) and matcher.found in stops
            return
        ends = [given_[place:] for place in range(len(given_) + 1)]
        assert matcher.held == next(end for end in ends if any(s.startswith(end) and s != end for s in stops))
        assert shown_ + matcher.held == given_


def test_characters_that_mean_something_in_a_pattern_begin_stop_strings_too() -> None:
    for character in "^]-\\[\n🙂":
        assert shown((character + "x",), [f"a{character}", "xb"]) == ("a", character + "x")


def test_a_near_match_costs_as_many_transitions_as_it_has_characters() -> None:
    """Before, each of them was compared with each beginning of each stop string."""
    stops = tuple("a" * 255 + last for last in "bcdefghijklmnopq")
    table, calls = StopTable(stops), 0
    assert len(table) == 1 + 255 + 16

    class Counted(StopTable):
        __slots__ = ()

        def after(self, state: int, code: int) -> int:
            nonlocal calls
            calls += 1
            return super().after(state, code)

    matcher = StopMatcher(Counted(stops))
    calls = 0
    text = "a" * 1000 + "x" + "a" * 255 + "i"
    assert "".join(matcher.feed(each) for each in text) == text[:-256] and matcher.found == stops[7]
    assert calls == len(text)
