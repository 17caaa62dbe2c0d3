"""Questions that are only rehearsed: what they say, and that a proposer can follow them for ever."""

from __future__ import annotations

from msgspec.structs import replace

from services.api.messages import Propose, ProposeItem
from services.proposer.sequences import Sequences
from services.worker.speculation.practice import FIRST, LONGEST, MORE, OWN, Practice

ITEM = ProposeItem(
    sequence_id=3, committed=9, tokens=[1, 2], first=True, prompt_tokens=7, budget=5, method="auto", ahead=[4, 5],
    namespace="ours", prediction=[1, 2, 3],
)  # fmt: skip
QUESTION = Propose(step=8, epoch=2, target="t", items=[ITEM], forget=[1], vocabulary="v")


def test_the_last_question_is_asked_again_without_what_was_heard() -> None:
    own, again = Practice().question(QUESTION, [ITEM]).items
    assert again == replace(ITEM, tokens=[], first=False, prediction=[])
    assert (own.sequence_id, own.first, own.committed, len(own.tokens)) == (OWN, True, FIRST, FIRST)
    assert (own.method, own.budget, own.namespace, own.learn) == ("auto", 5, "", False)


def test_it_is_told_apart_and_ends_nothing() -> None:
    question = Practice().question(QUESTION, [ITEM])
    assert question.rehearsed and not QUESTION.rehearsed
    assert question.forget == [] and question.ended == []
    assert (question.step, question.epoch, question.target, question.vocabulary) == (8, 2, "t", "v")


def test_its_own_text_can_be_followed_and_has_an_end() -> None:
    practice, longest = Practice(), 0
    texts = Sequences(1_000_000, lambda view_id: None)
    texts.meet("t", 1)
    for _ in range(3 * LONGEST // MORE):
        [own, _] = practice.question(QUESTION, [ITEM]).items
        followed = texts.follow("t", own)
        assert followed is not None and followed.committed == own.committed
        longest = max(longest, own.committed)
    assert LONGEST - MORE < longest <= LONGEST and len(texts) == 1
    for each in practice.leave():
        texts.forget("t", each)
    assert len(texts) == 0 and practice.leave() == []


def test_a_proposer_that_lost_it_is_told_it_anew() -> None:
    practice = Practice()
    practice.question(QUESTION, [ITEM])
    assert not practice.question(QUESTION, [ITEM]).items[0].first
    practice.forgotten([3])
    assert not practice.question(QUESTION, [ITEM]).items[0].first
    practice.forgotten([3, OWN])
    assert practice.question(QUESTION, [ITEM]).items[0].first
