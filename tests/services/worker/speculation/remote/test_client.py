"""What a worker asks its proposer, and what it makes of silence, lies and death."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from driving import request
from msgspec.structs import replace

from mesh.errors import DeadlineExceeded, NotReached, PeerLost, RemoteError
from services.api.drafter import Draft
from services.api.drafts import PlacedDraft, pack
from services.api.messages import Propose, Proposed, Speculation
from services.worker.speculation.remote.circuit_breaker import MISSES, PROBE_SECONDS, RETRY_SECONDS
from services.worker.speculation.remote.client import Ask, ProposerClient
from services.worker.speculation.remote.ended_texts import MOST_TEXTS, MOST_TOKENS, TOKENS_A_QUESTION, EndedTexts

DEADLINE = 0.02


class Wire:
    """A link that writes down what is sent, and answers what the test says."""

    def __init__(self) -> None:
        self.sent: list[Propose] = []
        self.waited: list[float] = []
        self.answers: list[Any] = []
        self.given_up: list[int] = []

    def send(self, message: Propose) -> int:
        self.sent.append(message)
        return len(self.sent)

    def arrived(self, ticket: int) -> bool:
        return bool(self.answers)

    def receive(self, ticket: int, timeout: float) -> Any:
        self.waited.append(timeout)
        answer = self.answers.pop(0) if self.answers else DeadlineExceeded("late")
        if isinstance(answer, Exception):
            raise answer
        return answer(self.sent[ticket - 1]) if callable(answer) else answer

    def give_up(self, ticket: int) -> None:
        self.given_up.append(ticket)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.wires: list[Wire] = []
        self.link = ProposerClient(
            self._connect, worker="w", epoch=7, deadline=DEADLINE, now=lambda: self.now, vocabulary="v"
        )
        self.text = [1, 2, 3, 4]
        self.link.move_to("ipc://a")

    def _connect(self, endpoint: str) -> Wire:
        self.wires.append(Wire())
        return self.wires[-1]

    @property
    def wire(self) -> Wire:
        return self.wires[-1]

    def ask(self, *more: Ask) -> None:
        self.link.ask([self.asking(1, self.text), *more])

    def asking(self, sequence_id: int, text: list[int]) -> Ask:
        return Ask(text_of(sequence_id, text), 5)

    def collect(self) -> list[tuple[int, int, Draft]]:
        answer = self.link.collect()
        return [] if answer is None else answer.drafts

    def step(self, answer: Any) -> list[tuple[int, int, Draft]]:
        """Ask, get this answer, and commit a token."""
        self.ask()
        self.wire.answers.append(answer)
        drafts = self.collect()
        self.text = [*self.text, len(self.text) + 1]
        return drafts


def text_of(sequence_id: int, text: list[int], **fields: Any) -> Any:
    generate = replace(request(text[:3]), **fields)
    told = {"prompt_tokens": 3, "method": "ngram", "generate": generate}
    return SimpleNamespace(sequence_id=sequence_id, token_ids=text, **told)


def forget(world: World, *sequence_ids: int) -> None:
    for sequence_id in sequence_ids:
        world.link.forget(text_of(sequence_id, [1, 2, 3]), False)


def good(message: Propose) -> Proposed:
    drafts = [
        PlacedDraft(item.sequence_id, item.committed + len(item.ahead), Draft([9], "s")) for item in message.items
    ]
    return Proposed(step=message.step, drafts=pack(drafts))


def items(message: Propose) -> list[tuple[int, list[int], bool]]:
    return [(item.committed, item.tokens, item.first) for item in message.items]


def test_the_first_request_has_the_text_and_the_next_only_new_tokens() -> None:
    world = World()
    [draft] = world.step(good)
    assert draft == (1, 4, Draft([9], "s"))
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
    assert (world.wire.sent[0].worker, world.wire.sent[0].epoch) == ("w", 7)


def test_one_request_carries_the_whole_batch() -> None:
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


def test_after_some_misses_no_step_waits_until_a_probe_is_answered() -> None:
    world = World()
    for _ in range(MISSES):
        world.step(DeadlineExceeded("late"))
    assert world.link.breaker.open
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
    assert not world.link.breaker.open
    assert len(world.step(good)) == 1


def test_listens_is_false_while_no_request_can_be_sent() -> None:
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
    assert world.link.breaker.open


def test_a_probe_that_no_step_waits_for_is_given_up_when_its_time_is_up() -> None:
    world = World()
    for _ in range(MISSES):
        world.step(DeadlineExceeded("late"))
    world.now += PROBE_SECONDS
    world.ask()
    assert world.link.look() is None and world.link._open is not None
    world.now += DEADLINE
    assert world.link.look() is not None and world.link._open is None


def test_without_a_proposer_nothing_happens() -> None:
    world = World()
    world.link.move_to("")
    wires = len(world.wires)
    world.ask()
    assert world.collect() == [] and len(world.wires) == wires


def test_a_proposer_at_another_endpoint_gets_all_texts() -> None:
    world = World()
    world.step(good)
    world.ask()
    world.link.move_to("ipc://b")
    assert world.wires[0].given_up == [2], "nobody waits for its answer any more"
    world.step(good)
    assert items(world.wire.sent[0]) == [(5, [1, 2, 3, 4, 5], True)]


def test_a_new_proposer_at_the_same_endpoint_gets_all_texts_over_the_same_link() -> None:
    world = World()
    world.step(good)
    world.link.move_to("ipc://a")
    world.step(good)
    assert len(world.wires) == 1 and items(world.wire.sent[1])[0][2]


@pytest.mark.parametrize(
    "error",
    [PeerLost("it died"), NotReached("no connection"), RemoteError("internal", "no"), OSError("no such file")],
)
def test_errors_cost_the_drafts_of_a_step(error: Exception) -> None:
    world = World()
    world.step(good)
    assert world.step(error) == []
    assert world.step(good) == [], "not asked again at once"
    world.now += RETRY_SECONDS
    world.wire.answers.clear()
    assert len(world.step(good)) == 1
    assert items(world.wire.sent[-1])[0][2], "whoever answers now may know nothing"


@pytest.mark.parametrize("answer", [Proposed(step=99), "nonsense", None])
def test_an_answer_to_something_else_is_dropped(answer: Any) -> None:
    world = World()
    world.ask()
    world.wire.answers.append(answer)
    assert world.collect() == [] and world.link.failed == 1


def test_ended_sequences_are_sent_once_to_a_proposer_that_knew_them() -> None:
    world = World()
    world.step(good)
    forget(world, 1, 55)
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


def test_a_sequence_that_ends_during_a_request_leaves_nothing() -> None:
    world = World()
    world.ask(world.asking(2, [8]))
    forget(world, 2)
    world.wire.answers.append(good)
    world.link.collect()
    assert world.link._confirmed == {1: 4}
    world.ask()
    assert world.wire.sent[1].forget == [2]
    forget(world, 1)
    world.wire.answers.append(good)
    world.link.collect()
    world.ask(world.asking(3, [8]))
    assert world.wire.sent[2].forget == [1], "what was said is done, what came since is still to be said"


def test_an_idle_worker_reports_its_last_ended_sequences_at_once() -> None:
    world = World()
    world.step(good)
    forget(world, 1)
    world.wire.answers.append(good)
    assert not world.link.tell()
    assert [(message.items, message.forget) for message in world.wire.sent[1:]] == [([], [1])]
    assert not world.link.tell()
    assert len(world.wire.sent) == 2, "said once"


def test_ended_texts_are_sent_again_while_idle_until_confirmed() -> None:
    world = World()
    world.step(good)
    forget(world, 1)
    for _ in range(20):
        # The answer doesn't come; after a few of them nobody waits for it any more.
        assert world.link.tell()
        world.now += DEADLINE
    assert world.link.breaker.open
    world.now += PROBE_SECONDS
    world.wire.answers.append(good)
    until = world.now + 1.0
    while world.link.tell():
        world.now += DEADLINE
        assert world.now < until, "it has answered"
    assert world.wire.sent[-1].forget == [1] and not world.link.breaker.open


def test_without_a_proposer_nothing_is_sent_again() -> None:
    world = World()
    world.step(good)
    world.link.move_to("")
    forget(world, 1)
    assert not world.link.tell()


# Asked ahead ------------------------------------------------------------------------------------------------


def ahead_of(world: World, tokens: list[int]) -> Ask:
    return Ask(text_of(1, world.text), 9, tokens)


def test_an_answer_to_a_request_sent_ahead_is_read_without_waiting() -> None:
    world = World()
    world.link.ask_ahead([ahead_of(world, [5, 6])])
    assert world.link.look() is None, "it isn't there yet, and stays asked for"
    [item] = world.wire.sent[0].items
    assert (item.committed, item.tokens, item.ahead, item.budget) == (4, [1, 2, 3, 4], [5, 6], 9)
    world.wire.answers.append(good)
    ready = world.link.look()
    assert ready is not None and ready.drafts == [(1, 6, Draft([9], "s"))]
    assert ready.ahead and ready.asked == {1: (4, [5, 6])} and world.wire.waited == [0.0]
    assert world.link.look() is None and world.link.collect() is None
    assert world.link._confirmed == {1: 4}, "what is ahead isn't part of the text"


def test_a_request_sent_ahead_is_waited_for_if_the_next_step_needs_it_and_else_given_up() -> None:
    world = World()
    world.link.ask_ahead([ahead_of(world, [5])])
    world.text = [*world.text, 5, 6]
    world.link.ask([Ask(text_of(1, world.text), 5)], 0.002)
    assert len(world.wire.sent) == 1
    world.wire.answers.append(good)
    ready = world.link.collect()
    assert ready is not None and ready.ahead and world.wire.waited == [pytest.approx(0.002)]
    world.link.ask_ahead([ahead_of(world, [7])])
    world.text = [*world.text, 8]
    world.link.ask([Ask(text_of(1, world.text), 5)], 0.002)
    assert world.wire.given_up == [2] and len(world.wire.sent) == 3
    world.wire.answers.append(good)
    ready = world.link.collect()
    assert ready is not None and not ready.ahead and ready.asked == {1: (7, [])}


def test_unanswered_requests_sent_ahead_open_the_breaker_after_enough_silence() -> None:
    world = World()
    while not world.link.breaker.open:
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
    assert world.link.look() is not None and not world.link.breaker.open


def test_the_engine_threads_time_for_a_request_is_returned() -> None:
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


def test_the_namespace_is_sent_once() -> None:
    world = World()
    speculation = Speculation(corpora=["c"], learn=False)
    fields: dict[str, Any] = {"namespace": "n", "prediction": [7, 8], "speculation": speculation}
    for answer in (good, good):
        world.link.ask([Ask(text_of(1, world.text, **fields), 5)])
        world.wire.answers.append(answer)
        world.link.collect()
        world.text = [*world.text, 9]
    first, second = (message.items[0] for message in world.wire.sent)
    assert (first.namespace, first.prediction, first.corpora, first.learn) == ("n", [7, 8], ["c"], False)
    assert (second.namespace, second.prediction, second.corpora) == ("", [], None)
    assert world.wire.sent[0].vocabulary == "v"


def test_an_ended_text_is_sent_to_the_proposer_until_confirmed() -> None:
    world = World()
    world.step(good)
    known, unheard = text_of(1, [*world.text, 6, 7], namespace="n"), text_of(2, [1, 2, 3, 8], namespace="n")
    world.link.forget(known, True)
    world.link.forget(unheard, True)
    for _ in range(2):
        world.link.tell()
        world.now += DEADLINE
        ended = world.wire.sent[-1].ended
        assert [(end.sequence_id, end.committed, end.tokens, end.first) for end in ended] == [
            (1, 7, [5, 6, 7], False),
            (2, 4, [1, 2, 3, 8], True),
        ]
        assert {(end.prompt_tokens, end.namespace) for end in ended} == {(3, "n")}
        assert world.wire.sent[-1].forget == []
        world.wire.answers.append(good)
    world.link.tell()
    world.link.ask([world.asking(3, [1])])
    assert world.wire.sent[-1].ended == []


def test_a_new_proposer_gets_ended_texts_from_their_beginning() -> None:
    world = World()
    world.step(good)
    world.link.forget(text_of(1, world.text, namespace="n"), True)
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


def test_an_ended_text_is_not_kept_without_a_proposer() -> None:
    world = World()
    world.link.move_to("")
    world.link.forget(text_of(1, world.text, namespace="n"), True)
    assert len(world.link._ended) == 0
