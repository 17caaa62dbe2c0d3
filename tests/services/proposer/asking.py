"""Short ways of asking drafters."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from services.api.drafter import Draft, Drafter, DraftRequest, Text
from services.api.methods import COMPILED, PLAIN
from services.api.settings import Settings
from services.proposer.fast.namespaces import FastNamespaces
from services.proposer.fast.texts import FastTexts
from services.proposer.index import SuffixIndex
from services.proposer.plain import texts as plain
from services.proposer.plain.texts import TextOptions
from services.proposer.registry import make_drafters
from services.proposer.store.library import Library

# Of the indexes that are made.
FORM = COMPILED


def asks(asked: Sequence[Text], budgets: Sequence[int]) -> list[DraftRequest]:
    return [DraftRequest(text, budget) for text, budget in zip(asked, budgets, strict=True)]


def view(number: int, tokens: list[int], prompt: int = 0, namespace: str = "", prediction: Sequence[int] = ()) -> Text:
    return Text(number, array("i", tokens), prompt, array("i", prediction), namespace)


def index(depth: int = 64, sizes: tuple[int, int] = (2, 5), tokens: int = 10**6, **more: int) -> SuffixIndex:
    if FORM == PLAIN:
        options = TextOptions(depth, *sizes)
        return index_of(plain.Texts(plain.Namespaces(depth, tokens, **more), options))  # type: ignore[arg-type]
    return index_of(texts(depth, sizes, tokens, **more))


def texts(depth: int = 64, sizes: tuple[int, int] = (2, 5), tokens: int = 10**6, **more: int) -> FastTexts:
    """For an index whose texts a test looks at."""
    return FastTexts(FastNamespaces(depth, tokens, **more), TextOptions(depth, *sizes))  # type: ignore[arg-type]


def index_of(held: plain.Texts | FastTexts) -> SuffixIndex:
    """Without a library: what is learned is gone with the index."""
    return SuffixIndex(held, _no_library)


def _no_library(vocabulary: str) -> Library:
    raise OSError("none in this test")


def drafters(**settings: object) -> dict[str, Drafter]:
    chosen = Settings.for_tests(**settings)
    return make_drafters(chosen, SuffixIndex.open(chosen))


def guess(drafter: Drafter, one: Text, budget: int = 8, ahead: Sequence[int] = ()) -> Draft:
    [draft] = drafter.draft([DraftRequest(one, budget, ahead)])
    return draft


def say(drafter: Drafter, one: Text, tokens: Sequence[int], budget: int = 8) -> Draft:
    one.tokens.extend(tokens)
    return guess(drafter, one, budget)


def told(draft: Draft) -> tuple[list[int], str, int]:
    return draft.tokens, draft.source, draft.match_length
