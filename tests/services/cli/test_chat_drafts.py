from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.api.methods import SOURCES
from services.cli.chat_drafts import (
    HEAD_STYLE,
    OTHER_STYLE,
    REJECTED,
    RESET,
    STYLES,
    DraftView,
    parts_of,
    printable,
)


def run(
    offsets: list[int], accepted: int, *, step: int = 1, source: str = "suffix", rejected: tuple[str, ...] = ()
) -> dict[str, Any]:
    drafted = accepted + len(rejected)
    return {
        "step": step, "source": source if drafted else "", "match_length": 2, "drafted": drafted, "accepted": accepted,
        "tokens": len(offsets), "offsets": offsets, "rejected": list(rejected),
    }  # fmt: skip


PIECES = [
    ("The", [run([0], 0)]),
    (" quick brown fox", [run([3, 9, 15], 2, step=2, rejected=(" cat", "\n"))]),
    (" ran.", [run([19], 0, step=3, source="ngram", rejected=(" sat",)), run([23], 0, step=4)]),
]


def painted(view: DraftView) -> str:
    return "".join([view.paint(text, runs) for text, runs in PIECES]) + view.close()


def test_without_colours_brackets_stand_around_what_was_drafted() -> None:
    assert painted(DraftView(False)) == "The[suffix| quick brown] fox ran."


def test_rejected_drafts_stand_where_they_were_to_stand() -> None:
    assert painted(DraftView(False, rejected=True)) == r"The[suffix| quick brown]{ cat\n} fox{ sat} ran."


def test_with_colours_each_source_has_its_own_and_lines_end_without() -> None:
    green = STYLES["suffix"]
    view = DraftView(True, rejected=True)
    assert painted(view) == f"The{green} quick brown{RESET}{REJECTED} cat\\n{RESET} fox{REJECTED} sat{RESET} ran."
    assert view.paint("a\nb", [run([29, 30, 31], 3, step=9)]) == f"{green}a{RESET}\n{green}b{RESET}"


def test_every_source_of_the_table_has_a_style_and_the_workers_own_has_none_of_a_texts() -> None:
    assert set(STYLES) == set(SOURCES) and OTHER_STYLE not in STYLES.values()
    of_texts = [style for name, style in STYLES.items() if name not in SOURCES or not SOURCES[name].head]
    assert len(set(of_texts)) == len(of_texts) and HEAD_STYLE not in of_texts
    view = DraftView(True)
    assert view.paint("ab", [run([0, 1], 2, source="eagle3")]) == f"{HEAD_STYLE}ab{RESET}"


def test_what_two_steps_drafted_from_one_source_is_one_bracket() -> None:
    view = DraftView(False)
    text = view.paint("ab", [run([0, 1], 2)]) + view.paint("cd", [run([2, 3], 2, step=2)]) + view.close()
    assert text == "[suffix|abcd]"


def test_a_text_cannot_command_the_terminal() -> None:
    assert printable("a\x1b[2J\x9bb\r\n\tc\ud800") == "a\ufffd[2J\ufffdb\ufffd\n\tc\ufffd"
    view = DraftView(True, rejected=True)
    shown = view.paint("\x1b[31m", [run([0], 1, source="evil\x1b", rejected=("\x1b]0;x",))])
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).isprintable()
    assert all("\x1b]" not in line for line in view.summary(1, 1.0, 0.1, 80))


def test_the_summary_says_how_fast_and_what_stood_of_each_source() -> None:
    view = DraftView(False)
    painted(view)
    lines = view.summary(6, 2.0, 0.25, 200)
    assert lines == [
        "6 tokens, 3.0 tokens/s, first after 0.25 s, 0.50 accepted a step in 4 steps,"
        " suffix: 2 of 4 draft tokens accepted, ngram: 0 of 1 draft tokens accepted, the model itself gave 4"
    ]
    assert max(len(line) for line in view.summary(6, 2.0, 0.25, 44)) <= 44
    assert all(len(line) <= 8 for line in view.summary(6, 2.0, 0.25, 8))


def test_of_a_server_that_tells_nothing_the_text_is_shown_as_it_is() -> None:
    view = DraftView(False)
    assert view.paint("hello", []) + view.paint(" you", []) == "hello you"
    assert "doesn't report" in view.summary(2, 1.0, 0.1, 200)[0]


@st.composite
def answers(draw: st.DrawFn) -> list[tuple[str, list[dict[str, Any]]]]:
    """Pieces as the server cuts them: tokens of 0 to 3 characters, runs of one step in parts."""
    pieces, at = [], 0
    for step in range(draw(st.integers(1, 6))):
        text, runs = "", []
        for _ in range(draw(st.integers(0, 3))):
            tokens = draw(st.lists(st.text("abc \n\x1b🙂", max_size=3), min_size=0, max_size=5))
            offsets = [at + len(text) + sum(map(len, tokens[:place])) for place in range(len(tokens))]
            text += "".join(tokens)
            accepted = draw(st.integers(0, len(tokens)))
            rejected = tuple(draw(st.lists(st.text("xyz", min_size=1, max_size=2), max_size=2)))
            source = draw(st.sampled_from(["suffix", "ngram", "corpus:mine"]))
            runs.append(run(offsets, accepted, step=step + 1, source=source, rejected=rejected))
        pieces.append((text, runs))
        at += len(text)
    return pieces


@given(answers())
def test_parts_are_the_text_in_its_order(pieces: list[tuple[str, list[dict[str, Any]]]]) -> None:
    shown = 0
    for text, runs in pieces:
        assert "".join([part.text for part in parts_of(text, runs, shown)]) == text
        shown += len(text)


@given(answers(), st.booleans())
def test_what_is_shown_is_the_text_and_nothing_stays_switched_on(
    pieces: list[tuple[str, list[dict[str, Any]]]], colours: bool
) -> None:
    view = DraftView(colours)
    shown = "".join([view.paint(text, runs) for text, runs in pieces]) + view.close()
    whole = printable("".join([text for text, _ in pieces]))
    if colours:
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == whole
        assert shown.rfind("\x1b[4") < max(shown.rfind(RESET), 0) or "\x1b[4" not in shown
    else:
        assert re.sub(r"\[(suffix|ngram|corpus:mine)\||\]", "", shown) == whole
        assert shown.count("]") == len(re.findall(r"\[(?:suffix|ngram|corpus:mine)\|", shown))


@given(answers())
def test_drafts_that_do_not_match_their_text_are_shown_all_the_same(
    pieces: list[tuple[str, list[dict[str, Any]]]],
) -> None:
    """Offsets of another place: a server may count differently."""
    for text, runs in pieces:
        for shown in (0, 7, 1000):
            assert "".join([part.text for part in parts_of(text, runs, shown)]) == text
