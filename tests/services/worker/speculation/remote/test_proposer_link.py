"""What a target asks of its proposer, and what it makes of silence, lies and death."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mesh_around import request
from msgspec.structs import replace

from mesh.errors import DeadlineExceeded, PeerLost, RemoteError
from services.api.drafts import DraftItem, packed
from services.api.messages import DraftColumns, Propose, Proposed, Speculation
from services.worker.scheduling.events import DraftAsk
from services.worker.speculation.practice import OWN
from services.worker.speculation.remote.ended_texts import MOST_TEXTS, MOST_TOKENS, TOKENS_A_QUESTION, EndedTexts
from services.worker.speculation.remote.proposer_link import (
    FEW,
    MISSES,
    PROBE_SECONDS,
    RETRY_SECONDS,
    WAITS,
    ProposerLink,
)

DEADLINE = 0.02


class Wire:
    """A link that writes down what is sent, and answers what the test says."""

    def __init__(self) -> None:
        self.sent: list[Propose] = []
        self.waited: list[float] = []
        self.looked: list[float] = []
        self.answers: list[Any] = []
        self.send_error: Exception | None = None
        self.closed = False
        self.given_up: list[int] = []

    def send(self, message: Propose, *, timeout: float) -> int:
        if self.send_error is not None:
            raise self.send_error
        self.sent.append(message)
        return len(self.sent)

    def arrived(self, ticket: int, timeout: float) -> bool:
        self.looked.append(timeout)
        return bool(self.answers)

    def receive(self, ticket: int, timeout: float) -> Any:
        self.waited.append(timeout)
        answer = self.answers.pop(0) if self.answers else DeadlineExceeded("late")
        if isinstance(answer, Exception):
            raise answer
        return answer(self.sent[ticket - 1]) if callable(answer) else answer

    def give_up(self, ticket: int) -> None:
        self.given_up.append(ticket)

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.wires: list[Wire] = []
        self.link = ProposerLink(
            self._connect, target="t", epoch=7, deadline=DEADLINE, now=lambda: self.now, vocabulary="v"
        )
        self.text = [1, 2, 3, 4]
        self.link.move_to("ipc://a")

    def _connect(self, endpoint: str) -> Wire:
        self.wires.append(Wire())
        return self.wires[-1]

    @property
    def wire(self) -> Wire:
        return self.wires[-1]

    def ask(self, *more: Any) -> None:
        self.link.ask([self.asking(1, self.text), *more])

    def asking(self, id: int, text: list[int]) -> DraftAsk:
        return DraftAsk(text_of(id, text), 5)

    def collect(self) -> list[DraftItem]:
        ready = self.link.collect()
        return [] if ready is None else ready.drafts

    def step(self, answer: Any) -> list[DraftItem]:
        """Ask, get this answer, and commit a token."""
        self.ask()
        self.wire.answers.append(answer)
        drafts = self.collect()
        self.text = [*self.text, len(self.text) + 1]
        return drafts


def text_of(id: int, text: list[int], **fields: Any) -> Any:
    generate = replace(request(text[:3]), **fields)
    return SimpleNamespace(id=id, token_ids=text, prompt_tokens=3, method="ngram", trees=False, generate=generate)


def good(message: Propose) -> Proposed:
    drafts = [
        DraftItem(sequence_id=item.sequence_id, committed=item.committed, tokens=[9], source="s")
        for item in message.items
    ]
    return Proposed(step=message.step, drafts=packed(drafts))


def items(message: Propose) -> list[tuple[int, list[int], bool]]:
    return [(item.committed, item.tokens, item.first) for item in message.items]


def test_the_first_question_holds_the_text_and_the_next_what_is_new() -> None:
    world = World()
    [draft] = world.step(good)
    assert (draft.sequence_id, draft.committed, draft.tokens) == (1, 4, [9])
    world.step(good)
    world.text += [6, 7]
    world.step(good)
    assert [items(message) for message in world.wire.sent] == [
        [(4, [1, 2, 3, 4], True)],
        [(5, [5], False)],
        [(8, [6, 6, 7], False)],
    ]
    [item] = world.wire.sent[0].items
    assert (item.prompt_tokens, item.budget, item.method) == (3, 5, "ngram")
    assert (world.wire.sent[0].target, world.wire.sent[0].epoch) == ("t", 7)


def test_one_question_carries_the_whole_batch() -> None:
    world = World()
    world.ask(world.asking(2, [8]), world.asking(3, [9, 9]))
    assert items(world.wire.sent[0]) == [(4, [1, 2, 3, 4], True), (1, [8], True), (2, [9, 9], True)]


def test_a_text_the_proposer_does_not_know_is_sent_whole() -> None:
    world = World()
    world.step(good)
    world.step(lambda message: Proposed(step=message.step, unknown=[1]))
    world.step(good)
    world.step(good)
    assert [item[2] for message in world.wire.sent for item in items(message)] == [True, False, True, False]
    assert world.wire.sent[2].items[0].tokens == [1, 2, 3, 4, 5, 6]


def test_what_was_not_answered_is_sent_again() -> None:
    world = World()
    world.step(good)
    world.step(DeadlineExceeded("late"))
    world.step(good)
    assert items(world.wire.sent[2]) == [(6, [5, 6], False)]


def test_it_waits_for_what_is_left_of_the_deadline() -> None:
    world = World()
    world.ask()
    world.now += 0.015
    world.link.collect()
    world.ask()
    world.now += 1.0
    world.link.collect()
    assert world.wire.waited == [pytest.approx(0.005), 0.0]
    assert world.link.missed == 2


def test_after_some_misses_nobody_waits_and_an_answer_in_time_ends_that() -> None:
    world = World()
    for _ in range(MISSES):
        world.step(DeadlineExceeded("late"))
    assert world.link.gave_up
    asked, waited = len(world.wire.sent), len(world.wire.waited)
    for _ in range(10):
        assert world.step(good) == []
    assert (len(world.wire.sent), len(world.wire.waited)) == (asked, waited), "neither asked nor waited for"
    world.wire.answers.clear()
    world.now += PROBE_SECONDS
    world.ask()
    assert len(world.wire.sent) == asked + 1
    assert world.collect() == [] and len(world.wire.waited) == waited
    world.now += DEADLINE
    world.wire.answers.append(good)
    world.link.collect()
    assert world.wire.waited[-1] == 0.0, "looked at without waiting"
    assert not world.link.gave_up
    assert len(world.step(good)) == 1


def test_who_would_hear_no_question_says_so() -> None:
    world = World()
    assert world.link.listens()
    for _ in range(MISSES):
        world.step(DeadlineExceeded("late"))
    assert not world.link.listens(), "until it is time for a probe"
    world.now += PROBE_SECONDS
    assert world.link.listens()
    world.ask()
    assert world.link.listens(), "an answer is waited for"
    world.now += DEADLINE
    world.collect()
    assert not world.link.listens()
    world.link.move_to("ipc://b")
    assert world.link.listens()
    world.link.move_to("")
    assert not world.link.listens()


def test_a_probe_that_is_not_answered_in_time_is_followed_by_another_one_later() -> None:
    world = World()
    for _ in range(MISSES):
        world.step(DeadlineExceeded("late"))
    for _ in range(3):
        world.now += PROBE_SECONDS
        asked = len(world.wire.sent)
        world.ask()
        world.now += DEADLINE
        assert world.collect() == []
        world.ask()
        assert len(world.wire.sent) == asked + 1
    assert world.link.gave_up


def test_without_a_proposer_nothing_happens() -> None:
    world = World()
    world.link.move_to("")
    wires = len(world.wires)
    world.ask()
    assert world.collect() == [] and len(world.wires) == wires and world.wires[0].closed


def test_a_proposer_somewhere_else_is_told_everything() -> None:
    world = World()
    world.step(good)
    world.link.move_to("ipc://b")
    assert world.wires[0].closed
    world.step(good)
    assert items(world.wire.sent[0]) == [(5, [1, 2, 3, 4, 5], True)]


def test_a_new_proposer_at_the_same_place_is_told_everything_over_the_same_socket() -> None:
    world = World()
    world.step(good)
    world.link.move_to("ipc://a")
    world.step(good)
    assert len(world.wires) == 1 and items(world.wire.sent[1])[0][2]


@pytest.mark.parametrize("error", [PeerLost("it died"), RemoteError("internal", "no"), OSError("no such file")])
def test_errors_cost_the_drafts_of_a_step(error: Exception) -> None:
    world = World()
    world.step(good)
    assert world.step(error) == []
    assert world.step(good) == [], "not asked again at once"
    world.now += RETRY_SECONDS
    world.wire.answers.clear()
    assert len(world.step(good)) == 1
    assert items(world.wire.sent[-1])[0][2], "whoever answers now may know nothing"


def test_a_socket_that_is_not_connected_yet_is_kept_and_tried_again() -> None:
    world = World()
    world.wire.send_error = PeerLost("no connection")
    world.ask()
    assert world.collect() == []
    world.wire.send_error = None
    world.now += RETRY_SECONDS
    assert len(world.step(good)) == 1
    assert len(world.wires) == 1


@pytest.mark.parametrize("answer", [Proposed(step=99), "nonsense", None])
def test_an_answer_to_something_else_is_dropped(answer: Any) -> None:
    world = World()
    world.ask()
    world.wire.answers.append(answer)
    assert world.collect() == [] and world.link.failed == 1


def test_ended_sequences_are_said_once_to_a_proposer_that_knew_them() -> None:
    world = World()
    world.step(good)
    world.link.forget([1, 55], [])
    world.ask(world.asking(2, [8]))
    assert world.wire.sent[1].forget == [1]
    world.link.collect()
    world.now += 1.0
    world.ask()
    assert world.wire.sent[2].forget == [1], "not confirmed, so said again"
    world.wire.answers.append(good)
    world.link.collect()
    world.ask()
    assert world.wire.sent[3].forget == []


def test_a_sequence_that_ends_while_it_is_asked_about_leaves_nothing() -> None:
    world = World()
    world.ask(world.asking(2, [8]))
    world.link.forget([2], [])
    world.wire.answers.append(good)
    world.link.collect()
    assert world.link._confirmed == {1: 4}
    world.ask()
    assert world.wire.sent[1].forget == [2]
    world.link.forget([1], [])
    world.wire.answers.append(good)
    world.link.collect()
    world.ask(world.asking(3, [8]))
    assert world.wire.sent[2].forget == [1], "what was said is done, what came since is still to be said"


def test_a_proposer_that_cannot_be_dialled_is_no_fault() -> None:
    def refuse(endpoint: str) -> Wire:
        raise OSError("bad endpoint")

    link = ProposerLink(refuse, target="t", epoch=1, deadline=DEADLINE, now=lambda: 0.0)
    link.move_to("nowhere")
    link.ask([World().asking(1, [1])])
    assert link.collect() is None and link.failed == 1


def test_at_rest_the_proposer_hears_of_the_last_sequences_at_once() -> None:
    world = World()
    world.step(good)
    world.link.forget([1], [])
    world.wire.answers.append(good)
    assert not world.link.rest()
    assert [(message.items, message.forget) for message in world.wire.sent[1:]] == [([], [1])]
    assert not world.link.rest()
    assert len(world.wire.sent) == 2, "said once"


def test_a_proposer_that_did_not_hear_at_rest_is_told_again_until_it_has() -> None:
    world = World()
    world.step(good)
    world.link.forget([1], [])
    for _ in range(20):
        # The answer doesn't come; after a few of them nobody waits for it any more.
        assert world.link.rest()
        world.now += DEADLINE
    assert world.link.gave_up
    world.now += PROBE_SECONDS
    world.wire.answers.append(good)
    until = world.now + 1.0
    while world.link.rest():
        world.now += DEADLINE
        assert world.now < until, "it has answered"
    assert world.wire.sent[-1].forget == [1] and not world.link.gave_up


def test_nobody_is_told_again_where_there_is_no_proposer() -> None:
    world = World()
    world.step(good)
    world.link.move_to("")
    world.link.forget([1], [])
    assert not world.link.rest()


# Asked ahead ------------------------------------------------------------------------------------------------


def ahead_of(world: World, tokens: list[int]) -> DraftAsk:
    return DraftAsk(text_of(1, world.text), 9, tokens)


def test_what_is_asked_ahead_is_looked_for_without_waiting_and_says_what_it_followed() -> None:
    world = World()
    world.link.ask_ahead([ahead_of(world, [5, 6])])
    [item] = world.wire.sent[0].items
    assert (item.committed, item.tokens, item.ahead, item.budget) == (4, [1, 2, 3, 4], [5, 6], 9)
    world.wire.answers.append(good)
    ready = world.link.look()
    assert ready is not None and ready.ahead and ready.followed == {1: [5, 6]} and world.wire.waited == [0.0]
    assert world.link.look() is None and world.link.collect() is None
    assert world.link._confirmed == {1: 4}, "what is ahead isn't part of the text"


def test_an_answer_is_waited_for_while_a_step_runs_elsewhere_and_stays_asked_for_if_it_does_not_come() -> None:
    world = World()
    assert world.link.wait_ahead(0.01) is None, "nothing was asked"
    world.link.ask_ahead([ahead_of(world, [5, 6])])
    assert world.link.wait_ahead(0.0001) is None and world.wire.looked == [], "not worth it"
    assert world.link.wait_ahead(0.01) is None and world.wire.looked == [0.01]
    assert world.link.missed == 0 and world.wire.given_up == []
    world.wire.answers.append(good)
    ready = world.link.wait_ahead(0.01)
    assert ready is not None and ready.ahead and ready.followed == {1: [5, 6]} and ready.seconds == 0.0
    assert world.link.look() is None


def test_an_answer_that_was_not_there_yet_is_given_more_time_and_the_question_stays_open() -> None:
    world = World()
    world.link.ask_ahead([ahead_of(world, [5])])
    world.now += 0.004
    ready = world.link.look()
    assert ready is not None and not ready.answered and ready.drafts == []
    world.link.ask_ahead([ahead_of(world, [5])])
    world.now += 0.004
    assert world.link.look() is None and len(world.wire.waited) == 1, "too early to look"
    world.link.ask_ahead([ahead_of(world, [5])])
    assert len(world.wire.sent) == 2, "one question at a time"
    world.now += 0.004
    world.wire.answers.append(good)
    assert world.link.look() is not None and not world.link.gave_up


def test_a_question_that_the_next_step_wants_anyway_is_waited_for_and_another_makes_way() -> None:
    world = World()
    world.link.ask_ahead([ahead_of(world, [5])])
    world.text = [*world.text, 5, 6]
    world.link.ask([DraftAsk(text_of(1, world.text), 5)], 0.002)
    assert len(world.wire.sent) == 1
    world.wire.answers.append(good)
    ready = world.link.collect()
    assert ready is not None and ready.ahead and world.wire.waited == [pytest.approx(0.002)]
    world.link.ask_ahead([ahead_of(world, [7])])
    world.text = [*world.text, 8]
    world.link.ask([DraftAsk(text_of(1, world.text), 5)], 0.002)
    assert world.wire.given_up == [2] and len(world.wire.sent) == 3
    world.wire.answers.append(good)
    ready = world.link.collect()
    assert ready is not None and not ready.ahead and ready.followed == {}


def test_an_answer_that_is_not_there_within_a_moment_stays_asked_for() -> None:
    world = World()
    world.step(good)
    world.ask()

    def pass_time(ticket: int, timeout: float) -> bool:
        world.now += timeout
        return bool(world.wire.answers)

    world.wire.arrived = pass_time  # type: ignore[method-assign]
    assert world.link.collect(0.002) is None and not world.wire.given_up and len(world.wire.waited) == 1
    world.now += 0.003
    world.wire.answers.append(good)
    ready = world.link.collect()
    assert ready is not None and len(ready.drafts) == 1 and world.link.missed == 0
    # The thread waited for it then, and did other things afterwards.
    assert ready.seconds == pytest.approx(0.002)
    assert world.wire.waited[-1] == pytest.approx(DEADLINE - 0.005)
    # Within its last moments it is waited for to its end.
    world.ask()
    world.now += DEADLINE - 0.001
    assert world.link.collect(0.002) is not None and world.link.missed == 1


def test_what_is_wrong_with_an_answer_is_known_as_soon_as_it_is() -> None:
    world = World()
    world.ask()

    def gone(ticket: int, timeout: float) -> bool:
        raise PeerLost("gone")

    world.wire.arrived = gone  # type: ignore[method-assign]
    world.wire.answers.append(PeerLost("gone"))
    ready = world.link.collect(0.002)
    assert ready is not None and not ready.answered and world.link.failed == 1


def hurry(world: World, *after: int) -> None:
    """The text takes these in a moment."""
    world.link.hurry([DraftAsk(text_of(1, world.text), 5, [], list(after))])


def test_a_question_in_a_hurry_is_about_the_text_as_it_will_be_and_is_the_one_that_is_asked_then() -> None:
    world = World()
    world.step(good)
    hurry(world, 6, 7)
    assert items(world.wire.sent[1]) == [(7, [5, 6, 7], False)]
    world.text = [*world.text, 6, 7]
    world.link.ask([DraftAsk(text_of(1, world.text), 5)], 0.002)
    assert len(world.wire.sent) == 2 and world.link.asked == 2 and world.link.asked_ahead == 0
    world.wire.answers.append(good)
    ready = world.link.collect()
    assert ready is not None and not ready.ahead and [draft.committed for draft in ready.drafts] == [7]
    assert world.wire.waited[-1] == pytest.approx(0.002) and world.link._confirmed == {1: 7}
    assert world.link.expects(), "a step waited"


def test_a_text_nobody_knows_is_sent_whole_in_a_hurry_too() -> None:
    world = World()
    hurry(world, 5)
    assert items(world.wire.sent[0]) == [(5, [1, 2, 3, 4, 5], True)]


@pytest.mark.parametrize("text", [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 8]])
def test_a_question_in_a_hurry_makes_way_if_it_came_otherwise(text: list[int]) -> None:
    """The text is shorter than was asked about, or another one is asked about, too."""
    world = World()
    world.step(good)
    hurry(world, 6, 7)
    world.text = text
    others = [world.asking(2, [9])] if len(text) > 6 else []
    world.link.ask([DraftAsk(text_of(1, world.text), 5), *others], 0.002)
    assert world.wire.given_up == [2] and len(world.wire.sent) == 3


def test_a_question_in_a_hurry_that_nobody_asks_then_is_looked_for_like_one_asked_ahead() -> None:
    world = World()
    hurry(world, 5)
    hurry(world, 5)
    world.link.ask_ahead([ahead_of(world, [5])])
    assert len(world.wire.sent) == 1, "one question at a time"
    world.wire.answers.append(good)
    ready = world.link.look()
    assert ready is not None and ready.ahead and [draft.committed for draft in ready.drafts] == [5]
    world.link.ask_ahead([ahead_of(world, [5])])
    assert len(world.wire.sent) == 2


def test_nothing_is_asked_in_a_hurry_where_nobody_answers() -> None:
    world = World()
    while not world.link.gave_up:
        world.step(DeadlineExceeded("late"))
        world.now += DEADLINE
    sent = len(world.wire.sent)
    world.now += 2 * PROBE_SECONDS
    hurry(world, 5)
    assert len(world.wire.sent) == sent


def test_a_proposer_that_never_answers_what_is_asked_ahead_is_given_up_after_so_much_silence() -> None:
    world = World()
    while not world.link.gave_up:
        world.link.ask_ahead([ahead_of(world, [5])])
        world.now += 0.001
        world.link.look()
        assert world.now < 100.0 + 10 * DEADLINE
    assert world.now >= 100.0 + MISSES * DEADLINE - 0.001
    assert all(waited == 0.0 for waited in world.wire.waited)
    sent, began = len(world.wire.sent), world.now
    while world.now < began + 10 * PROBE_SECONDS:
        world.link.ask_ahead([ahead_of(world, [5])])
        world.now += 0.01
        world.link.look()
    assert len(world.wire.sent) - sent <= 11, "probes"
    world.wire.answers = [good] * 3
    world.now += PROBE_SECONDS
    world.link.ask_ahead([ahead_of(world, [5])])
    world.now += DEADLINE
    assert world.link.look() is not None and not world.link.gave_up


def test_the_time_a_question_takes_the_thread_is_told() -> None:
    world = World()

    def slow(message: Propose) -> Proposed:
        world.now += 0.003
        return good(message)

    world.ask()
    world.now += 0.001
    world.wire.answers.append(slow)
    ready = world.link.collect()
    assert ready is not None and ready.seconds == pytest.approx(0.003)


# Whose text it is, and its end ------------------------------------------------------------------------------


def test_whose_text_it_is_is_said_once() -> None:
    world = World()
    speculation = Speculation(corpora=["c"], learn=False)
    fields: dict[str, Any] = {"namespace": "n", "prediction": [7, 8], "speculation": speculation}
    for answer in (good, good):
        world.link.ask([DraftAsk(text_of(1, world.text, **fields), 5)])
        world.wire.answers.append(answer)
        world.link.collect()
        world.text = [*world.text, 9]
    first, second = (message.items[0] for message in world.wire.sent)
    assert (first.namespace, first.prediction, first.corpora, first.learn) == ("n", [7, 8], ["c"], False)
    assert (second.namespace, second.prediction, second.corpora) == ("", [], None)
    assert world.wire.sent[0].vocabulary == "v"


def test_an_ended_text_goes_to_the_proposer_to_learn_from_until_it_has_heard() -> None:
    world = World()
    world.step(good)
    known, unheard = text_of(1, [*world.text, 6, 7], namespace="n"), text_of(2, [1, 2, 3, 8], namespace="n")
    world.link.forget([1, 2], [known, unheard])
    for _ in range(2):
        world.link.rest()
        world.now += DEADLINE
        ended = world.wire.sent[-1].ended
        assert [(end.sequence_id, end.committed, end.tokens, end.first) for end in ended] == [
            (1, 7, [5, 6, 7], False),
            (2, 4, [1, 2, 3, 8], True),
        ]
        assert {(end.prompt_tokens, end.namespace) for end in ended} == {(3, "n")}
        assert world.wire.sent[-1].forget == []
        world.wire.answers.append(good)
    world.link.rest()
    world.link.ask([world.asking(3, [1])])
    assert world.wire.sent[-1].ended == []


def test_a_new_proposer_hears_ended_texts_from_their_beginning() -> None:
    world = World()
    world.step(good)
    world.link.forget([1], [text_of(1, world.text, namespace="n")])
    world.link.move_to("ipc://b")
    world.ask(world.asking(2, [8]))
    [end] = world.wire.sent[0].ended
    assert (end.tokens, end.first) == ([1, 2, 3, 4, 5], True)


def test_what_waits_to_be_learned_is_bounded_and_the_rest_is_forgotten() -> None:
    ended, gone = EndedTexts(), []
    for number in range(MOST_TEXTS + 9):
        gone += ended.add(text_of(number, [1, 2, 3, 4, 5], namespace="n"), 3, number % 2 == 0)
    assert len(ended) == MOST_TEXTS and gone == [0, 2, 4, 6, 8]
    ended = EndedTexts()
    for number in range(40):
        ended.add(text_of(number, [1] * (MOST_TOKENS // 8), namespace="n"), 0, False)
    assert len(ended) == 8 and sum(len(end.tokens) for end in ended.say()) <= TOKENS_A_QUESTION
    ended.said()
    assert len(ended) == 7


def test_a_text_nobody_can_be_told_of_is_not_kept() -> None:
    world = World()
    world.link.move_to("")
    world.link.forget([1], [text_of(1, world.text, namespace="n")])
    assert len(world.link._ended) == 0


# Rehearsals -----------------------------------------------------------------------------------------------


def rehearsed(world: World) -> list[Propose]:
    return [message for message in world.wire.sent if message.rehearsed]


def test_where_steps_wait_for_drafts_the_next_may_wait_too() -> None:
    world = World()
    assert not world.link.expects()
    world.step(good)
    assert world.link.expects()
    # One step in so many is worth it; after a while without any it isn't.
    assert sum(world.link.expects() for _ in range(20 * WAITS)) < 4 * WAITS
    assert not world.link.expects()
    world.link.ask_ahead([world.asking(1, world.text)])
    assert not world.link.expects(), "nobody waited for that"


def test_what_was_answered_last_is_asked_again_and_changes_nothing() -> None:
    world = World()
    world.step(good)
    before = world.link.asked, world.link.answered, world.link.round_trip, world.link.asked_ahead
    world.link.rehearse()
    world.wire.answers.append(good)
    world.link.rehearsed()
    [again] = rehearsed(world)
    assert [(item.sequence_id, item.committed, item.tokens) for item in again.items[1:]] == [(1, 4, [])]
    assert (world.link.asked, world.link.answered, world.link.round_trip, world.link.asked_ahead) == before
    world.step(good)
    assert items(world.wire.sent[-1]) == [(5, [5], False)], "of the text nothing more was confirmed"


def test_one_is_rehearsed_at_a_time_and_given_up_when_it_is_too_late() -> None:
    world = World()
    world.step(good)
    world.link.rehearse()
    world.link.rehearse()
    assert len(rehearsed(world)) == 1 and world.wire.given_up == []
    world.now += 2 * DEADLINE
    world.link.rehearse()
    assert len(rehearsed(world)) == 2 and world.wire.given_up == [2]


def test_nothing_is_rehearsed_while_a_question_is_open_or_before_one_was_answered() -> None:
    world = World()
    world.link.rehearse()
    world.step(DeadlineExceeded("late"))
    world.link.rehearse()
    world.ask()
    world.link.rehearse()
    assert rehearsed(world) == []


def test_of_a_large_batch_a_few_texts_are_asked_about_again() -> None:
    world = World()
    world.ask(*(world.asking(number, [number]) for number in range(2, 40)))
    world.wire.answers.append(good)
    world.collect()
    world.link.rehearse()
    assert len(rehearsed(world)[0].items) == 1 + FEW


@pytest.mark.parametrize(
    "answer",
    [PeerLost("gone"), DeadlineExceeded("late"), "no answer", Proposed(step=1, drafts=DraftColumns(lengths=[3]))],
)
def test_whatever_comes_of_it_the_next_question_is_asked_as_ever(answer: Any) -> None:
    world = World()
    world.step(good)
    world.link.rehearse()
    world.wire.answers.append(answer)
    world.link.rehearsed()
    assert len(world.step(good)) == 1
    world.wire.send_error = PeerLost("gone")
    world.link.rehearse()
    world.wire.send_error = None
    assert len(world.step(good)) == 1


def test_the_text_that_is_rehearsed_ends_when_nothing_runs() -> None:
    world = World()
    world.step(good)
    world.link.rehearse()
    world.wire.answers.append(good)
    world.link.rehearsed()
    world.link.forget([1], [])
    world.wire.answers.append(good)
    assert not world.link.rest()
    assert world.wire.sent[-1].forget == [1, OWN]
    assert not world.link.rest() and world.wire.sent[-1].forget == [1, OWN]
