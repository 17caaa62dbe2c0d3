"""Whose request is next: API keys get equal shares of a worker, whatever each of them sends.

    key a  [due 1][due 4][due 9]   used 4 200 ─┐
    key b  [due 7]                 used 3 900 ─┴▶ the first request of the key that has used least

Rule 1: a request is charged to its key when it is first admitted: the tokens to compute, and the answer as far as
        it is asked for, ANSWER tokens at a time. When it ends the charge becomes what it has really used.
Rule 2: a key that begins to wait is set to what the others have used: of a time without requests nothing is saved up,
        and what the others had to themselves isn't held against them.
Rule 3: within a key requests keep their order (due time, which priority moves). All requests without a key have one.

So of two keys that both have requests waiting neither is charged more than the dearest request and AHEAD beyond the
other, but for what running requests go on to use; and each key's turn comes. It is fair queueing by a counter of
tokens for each key. Knows no sequences.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from services.worker.scheduling.queues import Queue

Item = TypeVar("Item", bound=Hashable)
# Tokens of an answer that are charged before they are there: few answers take the whole context, although requests
# without max_tokens ask for it.
ANSWER = 256
# A key that has less than half of an equal share of the places takes one from another key (planning.py): its short
# requests then don't wait for the long answers of others. It takes none while it is this many tokens ahead of a key
# that waits.
AHEAD = 256
# Keys without waiting requests that are remembered.
MOST_IDLE = 1024


class Shares(Generic[Item]):
    """Waiting items by key, and what each key has used."""

    def __init__(self) -> None:
        self._waiting: dict[str, Queue[Item]] = {}
        self._keys: Queue[str] = Queue()
        self._key_of: dict[Item, str] = {}
        # Tokens, for keys that wait and for those that are ahead of the rest.
        self._used: dict[str, int] = {}
        # The key whose request was admitted last, and what a new key is taken to have used; that only grows.
        self._last = ""
        self._level = 0

    def __len__(self) -> int:
        return len(self._key_of)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._key_of)

    def put(self, key: str, order: Any, item: Item) -> None:
        self._key_of[item] = key
        if (queue := self._waiting.get(key)) is None:
            queue = self._waiting[key] = Queue()
            used = self._used[key] = max(self._used.get(key, 0), self._new_level())
            self._keys.put(used, key)
        queue.put(order, item)

    def _new_level(self) -> int:
        least = self._keys.first()
        used = self._used.get(self._last, 0) if least is None else int(least[0])
        self._level = max(self._level, used)
        return self._level

    def first(self) -> Item | None:
        found = self._keys.first()
        if found is None:
            return None
        first = self._waiting[found[1]].first()
        assert first is not None, "only keys with items wait"
        return first[1]

    def firsts(self) -> Iterator[Item]:
        """The first of each key, in the order of the keys, as far as those that are AHEAD of the first one."""
        least: int | None = None
        for key in self._keys:
            least = self._used[key] if least is None else least
            if self._used[key] > least + AHEAD:
                return
            first = self._waiting[key].first()
            assert first is not None, "only keys with items wait"
            yield first[1]

    def remove(self, item: Item) -> None:
        key = self._key_of.pop(item)
        queue = self._waiting[key]
        queue.remove(item)
        if not queue:
            del self._waiting[key]
            self._keys.remove(key)
            self._forget()

    def admit(self, key: str, cost: int) -> None:
        """A request of this key begins; its turn had come."""
        self._last = key
        self.charge(key, cost)

    def charge(self, key: str, tokens: int) -> None:
        """More, or less, than was charged before."""
        self._used[key] = used = max(0, self._used.get(key, self._level) + tokens)
        if key in self._waiting:
            self._keys.remove(key)
            self._keys.put(used, key)

    def _forget(self) -> None:
        """Of keys that don't wait, those that aren't ahead would begin like new ones."""
        if len(self._used) > len(self._waiting) + MOST_IDLE:
            self._used = {key: used for key, used in self._used.items() if key in self._waiting or used > self._level}
        if len(self._used) > len(self._waiting) + MOST_IDLE:
            self._used = {key: self._used[key] for key in self._waiting}
