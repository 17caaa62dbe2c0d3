"""The part of a text that needn't be computed, because another sequence has computed it or is computing it.

    its text      [page][page][page][page][part of a page]·
                   └ in the prefix cache ┘ └ copied from a sequence with the same prompt: both write to this page,
                     shared                  each to its own copy
                                                         · the last token is always computed, for its logits

Of a model whose layers keep a state beside pages a text goes on where a state is kept, too (cache/snapshots.py): at the
last end of a page before its own end, and where the texts that were found part from it.

Three rules. A page enters the prefix cache only when it is full of computed, committed text. A text waits for a prefix
that a sequence before it is computing, instead of computing it again. What a copied page holds after the prompt is
overwritten before it is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from services.worker.cache.held import Held
from services.worker.cache.keys import SECRET_BYTES, Keys
from services.worker.cache.prefix import PrefixCache
from services.worker.cache.snapshots import Snapshots
from services.worker.scheduling.sequence import Sequence


@dataclass(slots=True)
class Found:
    """The computed part of a text: whole `pages`, then the first tokens of page `copied`; `computed` tokens in all.
    With a `leader`, more will be found once that sequence has computed `needed` tokens."""

    pages: list[int]
    computed: int
    # Tokens whose pages were found: more than `computed` where no state is kept.
    known: int = 0
    copied: int | None = None
    leader: Sequence | None = None
    needed: int = 0


class Sharing:
    def __init__(
        self, pages: int, page_tokens: int, enabled: bool, secret: bytes = b"", snapshots: Snapshots | None = None
    ) -> None:
        """`snapshots`: of a model with states."""
        self.cache = PrefixCache(pages, enabled)
        self.snapshots = snapshots
        # From place to place, before the next step.
        self._state_copies: list[tuple[int, int]] = []
        self.pages = self.cache.pages
        self.held = Held(self.pages)
        self._page_tokens = page_tokens
        self._keys = Keys(page_tokens, secret or os.urandom(SECRET_BYTES))
        # Running sequences by what they have yet to compute: keys of pages and of whole prompts.
        self._underway: dict[bytes, Sequence] = {}
        # Running sequences by the key of their computed prompt, whose last page can be copied.
        self._prompts: dict[bytes, Sequence] = {}
        # Tokens of admitted texts, and how many of them were found.
        self.asked_tokens = 0
        self.found_tokens = 0

    # Before a sequence runs -----------------------------------------------------------------------------

    def look(self, sequence: Sequence) -> Found:
        """What is computed of this waiting sequence's text. Changes no state but its keys."""
        if not self.cache.enabled:
            return Found([], 0)
        whole = self._name(sequence)
        keys = sequence.keys
        if sequence.wants_rows:
            # Rows that are scored or pooled are computed, whether or not their keys and values are there.
            whole = sequence.first_wanted // self._page_tokens
        pages = self.cache.find(keys[1 : whole + 1])
        if self.snapshots is not None:
            count = self.snapshots.longest(keys[1 : len(pages) + 1])
            return Found(pages[:count], count * self._page_tokens, len(pages) * self._page_tokens)
        if sequence.wants_rows:
            return Found(pages, len(pages) * self._page_tokens)
        computed = len(pages) * self._page_tokens
        if len(pages) < whole:
            leader = self._leader(keys[len(pages) + 1], sequence)
            if leader is None:
                return Found(pages, computed)
            return Found(pages, computed, leader=leader, needed=self._needed(sequence, leader, len(pages), whole))
        if sequence.length != sequence.arrival_length or computed == sequence.length - 1:
            return Found(pages, computed)
        sibling = self._prompts.get(sequence.prompt_key)
        if sibling is not None:
            return Found(pages, sequence.length - 1, copied=sibling.pages[whole])
        leader = self._leader(sequence.prompt_key, sequence)
        return Found(pages, computed, leader=leader, needed=sequence.length - 1)

    def _name(self, sequence: Sequence) -> int:
        """Make the keys of the text. Returns the number of whole pages before its last token."""
        whole = (sequence.length - 1) // self._page_tokens
        if not sequence.keys:
            sequence.keys.append(self._root(sequence.drafter, sequence.generate.cache_salt))
        self._keys.extend(sequence.keys, sequence.token_ids, whole)
        if not sequence.prompt_key:
            # Called first before any token is generated: the text is what arrived.
            tail = sequence.token_ids[whole * self._page_tokens : -1]
            sequence.prompt_key = self._keys.after(sequence.keys[whole], tail)
        return whole

    def names(self, text: list[int], drafter: str, salt: str) -> list[bytes]:
        """The keys of the whole pages before the last token of a text."""
        keys = [self._root(drafter, salt)]
        self._keys.extend(keys, text, (len(text) - 1) // self._page_tokens)
        return keys[1:]

    def _root(self, drafter: str, salt: str) -> bytes:
        # A drafter's layers have pages, too: what was computed without it lacks their keys and values.
        return self._keys.root(f"{drafter}\0{salt}")

    def _leader(self, key: bytes, sequence: Sequence) -> Sequence | None:
        """The sequence that is computing this. One later in the order may get its rows late: don't wait for it."""
        leader = self._underway.get(key)
        return leader if leader is not None and leader.order < sequence.order else None

    def _needed(self, sequence: Sequence, leader: Sequence, have: int, whole: int) -> int:
        """How many tokens the leader will have computed of this text."""
        keys = sequence.keys
        while have < whole and self._underway.get(keys[have + 1]) is leader:
            have += 1
        if have == whole and self._underway.get(sequence.prompt_key) is leader:
            return sequence.arrival_length - 1
        return have * self._page_tokens

    # While it runs --------------------------------------------------------------------------------------

    def joined(self, sequence: Sequence, found: Found) -> None:
        """It runs now, with what was found: the rest of its text is underway."""
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(found.computed, sequence.prompt_tokens)
            self.asked_tokens += sequence.length
            self.found_tokens += found.computed
        sequence.entered = len(found.pages)
        if not self.cache.enabled:
            return
        if self.snapshots is not None:
            self._go_on_from(self.snapshots, sequence, found)
        whole = len(sequence.keys) - 1
        for key in sequence.keys[sequence.entered + 1 : whole + 1]:
            self._underway.setdefault(key, sequence)
        self._offer_prompt(sequence)

    def _go_on_from(self, snapshots: Snapshots, sequence: Sequence, found: Found) -> None:
        if found.pages:
            place = snapshots.use(sequence.keys[len(found.pages)])
            self._state_copies.append((place, sequence.state_place))
        last = (sequence.length - 1) // self._page_tokens * self._page_tokens
        sequence.keep_at = sorted({at for at in (found.known, last) if at > found.computed})

    def _keep_state(self, snapshots: Snapshots, sequence: Sequence) -> None:
        """Its step has ended where its state is to be kept."""
        key = sequence.keys[sequence.keep_at.pop(0) // self._page_tokens]
        self._state_copies.append((sequence.state_place, snapshots.enter(key)))

    def take_state_copies(self) -> list[tuple[int, int]]:
        taken, self._state_copies = self._state_copies, []
        return taken

    def advanced(self, sequence: Sequence) -> None:
        """More of its text has been computed: its full pages can be found from now on."""
        if not self.cache.enabled:
            return
        full = sequence.computed // self._page_tokens
        if full > sequence.entered:
            keys = sequence.keys
            self._keys.extend(keys, sequence.token_ids, full)
            for page in range(sequence.entered, full):
                key = keys[page + 1]
                self.cache.enter(key, sequence.pages[page])
                if self._underway.get(key) is sequence:
                    del self._underway[key]
            sequence.entered = full
        if self.snapshots is not None and sequence.keep_at and sequence.computed == sequence.keep_at[0]:
            self._keep_state(self.snapshots, sequence)
        if not sequence.prompt_offered:
            self._offer_prompt(sequence)

    def _offer_prompt(self, sequence: Sequence) -> None:
        key = sequence.prompt_key
        if sequence.computed < sequence.arrival_length - 1:
            self._underway.setdefault(key, sequence)
            return
        sequence.prompt_offered = True
        if self._underway.get(key) is sequence:
            del self._underway[key]
        if (sequence.arrival_length - 1) % self._page_tokens:
            self._prompts.setdefault(key, sequence)

    def leaving(self, sequence: Sequence) -> None:
        """It stops running and will release its pages: nothing of it is underway or can be copied."""
        if not self.cache.enabled:
            return
        for key in sequence.keys[sequence.entered + 1 :]:
            if self._underway.get(key) is sequence:
                del self._underway[key]
        for where in (self._underway, self._prompts):
            if where.get(sequence.prompt_key) is sequence:
                del where[sequence.prompt_key]
        sequence.prompt_offered = False

    def distrust(self, sequence: Sequence) -> None:
        """The engine failed on it: others must not use what it computed."""
        self.cache.forget(sequence.pages)
        if self.snapshots is not None:
            self.snapshots.forget(sequence.keys)

    def forget_all(self) -> None:
        self.cache.clear()
        self._state_copies.clear()
        if self.snapshots is not None:
            self.snapshots.clear()

    # Checks ---------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """By counts: a request that arrives meanwhile would wait for a look at a GPU's hundred thousand pages."""
        assert not self._underway and not self._prompts, "nothing is underway when no sequence runs"
        self.held.check()
        if self.snapshots is not None:
            self.snapshots.check()
