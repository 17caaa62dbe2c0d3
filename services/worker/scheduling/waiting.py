"""Waiting requests, in the order of admission. Cheap with thousands of them.

Most wait for their API key's turn (shares.py). One that has run before and lost its pages has had its turn: it is next
unless it comes later in the order. Those that need a prefix that another sequence (the leader) is computing wait behind
it, and return to their places when it is computed. Knows no pages and no steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.worker.scheduling.queues import Queue
from services.worker.scheduling.sequence import Sequence
from services.worker.scheduling.shares import ANSWER, Shares


class Waiting:
    def __init__(self) -> None:
        self._shares: Shares[Sequence] = Shares()
        # Preempted sequences.
        self._again: Queue[Sequence] = Queue()
        # By leader: the sequences behind it, keyed by how many of its tokens they need.
        self._behind: dict[Sequence, Queue[Sequence]] = {}
        self._leader: dict[Sequence, Sequence] = {}

    def __len__(self) -> int:
        return len(self._shares) + len(self._again) + len(self._leader)

    def __bool__(self) -> bool:
        # Called in each step.
        return bool(self._leader or len(self._shares) or self._again.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(sorted([*self._shares, *self._again, *self._leader], key=_order))

    def put(self, sequence: Sequence) -> None:
        if sequence.charged is None:
            self._shares.put(sequence.generate.caller, sequence.order, sequence)
        else:
            self._again.put(sequence.order, sequence)

    def first(self) -> Sequence | None:
        """The next sequence to admit. Those behind a leader are left out."""
        fair, again = self._shares.first(), self._again.first()
        if again is None or (fair is not None and fair.order < again[1].order):
            return fair
        return again[1]

    def first_of_keys(self) -> Iterator[Sequence]:
        """Of each key that isn't far ahead the next one that hasn't run; of the key first that has used least."""
        return self._shares.firsts()

    def admit(self, sequence: Sequence, computed: int) -> None:
        """It runs from now on. `computed`: tokens of its text that were found."""
        self.remove(sequence)
        if sequence.charged is None:
            sequence.found_tokens, sequence.charged = computed, sequence.length - computed
            self._shares.admit(sequence.generate.caller, sequence.charged)
            self.charge_answer(sequence)

    def charge_answer(self, sequence: Sequence) -> None:
        """Its next tokens, up to `charge_at`, where this is to be called again."""
        assert sequence.charged is not None
        answer = min(sequence.limit - sequence.length, ANSWER)
        sequence.charged += answer
        sequence.charge_at = sequence.length + answer
        self._shares.charge(sequence.generate.caller, answer)

    def ended(self, sequence: Sequence) -> None:
        """Settle its charge. What was computed again after a preemption isn't its key's fault."""
        if sequence.charged is not None:
            self._shares.charge(sequence.generate.caller, sequence.length - sequence.found_tokens - sequence.charged)

    def remove(self, sequence: Sequence) -> None:
        leader = self._leader.pop(sequence, None)
        if leader is None:
            self._take(sequence)
            return
        self._behind[leader].remove(sequence)
        if not self._behind[leader]:
            del self._behind[leader]

    def step_behind(self, sequence: Sequence, leader: Sequence, needed: int) -> None:
        """Take it out of the queue until `leader` has computed `needed` tokens of its text, or stops running."""
        self._take(sequence)
        self._leader[sequence] = leader
        self._behind.setdefault(leader, Queue()).put(needed, sequence)

    def _take(self, sequence: Sequence) -> None:
        if sequence.charged is None:
            self._shares.remove(sequence)
        else:
            self._again.remove(sequence)

    def leader_is_at(self, leader: Sequence, computed: int) -> None:
        """Those that need no more than this return to the queue, at their places."""
        behind = self._behind.get(leader) if self._behind else None
        while behind and (first := behind.first()) is not None and first[0] <= computed:
            self.remove(first[1])
            self.put(first[1])

    def leader_left(self, leader: Sequence) -> None:
        for sequence in self._behind.pop(leader, ()):
            del self._leader[sequence]
            self.put(sequence)

    def check_empty(self) -> None:
        assert not len(self) and not self._behind, "no request waits"


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
