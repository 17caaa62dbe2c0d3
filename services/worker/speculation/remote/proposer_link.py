"""The target's line to the proposer process: one Propose for a whole step, drafts back or not.

Rule 1: nothing that happens here can fail a step. A slow, dead, restarted or hostile proposer costs drafts.
Rule 2: only what the proposer hasn't confirmed is sent; when it doesn't know a text (it restarted), the text
        is sent whole.
Rule 3: one question is open at a time. One that was asked ahead is looked for when its answer may be there, and never
        waited for, unless the next step wants just that; otherwise it makes way for what the step wants.
Rule 4: a proposer that was silent for MISSES deadlines isn't waited for any more. Now and then it is sent a
        question all the same, and the answer is looked for once its time is up: one that is there ends this.

Blocking, for the step thread. What the drafts hold is judged by the scheduler.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from mesh.errors import DeadlineExceeded, MeshError
from services.api.drafts import unpacked
from services.api.messages import Propose, Proposed, ProposeItem
from services.worker.scheduling.events import DraftAsk, DraftsReady
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.practice import Practice
from services.worker.speculation.remote.ended_texts import EndedTexts

log = logging.getLogger("specmesh.worker")

MISSES = 3
PROBE_SECONDS = 0.5
# A socket connects by itself; until it has, it is tried this often.
RETRY_SECONDS = 0.02
# A socket is waited at for whole milliseconds: for less it isn't worth it.
LEAST_WAIT = 0.0005
# An answer that wasn't there yet is given so much longer the next time; one that was, a little less.
LONGER = 1.5
SHORTER = 0.8
# Of so many steps, about, it is known how many waited for a draft; with less than that part of them, the proposer
# needn't be on its toes.
WAITS, SELDOM = 32, 1 / 32
# Of a question about many texts so many are asked about again: what they touch beside their own memory is the same.
FEW = 4


class Link(Protocol):
    """What mesh/blocking.py gives."""

    def send(self, message: Any, *, timeout: float) -> Any: ...
    def arrived(self, ticket: Any, timeout: float) -> bool: ...
    def receive(self, ticket: Any, timeout: float) -> Any: ...
    def give_up(self, ticket: Any) -> None: ...
    def close(self) -> None: ...


class _Asked(NamedTuple):
    """Of one sequence of the open question: the length of its text, and what was to be followed behind it."""

    length: int
    ahead: list[int]


class ProposerLink:
    def __init__(
        self,
        connect: Callable[[str], Link],
        *,
        target: str,
        epoch: int,
        deadline: float,
        now: Callable[[], float],
        vocabulary: str = "",
    ) -> None:
        """`connect` makes a link to an endpoint; `deadline` is how long a step waits, in seconds."""
        self._connect = connect
        self._target = target
        self._epoch = epoch
        self._deadline = deadline
        self._now = now
        self._vocabulary = vocabulary
        # Whether its drafts are only looked at.
        self.shadow = False
        self._endpoint = ""
        self._link: Link | None = None
        self._step = 0
        # The open question: when it was sent, until when a step waits for it, and how long the thread was busy with it.
        self._ticket: Any = None
        self._ahead = False
        self._hurried = False
        self._sent_at = 0.0
        self._answer_by = 0.0
        self._busy = 0.0
        self._asked: dict[int, _Asked] = {}
        # For rehearsals: the last question, and how often steps waited for one, of late; the one that is rehearsed.
        self._question: Propose | None = None
        self._waited = False
        self._waits = 0.0
        self._practice = Practice()
        self._rehearsed: Any = None
        self._rehearsed_by = 0.0
        # Length of each text up to which the proposer has confirmed it.
        self._confirmed: dict[int, int] = {}
        self._forget: list[int] = []
        self._ended = EndedTexts()
        # An answer asked for ahead is looked for after so many seconds, not before.
        self._patience = 0.0
        # Seconds in which questions were open, and none was answered.
        self._silence = 0.0
        self._missed_in_a_row = 0
        self._not_before = 0.0
        # Of the last question whose answer was waited for; 0: there was none yet.
        self.round_trip = 0.0
        self.asked = 0
        self.asked_ahead = 0
        self.answered = 0
        self.missed = 0
        self.failed = 0

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def gave_up(self) -> bool:
        """Whether nobody waits for this proposer any more."""
        return self._missed_in_a_row >= MISSES

    def listens(self) -> bool:
        """Whether a question would be sent now, or one is open. If not, nobody need think of any."""
        return self._ticket is not None or (self._endpoint != "" and self._now() >= self._not_before)

    def move_to(self, endpoint: str) -> None:
        """A proposer that knows nothing yet is at `endpoint`; "": there is none."""
        if endpoint != self._endpoint:
            self._hang_up()
            self._endpoint = endpoint
        self._confirmed.clear()
        self._asked.clear()
        self._practice.leave()
        self._forget = []
        self._ended.all_unknown()
        self._heard()
        # Sockets take a while to connect: better now than in the first step that wants drafts.
        self._dial()

    def _dial(self) -> None:
        if self._link is None and self._endpoint:
            try:
                self._link = self._connect(self._endpoint)
            except (MeshError, OSError) as error:
                log.warning("the proposer at %s can't be dialled: %s", self._endpoint, error)

    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None:
        """Said to the proposer with the next question: the ends of those it may learn from, and of the others that it
        has heard of."""
        ends = {sequence.id: sequence for sequence in learned} if self._endpoint else {}
        for sequence_id in sequence_ids:
            confirmed = self._confirmed.pop(sequence_id, 0)
            # It may be in the question that is on its way.
            heard = self._asked.pop(sequence_id, None) is not None or confirmed > 0
            if sequence_id in ends:
                self._forget += self._ended.add(ends[sequence_id], confirmed, heard)
            elif heard:
                self._forget.append(sequence_id)

    # Before a step ---------------------------------------------------------------------------------------

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        """Send what the step after the next will want. Nobody waits for it."""
        if self._ticket is None:
            self._send(asks, ahead=True, wait=self._deadline)
            self.asked_ahead += self._ticket is not None

    def look(self) -> DraftsReady | None:
        """The answer to what was asked ahead, if it is there. Called after a step."""
        if self._ticket is None or not self._ahead:
            return None
        now = self._now()
        if now < (self._answer_by if self.gave_up else self._sent_at + self._patience):
            return None
        return self._receive(now, 0.0)

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        """The same while the step runs elsewhere, waited for so long. If it isn't there then, it stays asked for."""
        if self._ticket is None or not self._ahead or self.gave_up:
            return None
        now = self._now()
        wait = min(seconds, self._answer_by - now)
        if wait < LEAST_WAIT or not self._arrives(wait):
            return None
        # The thread had nothing better to do.
        self._busy = 0.0
        return self._receive(self._now(), 0.0)

    def hurry(self, asks: list[DraftAsk]) -> None:
        """Send what this step will ask in a moment (`ask`). Nobody waits for it, unless it does."""
        if self._ticket is None and not self.gave_up:
            self._send(asks, ahead=True, wait=self._deadline)
            self._hurried = self._ticket is not None

    # Shortly before the end of a step ---------------------------------------------------------------------

    def expects(self) -> bool:
        """Whether the next step may well wait for an answer. Asked once a step."""
        self._waits += (self._waited - self._waits) / WAITS
        self._waited = False
        return self._waits >= SELDOM and self._link is not None and not self.gave_up

    def rehearse(self) -> None:
        """The last question is asked once more. Nothing comes of the answer (practice.py)."""
        if self._ticket is not None or self._link is None or self._question is None:
            return
        self.rehearsed()
        if self._rehearsed is not None:
            # One at a time.
            if self._now() < self._rehearsed_by:
                return
            self._link.give_up(self._rehearsed)
            self._rehearsed = None
        question = self._question
        known = [item for item in question.items if self._confirmed.get(item.sequence_id) == item.committed][:FEW]
        if known:
            with contextlib.suppress(MeshError, OSError):
                self._rehearsed_by = self._now() + self._deadline
                self._rehearsed = self._link.send(self._practice.question(question, known), timeout=self._deadline)

    def rehearsed(self) -> bool:
        """Its answer is read, if it is there. Whether none is left to be read."""
        if self._rehearsed is None or self._link is None:
            return True
        # What is wrong with it the next question will find out.
        with contextlib.suppress(MeshError, OSError, ValueError):
            if not self._link.arrived(self._rehearsed, 0.0):
                return False
            reply = self._link.receive(self._rehearsed, 0.0)
            if isinstance(reply, Proposed):
                self._practice.forgotten(reply.unknown)
                unpacked(reply.drafts)
        self._rehearsed = None
        return True

    # Between steps ---------------------------------------------------------------------------------------

    def ask(self, asks: list[DraftAsk], wait: float = 0.0) -> None:
        """Send the question of this step, and don't wait. `wait`: how long `collect` may, if not the whole deadline."""
        if self._ticket is not None:
            if not self._ahead or self.gave_up:
                return
            if not self._serves(asks):
                self._give_way()
        patience = min(wait, self._deadline) if wait > 0 else self._deadline
        if self._ticket is None:
            self._send(asks, ahead=False, wait=patience)
        else:
            self._answer_by = self._now() + patience
            if self._hurried:
                # It was this one all the time.
                self._ahead, self._waited = False, True

    def _serves(self, asks: list[DraftAsk]) -> bool:
        """Whether the open question is about the texts as they have become."""
        for ask in asks:
            asked, text = self._asked.get(ask.sequence.id), ask.sequence.token_ids
            if asked is None or len(text) < asked.length:
                return False
            if text[asked.length : asked.length + len(asked.ahead)] != asked.ahead:
                return False
        return True

    def _give_way(self) -> None:
        assert self._link is not None
        self._count_silence(self._now() - self._sent_at)
        self._link.give_up(self._ticket)
        self._ticket = None

    def collect(self, within: float | None = None) -> DraftsReady | None:
        """The drafts of the last question, waited for until its time is up; None if they aren't there `within` so many
        seconds, and it isn't."""
        if self._ticket is None:
            return None
        now = self._now()
        left = self._answer_by - now
        if self.gave_up:
            if left > 0:
                return None
            left = 0.0
        if within is not None and within < left and not self._arrives(within):
            self._busy += self._now() - now
            return None
        return self._receive(now, max(0.0, left))

    def _arrives(self, wait: float) -> bool:
        assert self._link is not None
        try:
            return self._link.arrived(self._ticket, wait)
        except (MeshError, OSError):
            # What is wrong with it is said when it is received.
            return True

    def rest(self) -> bool:
        """No sequence is left. The proposer is told of the last ones now, not with a question that may be long in
        coming. Whether it hasn't heard yet and is to be told again, a little later; else the next question says it."""
        self.collect()
        self._forget += self._practice.leave()
        if self._forget or self._ended:
            self.ask([])
            self.collect()
        return bool(self._endpoint) and bool(self._forget or self._ended)

    # The question ----------------------------------------------------------------------------------------

    def _send(self, asks: list[DraftAsk], *, ahead: bool, wait: float) -> None:
        if not self._endpoint:
            return
        now = self._now()
        if now < self._not_before:
            return
        if self.gave_up:
            self._not_before = now + PROBE_SECONDS
        self._step += 1
        if self._link is None:
            self._dial()
        if self._link is None:
            self.failed += 1
            self._not_before = now + PROBE_SECONDS
            return
        try:
            question = self._question_about(asks)
            self._ticket = self._link.send(question, timeout=self._deadline)
        except (MeshError, OSError):
            self.failed += 1
            self._not_before = now + RETRY_SECONDS
            return
        self._asked = {ask.sequence.id: _Asked(ask.length, ask.ahead) for ask in asks}
        self._question = question
        self._ahead, self._hurried = ahead, False
        self._waited |= not ahead
        self._sent_at = now
        self._answer_by = now + (self._deadline if self.gave_up else wait)
        self._busy = self._now() - now
        self.asked += 1

    def _question_about(self, asks: list[DraftAsk]) -> Propose:
        return Propose(
            step=self._step,
            epoch=self._epoch,
            target=self._target,
            items=[self._item(ask) for ask in asks],
            forget=list(self._forget),
            ended=self._ended.say(),
            vocabulary=self._vocabulary,
            shadow=self.shadow,
        )

    def _item(self, ask: DraftAsk) -> ProposeItem:
        sequence = ask.sequence
        text, after = sequence.token_ids, ask.after
        confirmed = self._confirmed.get(sequence.id, 0)
        if confirmed:
            return ProposeItem(
                sequence_id=sequence.id,
                committed=ask.length,
                tokens=text[confirmed:] + after,
                prompt_tokens=sequence.prompt_tokens,
                budget=ask.budget,
                method=sequence.method,
                ahead=ask.ahead,
                trees=sequence.trees,
            )
        generate = sequence.generate
        return ProposeItem(
            sequence_id=sequence.id,
            committed=ask.length,
            tokens=text + after,
            first=True,
            prompt_tokens=sequence.prompt_tokens,
            budget=ask.budget,
            method=sequence.method,
            ahead=ask.ahead,
            trees=sequence.trees,
            namespace=generate.namespace,
            prediction=generate.prediction,
            corpora=generate.speculation.corpora,
            learn=generate.speculation.learn,
        )

    # The answer ------------------------------------------------------------------------------------------

    def _receive(self, began: float, wait: float) -> DraftsReady | None:
        assert self._link is not None
        ticket, self._ticket = self._ticket, None
        try:
            reply = self._link.receive(ticket, wait)
        except DeadlineExceeded:
            waited = max(self._now() - self._sent_at, began + wait - self._sent_at)
            self._patience = min(self._deadline, LONGER * waited)
            self.missed += 1
            self._count_silence(waited)
            return self._ready(began, self._now(), [], answered=False)
        except (MeshError, OSError) as error:
            # It died, restarted or refuses. Whoever answers next may know nothing.
            log.info("the proposer at %s didn't answer: %s", self._endpoint, error)
            self.failed += 1
            self._confirmed.clear()
            self._ended.all_unknown()
            self._not_before = self._now() + RETRY_SECONDS
            return self._ready(began, self._now(), [], answered=False)
        try:
            if not isinstance(reply, Proposed) or reply.step != self._step:
                raise ValueError("no answer to the question")
            drafts = unpacked(reply.drafts)
        except ValueError:
            self.failed += 1
            return self._ready(began, self._now(), [], answered=False)
        now = self._now()
        self._take(reply, now - self._sent_at)
        return self._ready(began, now, drafts, answered=True, worked=reply.seconds)

    def _ready(
        self, began: float, now: float, drafts: list[Any], answered: bool, worked: float = 0.0
    ) -> DraftsReady:
        followed = {}
        if self._ahead:
            followed = {sequence_id: asked.ahead for sequence_id, asked in self._asked.items() if asked.ahead}
        seconds = self._busy + now - began
        return DraftsReady(drafts, self._ahead, followed, answered, seconds, self._sent_at, worked)

    def _take(self, reply: Proposed, took: float) -> None:
        self.answered += 1
        if self._ahead:
            self._patience = SHORTER * min(self._patience, took)
        else:
            self.round_trip = took
        if self._silence:
            self._heard()
        question = self._question
        if question is not None and (question.forget or question.ended):
            del self._forget[: len(question.forget)]
            self._ended.said()
        for sequence_id, asked in self._asked.items():
            self._confirmed[sequence_id] = asked.length
        for sequence_id in reply.unknown:
            self._confirmed.pop(sequence_id, None)

    def _heard(self) -> None:
        self._silence = 0.0
        self._missed_in_a_row = 0
        self._not_before = 0.0

    def _count_silence(self, seconds: float) -> None:
        """A question was open for so long and isn't any more. What counts is time, not questions: a step that waits for
        a moment only would give up on a proposer that is a little slower than that."""
        given_up = self.gave_up
        self._silence += seconds
        # Time is measured in small parts: three of a third are one.
        self._missed_in_a_row = int(self._silence / self._deadline + 1e-6)
        if self.gave_up and not given_up:
            log.warning("the proposer at %s was silent for %d deadlines: going on without it", self._endpoint, MISSES)
            self._not_before = self._now() + PROBE_SECONDS

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._ticket = self._rehearsed = None
        self._question = None

    def close(self) -> None:
        self._endpoint = ""
        self._hang_up()
