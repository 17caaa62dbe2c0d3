"""The worker's client of the proposer process: the drafters there, asked over the mesh. One request for a whole batch.

Rule 1: nothing here can fail a step. A slow, dead, restarted or hostile proposer costs drafts.
Rule 2: only tokens that the proposer hasn't confirmed are sent; the whole text if it doesn't know it (it restarted).
Rule 3: one request is open at a time. A request sent ahead, while a step ran, is given up if the next step needs
        something else.

Blocking, for the engine's thread. The controller checks the contents of drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from mesh.errors import DeadlineExceeded, MeshError, NotReached
from services.api.drafter import Draft
from services.api.drafts import unpack
from services.api.messages import Propose, Proposed, ProposeItem
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.remote.circuit_breaker import CircuitBreaker
from services.worker.speculation.remote.ended_texts import EndedTexts

log = logging.getLogger("specmesh.worker")


class Link(Protocol):
    """To one proposer. Implemented by link.py."""

    def send(self, message: Any) -> Any:
        """A ticket for the answer; doesn't wait. The message must not be changed afterwards."""
        ...

    def arrived(self, ticket: Any) -> bool:
        """Whether `receive` would return or raise without waiting."""
        ...

    def receive(self, ticket: Any, timeout: float) -> Any:
        """The answer. Raises what ended the request, DeadlineExceeded when nothing did in time. Voids the ticket."""
        ...

    def give_up(self, ticket: Any) -> None:
        """Voids the ticket."""
        ...


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Asks for a draft of at most `budget` tokens that follows this sequence's text and `ahead`."""

    sequence: Sequence
    budget: int
    ahead: list[int] = []


class Answer(msgspec.Struct, frozen=True):
    """The result of a request. `drafts` has sequence, length of the text and `ahead` that the draft follows, and draft;
    `asked` has the length of the text and `ahead` by sequence. `seconds`: how long the engine thread was busy with it.
    `sent_at` (when it was sent) and `worked` (seconds, as the proposer says) are for timelines."""

    drafts: list[tuple[int, int, Draft]]
    asked: dict[int, tuple[int, list[int]]]
    ahead: bool
    answered: bool
    seconds: float
    sent_at: float = 0.0
    worked: float = 0.0


class _Open(NamedTuple):
    """The request that hasn't been answered yet."""

    ticket: Any
    step: int
    ahead: bool
    asked: dict[int, tuple[int, list[int]]]
    forget: int
    sent_at: float
    answer_by: float
    busy: float


