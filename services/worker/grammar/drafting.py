"""A grammar drafts, too: where it leaves one text only, that text is a draft, and white space as the text has had it
before is one, with what is forced behind it. And it cuts the drafts of others where they leave it, which saves rows.

A forced text can be written in several tokens, of which these are the tokenizer's: so they are verified as any draft.
Nothing is weighed: a row of a draft that is accepted would be computed in a later step anyway. Knows no sampling.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from services.api.drafter import NO_DRAFT, Draft
from services.worker.grammar.state import GrammarState

log = logging.getLogger("specmesh.worker")

SOURCE = "grammar"
# Confidence of white space, which the grammar leaves open.
SPACE = 0.9


def drafts_within(
    states: Mapping[int, GrammarState], drafts: Mapping[int, Draft], longest: Mapping[int, int]
) -> dict[int, Draft]:
    """The drafts of these sequences, each of at most `longest` tokens. A fault costs the draft, not the sequence."""
    found = {}
    for sequence_id, state in states.items():
        try:
            found[sequence_id] = _draft_within(state, drafts.get(sequence_id, NO_DRAFT), longest[sequence_id])
        # A panic of the library's is no Exception.
        except BaseException:
            log.exception("a grammar can't draft")
            found[sequence_id] = NO_DRAFT
    return found


def _draft_within(state: GrammarState, draft: Draft, longest: int) -> Draft:
    if draft.parents or draft.probs is not None:
        # What was drawn from probabilities keeps its distribution only if nobody chooses by its tokens.
        return draft
    kept = state.follow(draft.tokens)
    tokens, confidence = _own(state, longest)
    if len(tokens) > kept:
        return Draft(tokens, SOURCE, confidence=confidence)
    state.guess = None
    if kept == len(draft.tokens):
        return draft
    return draft._replace(tokens=draft.tokens[:kept], confidence=draft.confidence[:kept]) if kept else NO_DRAFT


def _own(state: GrammarState, longest: int) -> tuple[list[int], list[float]]:
    """What is forced, and behind it white space as the text has had it, and what is forced behind that, ..."""
    tokens = state.forced()
    confidence = [1.0] * len(tokens)
    state.guess = None if tokens else state.space_behind(tokens)
    while len(tokens) < longest and (space := state.space_behind(tokens)) is not None:
        forced = state.forced_behind([*tokens, space])
        tokens = [*tokens, space, *forced]
        confidence += [SPACE, *[1.0] * len(forced)]
    return tokens[:longest], confidence[:longest]
