"""Suffix decoding: what followed the contexts that a text ends with, most often, as far as it is likely enough.

Every request has an automaton of its own text, prompt and output; with a shared store there is one more of what all
requests have said. The draft with the better score wins. A context is kept from step to step, so a step costs the
new tokens and the draft; a long prompt joins over several calls and gets drafts when it has. docs/proposers.md tells
how. It knows neither sampling nor who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from services.config import Settings
from services.proposer.draft import EMPTY, MAX_DRAFT_TOKENS, Draft
from services.proposer.proposer import Ask, Needs, Outcome, View
from services.proposer.suffix_store import compiling
from services.proposer.suffix_store.automaton import Automaton
from services.proposer.suffix_store.followers import Followers, Rule, Told, Turn
from services.proposer.suffix_store.shared import Member, SharedStore, shares_of

# Tokens that join in one call, of all texts together; about a millisecond.
SLICE = 2048


@dataclass(slots=True)
class _Text:
    """What is kept of a request: its automaton, who writes it, and how much of the text is in."""

    automaton: Automaton
    writer: int
    joined: int = 0
    member: Member | None = None


class SuffixProposer:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def __init__(self, depth: int, rule: Rule, max_requests: int | None = 0, max_shared_tokens: int = 0) -> None:
        """`max_requests` 0: nothing is shared. None: as many as fit into the shared tokens."""
        self._depth = depth
        self._rule = rule
        self._followers = Followers()
        self._texts: dict[int, _Text] = {}
        self._shared: SharedStore | None = None
        if max_requests != 0:
            self._shared = SharedStore(self._followers, depth, max_shared_tokens, max_requests)

    @classmethod
    def of(cls, settings: Settings) -> SuffixProposer:
        if settings.method == "suffix":
            # Else at the first request that asks for it.
            compiling.start()
        most = settings.suffix_decoding_max_cached_requests
        rule = Rule(
            settings.suffix_decoding_max_spec_factor,
            settings.suffix_decoding_max_spec_offset,
            settings.suffix_decoding_min_token_prob,
        )
        return cls(
            settings.suffix_decoding_max_tree_depth, rule, None if most < 0 else most, settings.proposer_tokens
        )

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        views = [ask.view for ask in asks]
        budgets = [0 if ask.ahead else ask.budget for ask in asks]
        if not compiling.is_compiled():
            return [EMPTY] * len(views)
        texts = [self._texts.get(view.sequence_id) or self._start(view) for view in views]
        if self._shared is not None:
            # First everyone writes, so that everyone reads what is newest.
            members = [text.member for text in texts if text.member is not None]
            self._shared.write(members, [view.tokens for view in views], SLICE)
        waiting = [len(view.tokens) - text.joined for view, text in zip(views, texts, strict=True)]
        turns: list[Turn] = []
        begins = [0]
        for view, text, share, budget in zip(views, texts, shares_of(waiting, SLICE), budgets, strict=True):
            turns += self._turns(view, text, share, min(budget, MAX_DRAFT_TOKENS))
            begins.append(len(turns))
        told = self._followers.run(turns, self._rule)
        return [_better(told[begin:end]) for begin, end in pairwise(begins)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def forget(self, sequence_id: int) -> None:
        text = self._texts.pop(sequence_id, None)
        if text is None:
            return
        self._followers.release(text.writer)
        if text.member is not None and self._shared is not None:
            self._shared.leave(text.member)
        text.automaton.close()

    def held_bytes(self) -> int:
        own = sum(text.automaton.held_bytes() for text in self._texts.values())
        return own + (self._shared.held_bytes() if self._shared is not None else 0)

    def _start(self, view: View) -> _Text:
        automaton = Automaton(self._depth)
        text = self._texts[view.sequence_id] = _Text(automaton, self._followers.write(automaton))
        if self._shared is not None:
            text.member = self._shared.join(view.prompt_tokens)
        return text

    def _turns(self, view: View, text: _Text, share: int, longest: int) -> Iterator[Turn]:
        """The own automaton's turn, then the shared ones' once the text is in: its end is what they guess behind."""
        new = view.tokens[text.joined : text.joined + share]
        text.joined += share
        is_in = text.joined == len(view.tokens)
        yield Turn(text.writer, new, longest if is_in else 0)
        if is_in and text.member is not None and self._shared is not None:
            yield from self._shared.reading(text.member, view.tokens, longest)


def _better(told: Sequence[Told]) -> Draft:
    """The best score's; of equal ones the first: a request's own text before what others said."""
    best = told[0]
    for each in told[1:]:
        if each.score > best.score:
            best = each
    return Draft(best.tokens, "suffix", best.match_length) if best.tokens else EMPTY
