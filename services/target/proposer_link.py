"""The target's line to the proposer process: one Propose for a whole step, drafts back or not.

Rule 1: nothing that happens here can fail a step. A slow, dead, restarted or hostile proposer costs drafts.
Rule 2: only what the proposer hasn't confirmed is sent; when it doesn't know a text (it restarted), the text
        is sent whole.
Rule 3: a proposer that missed MISSES deadlines in a row isn't waited for any more. Now and then it is sent a
        question all the same, and the answer is looked for once its time is up: one that is there ends this.

Blocking, for the step thread. What the drafts hold is judged by the scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from mesh.errors import DeadlineExceeded, MeshError
from services.messages import DraftItem, Propose, Proposed, ProposeItem
from services.target.events import DraftAsk

log = logging.getLogger("specmesh.target")

MISSES = 3
PROBE_SECONDS = 0.5
# A socket connects by itself; until it has, it is tried this often.
RETRY_SECONDS = 0.02


class Link(Protocol):
    """What mesh/blocking.py gives."""

    def send(self, message: Any, *, timeout: float) -> Any: ...
    def receive(self, ticket: Any, timeout: float) -> Any: ...
    def close(self) -> None: ...


class ProposerLink:
    def __init__(
        self,
        connect: Callable[[str], Link],
        *,
        target: str,
        epoch: int,
        deadline: float,
        now: Callable[[], float],
    ) -> None:
        """`connect` makes a link to an endpoint; `deadline` is how long a step waits, in seconds."""
        self._connect = connect
        self._target = target
        self._epoch = epoch
        self._deadline = deadline
        self._now = now
        self._endpoint = ""
        self._link: Link | None = None
        self._step = 0
        self._ticket: Any = None
        self._answer_by = 0.0
        # Of the open question: the length of each of its texts, and how many were said to be forgotten.
        self._asked: dict[int, int] = {}
        self._forgets_said = 0
        # Length of each text up to which the proposer has confirmed it.
        self._confirmed: dict[int, int] = {}
        self._forget: list[int] = []
        self._missed_in_a_row = 0
        self._not_before = 0.0
        self.asked = 0
        self.answered = 0
        self.missed = 0
        self.failed = 0

    @property
    def gave_up(self) -> bool:
        """Whether nobody waits for this proposer any more."""
        return self._missed_in_a_row >= MISSES

    def move_to(self, endpoint: str) -> None:
        """A proposer that knows nothing yet is at `endpoint`; "": there is none."""
        if endpoint != self._endpoint:
            self._hang_up()
            self._endpoint = endpoint
        self._confirmed.clear()
        self._asked.clear()
        self._forget = []
        self._missed_in_a_row = 0
        self._not_before = 0.0
        # Sockets take a while to connect: better now than in the first step that wants drafts.
        self._dial()

    def _dial(self) -> None:
        if self._link is None and self._endpoint:
            try:
                self._link = self._connect(self._endpoint)
            except (MeshError, OSError) as error:
                log.warning("the proposer at %s can't be dialled: %s", self._endpoint, error)

    def forget(self, sequence_ids: list[int]) -> None:
        """Said to the proposer with the next question, of those it has heard of."""
        for sequence_id in sequence_ids:
            heard = self._confirmed.pop(sequence_id, None) is not None
            # It may be in the question that is on its way.
            heard |= self._asked.pop(sequence_id, None) is not None
            if heard:
                self._forget.append(sequence_id)

    # A step: ask, then collect ---------------------------------------------------------------------------

    def ask(self, asks: list[DraftAsk]) -> None:
        """Send the question of this step, and don't wait."""
        if not self._endpoint or self._ticket is not None:
            return
        now = self._now()
        if now < self._not_before:
            return
        if self.gave_up:
            self._not_before = now + PROBE_SECONDS
        self._step += 1
        self._dial()
        if self._link is None:
            self.failed += 1
            self._not_before = now + PROBE_SECONDS
            return
        try:
            self._ticket = self._link.send(self._question(asks), timeout=self._deadline)
        except (MeshError, OSError):
            self.failed += 1
            self._not_before = now + RETRY_SECONDS
            return
        self._asked = {ask.sequence.id: ask.sequence.length for ask in asks}
        self._forgets_said = len(self._forget)
        self._answer_by = now + self._deadline
        self.asked += 1

    def _question(self, asks: list[DraftAsk]) -> Propose:
        items = []
        for ask in asks:
            sequence = ask.sequence
            text = sequence.token_ids
            confirmed = self._confirmed.get(sequence.id, 0)
            items.append(
                ProposeItem(
                    sequence_id=sequence.id,
                    committed=len(text),
                    tokens=text[confirmed:],
                    first=confirmed == 0,
                    prompt_tokens=sequence.prompt_tokens,
                    budget=ask.budget,
                    method=sequence.method,
                )
            )
        return Propose(step=self._step, epoch=self._epoch, target=self._target, items=items, forget=list(self._forget))

    def collect(self) -> list[DraftItem]:
        """The drafts of the last question, if they come before its deadline; else none."""
        if self._ticket is None or self._link is None:
            return []
        left = self._answer_by - self._now()
        if self.gave_up:
            if left > 0:
                return []
            left = 0.0
        ticket, self._ticket = self._ticket, None
        try:
            reply = self._link.receive(ticket, max(0.0, left))
        except DeadlineExceeded:
            self.missed += 1
            self._missed_in_a_row += 1
            if self._missed_in_a_row == MISSES:
                log.warning("the proposer at %s missed %d deadlines: going on without it", self._endpoint, MISSES)
                self._not_before = self._now() + PROBE_SECONDS
            return []
        except (MeshError, OSError) as error:
            # It died, restarted or refuses. Whoever answers next may know nothing.
            log.info("the proposer at %s didn't answer: %s", self._endpoint, error)
            self.failed += 1
            self._confirmed.clear()
            self._not_before = self._now() + RETRY_SECONDS
            return []
        if not isinstance(reply, Proposed) or reply.step != self._step:
            self.failed += 1
            return []
        return self._take(reply)

    def rest(self) -> None:
        """No sequence is left. The proposer is told of the last ones now, not with a question that may be long in
        coming; if it doesn't hear, the next question says it again."""
        self.collect()
        if self._forget and not self.gave_up:
            self.ask([])
            self.collect()

    def _take(self, reply: Proposed) -> list[DraftItem]:
        self.answered += 1
        self._missed_in_a_row = 0
        self._not_before = 0.0
        del self._forget[: self._forgets_said]
        self._confirmed.update(self._asked)
        for sequence_id in reply.unknown:
            self._confirmed.pop(sequence_id, None)
        return reply.drafts

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._ticket = None

    def close(self) -> None:
        self._endpoint = ""
        self._hang_up()
