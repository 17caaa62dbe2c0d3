"""Where a text stands before its limit of reasoning: a function of its tokens, also behind drafts; and what is drafted
there."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from small_tokenizers import SmallTokenizer, small_tokenizer

from services.api.drafter import NO_DRAFT, Draft
from services.api.sampling import ReasoningLimit
from services.worker.grammar.drafting import SOURCE
from services.worker.grammar.reasoning_limit import LimitedReasoning, Phase, drafts_to_limits
from services.worker.grammar.state import RowMasks

OPENER, CLOSER = "<think>", "</think>"
# Tokens of which random texts are made.
PIECES = ["a", " ", "\n", "<", "think", ">", "/", "th", "</", "é", "</thi", "nk>", OPENER, CLOSER]


@pytest.fixture(scope="module", params=["spelled", "added"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallTokenizer:
    """In one the markers are tokens, in the other they are spelled in several."""
    folder: Path = tmp_path_factory.mktemp("small")
    return small_tokenizer(folder, (OPENER, CLOSER) if request.param == "added" else ())


def limited(small: SmallTokenizer, tokens: int, inside: bool = True, text: str = "") -> LimitedReasoning:
    made = LimitedReasoning(ReasoningLimit(tokens, inside, OPENER, CLOSER), small.vocabulary)
    made.commit(small.ids(text))
    return made


def row_ids(masks: RowMasks | None) -> list[int | None]:
    """By row the one id that may follow; None: any may."""
    assert masks is not None
    found: list[int | None] = []
    for bits, known in zip(masks.bits, masks.known, strict=True):
        ids = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        assert not known or len(ids) == 1
        found.append(ids[0] if known else None)
    return found


def must_follow(small: SmallTokenizer, limit: int, inside: bool, ids: list[int]) -> int | None:
    """The same, read from the whole text each time."""
    closer = small.ids(CLOSER)
    begin = 0
    if not inside:
        texts = [small.text(ids[:count]) for count in range(len(ids) + 1)]
        opened = [count for count, text in enumerate(texts) if text.lstrip().startswith(OPENER)]
        if not opened:
            return None
        begin = opened[0]
    if CLOSER in small.text(ids) or len(ids) - begin < limit:
        return None
    # What is written of the closing marker is not written again.
    written = [count for count in range(len(closer)) if ids[begin:][-count:] == closer[:count] or not count]
    return closer[max(written)]


@pytest.mark.parametrize("inside", [True, False])
def test_what_must_follow_depends_on_the_text_alone(small: SmallTokenizer, inside: bool) -> None:
    draw = random.Random(3)
    seen = 0
    for _ in range(400):
        limit = draw.randrange(6)
        words = [draw.choice(PIECES) for _ in range(draw.randrange(14))]
        if not inside and draw.random() < 0.7:
            words[:0] = [draw.choice(["", " ", "\n\n"]), OPENER]
        ids = [token for word in words for token in small.ids(word)]
        cut = draw.randint(0, len(ids))
        held = limited(small, limit, inside)
        held.commit(ids[:cut])
        masks = held.masks(ids[cut:], [], None, None)
        rows = [None] * (len(ids) - cut + 1) if masks is None else row_ids(masks)
        expected = [must_follow(small, limit, inside, ids[:count]) for count in range(cut, len(ids) + 1)]
        assert rows == expected, (limit, words, cut)
        seen += any(each is not None for each in expected)
    assert seen > 100


def test_drafts_are_walked_and_leave_nothing_behind(small: SmallTokenizer) -> None:
    held = limited(small, 3, text="a")
    before = held.place
    held.masks(small.ids("aa" + CLOSER + "a"), [], None, None)
    held.within(Draft(small.ids("aaaaaa")), 8)
    assert held.place == before


def test_a_draft_token_that_does_not_follow_its_row_is_known(small: SmallTokenizer) -> None:
    (a,) = small.ids("a")
    masks = limited(small, 2).masks([a, a, a, a], [], None, None)
    assert masks is not None and masks.follows.tolist() == [True, True, False, False]


def test_each_branch_of_a_tree_is_its_own_text(small: SmallTokenizer) -> None:
    (a,), closer = small.ids("a"), small.ids(CLOSER)
    #   a ─ closer...     and a ─ a
    draft = [a, *closer, a, a]
    parents = [-1, *range(len(closer)), -1, len(closer) + 1]
    masks = limited(small, 1).masks(draft, parents, None, None)
    # Behind a, each token of the marker; nothing behind the marker; behind the other branch the marker begins.
    assert row_ids(masks) == [None, *closer, None, closer[0], closer[0]]


def test_what_is_forced_is_drafted(small: SmallTokenizer) -> None:
    closer, (a,) = small.ids(CLOSER), small.ids("a")
    held = limited(small, 2)
    assert held.within(NO_DRAFT, 8) == NO_DRAFT
    held.commit([a, a])
    assert held.within(NO_DRAFT, 20) == Draft(closer, SOURCE, confidence=[1.0] * len(closer))
    held.commit(closer[:1])
    assert held.within(NO_DRAFT, 20).tokens == closer[1:]
    assert held.within(NO_DRAFT, 0) == NO_DRAFT
    held.commit(closer[1:])
    assert held.place.phase is Phase.OVER and held.within(Draft([a, a]), 8) == Draft([a, a])


def test_a_draft_is_cut_at_the_limit_and_the_marker_follows(small: SmallTokenizer) -> None:
    closer, (a,) = small.ids(CLOSER), small.ids("a")
    draft = Draft([a] * 9, "ngram", 3, confidence=[0.5] * 9)
    cut = limited(small, 4).within(draft, 6)
    assert cut == Draft([a] * 4 + closer[:2], "ngram", 3, confidence=[0.5] * 4 + [1.0] * len(closer[:2]))
    assert limited(small, 9).within(draft, 9) == draft
    # One that closes by itself goes on.
    whole = Draft([a, *closer, a, a])
    assert limited(small, 4).within(whole, 20) == whole
    tree, drawn = Draft([a, a], parents=[-1, -1]), Draft([a], probs=np.ones((1, small.vocabulary.vocab_size)))
    assert limited(small, 0).within(tree, 8) is tree and limited(small, 0).within(drawn, 8) is drawn


def test_ids_that_are_no_tokens_are_no_text(small: SmallTokenizer) -> None:
    assert drafts_to_limits({1: limited(small, 0)}, {1: Draft([1 << 40])}, {1: 1})[1].tokens == small.ids(CLOSER)[:1]
    assert limited(small, 0).masks([-1, 1 << 40], [], None, None) is not None


def test_a_fault_costs_the_draft_alone(
    small: SmallTokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(limit: LimitedReasoning, draft: Draft, longest: int) -> Draft:
        raise RuntimeError

    monkeypatch.setattr(LimitedReasoning, "within", fail)
    assert drafts_to_limits({1: limited(small, 0)}, {}, {1: 4}) == {1: NO_DRAFT}
    assert "can't draft" in caplog.text


def test_what_a_request_allows_is_held_before_the_limit_and_gives_way_at_it(small: SmallTokenizer) -> None:
    (a,), words = small.ids("a"), -(-small.vocabulary.vocab_size // 32)
    allowed = np.zeros(words, np.uint32)
    allowed[a >> 5] = 1 << (a & 31)
    assert row_ids(limited(small, 1).masks([a], [], None, allowed)) == [a, small.ids(CLOSER)[0]]
    assert limited(small, 3).masks([a], [], None, allowed) is None


def test_a_grammar_that_cannot_close_yet_comes_first(small: SmallTokenizer) -> None:
    """In the middle of a character."""
    (a,), closer = small.ids("a"), small.ids(CLOSER)
    words = -(-small.vocabulary.vocab_size // 32)
    grammar = RowMasks(np.zeros((1, words), np.uint32), np.ones(1, np.bool_), np.zeros(0, np.bool_))
    grammar.bits[0, a >> 5] = 1 << (a & 31)
    assert row_ids(limited(small, 0).masks([], [], grammar, None)) == [a]
    grammar.bits[0, closer[0] >> 5] |= 1 << (closer[0] & 31)
    assert row_ids(limited(small, 0).masks([], [], grammar, None)) == [closer[0]]
