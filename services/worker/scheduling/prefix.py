"""What a sequence need not compute, because another one has computed it, or is just about to.

    its text      [page][page][page][page][part of a page]·
                   └ in the prefix cache ┘ └ copied from a sibling with the same prompt: the page is written on by
                     shared as they are      both from here, each in its own copy
                                                         · the last token is always computed: its logits are wanted

Three rules. A page is entered into the prefix cache when it is full of computed, committed text, never before. A
text with the same beginning as one that a sequence before it is computing waits for that, instead of computing it
a second time. What a copied page holds behind the prompt is never looked at: it is written over.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from services.worker.cache.keys import SECRET_BYTES, Keys
from services.worker.cache.prefix import PrefixCache
from services.worker.scheduling.sequence import Sequence


@dataclass(slots=True)
class Found:
    """What of a text is computed: whole `pages`, then the first tokens of `copied`, `computed` tokens in all.
    With a `leader` there will be more once that sequence has computed `needed` tokens."""

    pages: list[int]
    computed: int
    copied: int | None = None
    leader: Sequence | None = None
    needed: int = 0


class Sharing:
    def __init__(self, pages: int, page_tokens: int, enabled: bool) -> None:
        self.cache = PrefixCache(pages, enabled)
        self.pages = self.cache.pages
        self._page_tokens = page_tokens
        self._keys = Keys(page_tokens, os.urandom(SECRET_BYTES))
        # Of what running sequences have yet to compute: who will. Keys of pages, and of whole prompts.
        self._underway: dict[bytes, Sequence] = {}
        # Of whole prompts that running sequences hold: who does, so that their last page may be copied.
        self._prompts: dict[bytes, Sequence] = {}
        # Tokens of requests that came to run, and how many of them weren't computed.
        self.asked_tokens = 0
        self.found_tokens = 0

    # Before a sequence runs -----------------------------------------------------------------------------

    def look(self, sequence: Sequence) -> Found:
        """What is there for the text of this waiting sequence. Changes nothing."""
        if not self.cache.enabled:
            return Found([], 0)
        whole = self._name(sequence)
        keys = sequence.keys
        pages = self.cache.find(keys[1 : whole + 1])
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
        """See that the keys of the text are there; how many whole pages come before its last token."""
        whole = (sequence.length - 1) // self._page_tokens
        if not sequence.keys:
            sequence.keys.append(self._keys.root(sequence.generate.cache_salt))
        self._keys.extend(sequence.keys, sequence.token_ids, whole)
        if not sequence.prompt_key:
            # The first look comes before the first token: the text is what arrived.
            tail = sequence.token_ids[whole * self._page_tokens : -1]
            sequence.prompt_key = self._keys.after(sequence.keys[whole], tail)
        return whole

    def _leader(self, key: bytes, sequence: Sequence) -> Sequence | None:
        """Who computes this just now. One that comes after `sequence` may get its rows late: it isn't waited for."""
        leader = self._underway.get(key)
        return leader if leader is not None and leader.order < sequence.order else None

    def _needed(self, sequence: Sequence, leader: Sequence, have: int, whole: int) -> int:
        """How many tokens the leader computes that `sequence` wants, too."""
        keys = sequence.keys
        while have < whole and self._underway.get(keys[have + 1]) is leader:
            have += 1
        if have == whole and self._underway.get(sequence.prompt_key) is leader:
            return sequence.arrival_length - 1
        return have * self._page_tokens

    # While it runs --------------------------------------------------------------------------------------

    def joined(self, sequence: Sequence, found: Found) -> None:
        """It runs with what was found: the rest of its text is underway."""
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(found.computed, sequence.prompt_tokens)
            self.asked_tokens += sequence.length
            self.found_tokens += found.computed
        sequence.entered = len(found.pages)
        if not self.cache.enabled:
            return
        whole = len(sequence.keys) - 1
        for key in sequence.keys[sequence.entered + 1 : whole + 1]:
            self._underway.setdefault(key, sequence)
        self._offer_prompt(sequence)

    def advanced(self, sequence: Sequence) -> None:
        """More of its text is computed: pages that are full now can be found."""
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
        """It stops running, and is about to let go of its pages: nothing of it is underway or can be copied."""
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
        """The engine failed on it: what it computed isn't to be found by others."""
        self.cache.forget(sequence.pages)

    # Books ----------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        self.cache.check()
        assert not self._underway and not self._prompts, "nothing is underway when nobody runs"
        assert self.pages.in_use == 0, "no page has a holder when nobody runs"