class ProposerClient:
    def __init__(
        self,
        connect: Callable[[str], Link],
        *,
        worker: str,
        epoch: int,
        deadline: float,
        now: Callable[[], float],
        vocabulary: str = "",
    ) -> None:
        """`connect` makes a link to an endpoint; `deadline` is the longest that a step waits, in seconds."""
        self._connect = connect
        self._worker = worker
        self._epoch = epoch
        self._deadline = deadline
        self._now = now
        self._vocabulary = vocabulary
        self.breaker = CircuitBreaker(deadline)
        self.endpoint = ""
        self._link: Link | None = None
        self._step = 0
        self._open: _Open | None = None
        # Length of each text up to which the proposer has confirmed it.
        self._confirmed: dict[int, int] = {}
        self._forget: list[int] = []
        self._ended = EndedTexts()
        # Seconds of the last request that was waited for; 0: none yet.
        self.round_trip = 0.0
        self.asked = 0
        self.asked_ahead = 0
        self.answered = 0
        self.missed = 0
        self.failed = 0

    def move_to(self, endpoint: str) -> None:
        """Use the proposer at `endpoint`, which knows no text yet; "": there is none."""
        if endpoint != self.endpoint:
            self.close()
            self.endpoint = endpoint
        self._unknown()
        self._forget = []
        self.breaker.answered()
        if self._link is None and endpoint:
            self._link = self._connect(endpoint)

    def _unknown(self) -> None:
        """The proposer knows none of our texts."""
        self._confirmed.clear()
        self._ended.all_unknown()

    def forget(self, sequence: Sequence, learn: bool) -> None:
        """The sequence has ended. The next request says so, if the proposer knows the sequence; with `learn` it also
        sends the rest of the text."""
        confirmed = self._confirmed.pop(sequence.sequence_id, 0)
        # It may be part of the open request.
        heard = confirmed > 0
        if self._open is not None:
            heard |= self._open.asked.pop(sequence.sequence_id, None) is not None
        if learn and self.endpoint:
            self._forget += self._ended.add(sequence, confirmed, heard)
        elif heard:
            self._forget.append(sequence.sequence_id)

    def knows(self, sequence: Sequence) -> bool:
        """Whether this proposer may know the sequence."""
        key = sequence.sequence_id
        return key in self._confirmed or (self._open is not None and key in self._open.asked)

    def untold(self) -> list[Sequence]:
        """Ended sequences that this proposer was not told of."""
        return self._ended.sequences()

    # Asking ----------------------------------------------------------------------------------------------

    def listens(self) -> bool:
        """Whether a request is open, or would be sent now."""
        return self._open is not None or (self.endpoint != "" and self.breaker.allows(self._now()))

    def ask(self, asks: list[Ask], wait: float = 0.0) -> bool:
        """Send a request for the next step, which may wait for it for `wait` seconds (0: the deadline). Returns whether
        a request is open now; `collect` waits for it."""
        wait = min(wait, self._deadline) if wait > 0 else self._deadline
        found = self._open
        if found is not None:
            if found.ahead and not self.breaker.open and self._serves(found, asks):
                self._open = found._replace(answer_by=self._now() + wait)
                return True
            if not found.ahead:
                return False
            self._give_up(found)
        return self._send(asks, ahead=False, wait=wait)

    def ask_ahead(self, asks: list[Ask]) -> bool:
        """Send a request for the step after this one, without waiting."""
        sent = self._open is None and self._send(asks, ahead=True, wait=self._deadline)
        self.asked_ahead += sent
        return sent

    def _serves(self, found: _Open, asks: list[Ask]) -> bool:
        """Whether the open request still fits: each text begins with what was asked about."""
        for ask in asks:
            text = ask.sequence.token_ids
            length, ahead = found.asked.get(ask.sequence.sequence_id, (len(text) + 1, []))
            if len(text) < length or text[length : length + len(ahead)] != ahead:
                return False
        return True

    def _give_up(self, found: _Open) -> None:
        assert self._link is not None
        now = self._now()
        self.breaker.silent(now - found.sent_at, now)
        self._link.give_up(found.ticket)
        self._open = None

    def look(self) -> Answer | None:
        """The answer to a request sent ahead or to a probe, if it has arrived. After its deadline the request is given
        up."""
        found = self._open
        if found is None:
            return None
        assert self._link is not None
        if self._now() < found.answer_by and not self._link.arrived(found.ticket):
            return None
        return self._receive(found, 0.0)

    def collect(self) -> Answer | None:
        """The answer to the open request; waits until its deadline. None if the breaker is open and nothing has
        arrived."""
        found = self._open
        if found is None:
            return None
        assert self._link is not None
        left = found.answer_by - self._now()
        if self.breaker.open and left > 0 and not self._link.arrived(found.ticket):
            return None
        return self._receive(found, max(0.0, left))

    def tell(self) -> bool:
        """No sequence is left: tell the proposer now which ones have ended, since the next request may be far off.
        Returns whether to tell it again later, because it hasn't answered."""
        self.collect()
        if self._forget or self._ended:
            self.ask([])
            self.collect()
        return bool(self.endpoint) and bool(self._forget or self._ended)

    def close(self) -> None:
        if self._link is not None and self._open is not None:
            self._link.give_up(self._open.ticket)
        self._link = self._open = None

    # The request -----------------------------------------------------------------------------------------

    def _send(self, asks: list[Ask], *, ahead: bool, wait: float) -> bool:
        now = self._now()
        if self._link is None or not self.breaker.allows(now):
            return False
        self.breaker.sent(now)
        self._step += 1
        propose = Propose(
            step=self._step,
            epoch=self._epoch,
            worker=self._worker,
            items=[self._item(ask) for ask in asks],
            forget=list(self._forget),
            ended=self._ended.say(),
            vocabulary=self._vocabulary,
        )
        ticket = self._link.send(propose)
        asked = {ask.sequence.sequence_id: (len(ask.sequence.token_ids), ask.ahead) for ask in asks}
        # A probe may take the whole deadline.
        answer_by = now + (self._deadline if self.breaker.open else wait)
        self._open = _Open(ticket, self._step, ahead, asked, len(propose.forget), now, answer_by, self._now() - now)
        self.asked += 1
        return True

    def _item(self, ask: Ask) -> ProposeItem:
        sequence = ask.sequence
        text = sequence.token_ids
        confirmed = self._confirmed.get(sequence.sequence_id, 0)
        item = ProposeItem(
            sequence_id=sequence.sequence_id,
            committed=len(text),
            tokens=text[confirmed:],
            first=not confirmed,
            prompt_tokens=sequence.prompt_tokens,
            budget=ask.budget,
            method=sequence.method,
            ahead=ask.ahead,
        )
        if confirmed:
            return item
        generate = sequence.generate
        return msgspec.structs.replace(
            item,
            namespace=generate.namespace,
            prediction=generate.prediction,
            corpora=generate.speculation.corpora,
            learn=generate.speculation.learn,
        )

    # The answer ------------------------------------------------------------------------------------------

    def _receive(self, found: _Open, wait: float) -> Answer:
        assert self._link is not None
        self._open = None
        began = self._now()
        try:
            reply = self._link.receive(found.ticket, wait)
            if not isinstance(reply, Proposed) or reply.step != found.step:
                raise ValueError("no answer to the request")
            drafts = unpack(reply.drafts)
        except DeadlineExceeded:
            now = self._now()
            self.missed += 1
            self.breaker.silent(max(now - found.sent_at, began + wait - found.sent_at), now)
        except (MeshError, OSError) as error:
            # Without a connection this comes again and again.
            level = logging.DEBUG if isinstance(error, NotReached) else logging.INFO
            log.log(level, "the proposer at %s didn't answer: %s", self.endpoint, error)
            self.failed += 1
            # The next proposer may know nothing.
            self._unknown()
            self.breaker.failed(self._now())
        except ValueError:
            self.failed += 1
        else:
            now = self._now()
            self._take(found, reply, now - found.sent_at)
            seconds = found.busy + now - began
            placed = [(each.sequence_id, each.length, each.draft) for each in drafts]
            return Answer(placed, found.asked, found.ahead, True, seconds, found.sent_at, reply.seconds)
        return Answer([], found.asked, found.ahead, False, found.busy + self._now() - began, found.sent_at)

    def _take(self, found: _Open, reply: Proposed, took: float) -> None:
        self.answered += 1
        if not found.ahead:
            self.round_trip = took
        self.breaker.answered()
        del self._forget[: found.forget]
        self._ended.said()
        for sequence_id, (length, _) in found.asked.items():
            self._confirmed[sequence_id] = length
        for sequence_id in reply.unknown:
            self._confirmed.pop(sequence_id, None)
