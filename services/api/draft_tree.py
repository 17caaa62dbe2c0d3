"""Drafts that may be trees: the tokens, and for each the index of the one it follows (-1: the text). No parents: a
chain, each token follows the one before it. Parents come before their children, and no two children of one parent are
alike. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from models.branches import branches_of, own_pages
from services.api.drafter import NO_DRAFT, Draft

CHAIN: list[int] = []


def possible(tokens: Items[int], parents: Items[int]) -> bool:
    """Whether this is such a tree. The parents may be anyone's."""
    if not parents:
        return True
    if len(parents) != len(tokens) or any(not -1 <= parent < index for index, parent in enumerate(parents)):
        return False
    return len(set(zip(parents, tokens, strict=True))) == len(tokens)


def simplified(parents: list[int]) -> list[int]:
    """CHAIN if it is one."""
    return CHAIN if parents == list(range(-1, len(parents) - 1)) else parents


def depths(count: int, parents: Items[int]) -> list[int]:
    """Of each token how many are accepted if it is."""
    if not parents:
        return list(range(1, count + 1))
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def reach(draft: Draft) -> int:
    """How many tokens of it can be accepted."""
    return max(depths(len(draft.tokens), draft.parents), default=0) if draft.parents else len(draft.tokens)


def cut(draft: Draft, count: int) -> Draft:
    """Its first tokens."""
    if count >= len(draft.tokens):
        return draft
    if count <= 0:
        return NO_DRAFT
    return draft._replace(
        tokens=draft.tokens[:count],
        parents=draft.parents[:count],
        confidence=draft.confidence[:count],
        probs=None if draft.probs is None else draft.probs[:count],
    )


def cut_to_reach(draft: Draft, depth: int) -> Draft:
    """Without the tokens that lie deeper."""
    if not draft.parents:
        return cut(draft, depth)
    places = [place for place, each in enumerate(depths(len(draft.tokens), draft.parents)) if each <= depth]
    return draft if len(places) == len(draft.tokens) else _picked(draft, places)


def _picked(draft: Draft, places: Items[int]) -> Draft:
    if not places:
        return NO_DRAFT
    tokens, parents = chosen(draft.tokens, draft.parents, places)
    confidence = [draft.confidence[place] for place in places] if draft.confidence else []
    return draft._replace(tokens=tokens, parents=parents, confidence=confidence, probs=None)


def walk(tokens: Items[int], parents: Items[int], said: Items[int]) -> list[int]:
    """The places of what agrees with the text that came, from the root on."""
    path: list[int] = []
    at = -1
    for token in said:
        at = next((i for i in range(at + 1, len(tokens)) if parents[i] == at and tokens[i] == token), -2)
        if at < 0:
            break
        path.append(at)
    return path


def first_path(tokens: list[int], parents: list[int]) -> list[int]:
    """The tokens of the first path: from the root, always the first child, which is the most probable if sorted."""
    return [tokens[place] for place in first_places(parents)] if parents else tokens


def first_places(parents: Items[int]) -> list[int]:
    found: list[int] = []
    at = -1
    for place, parent in enumerate(parents):
        if parent == at:
            at = place
            found.append(place)
    return found


def besides(parents: Items[int]) -> list[bool]:
    """Of each token of a tree, whether another one comes before it behind the same."""
    led: set[int] = set()
    found: list[bool] = []
    for parent in parents:
        found.append(parent in led)
        led.add(parent)
    return found


def chosen(tokens: Items[int], parents: Items[int], places: Items[int]) -> tuple[list[int], list[int]]:
    """Only these of them, in this order; with each one what it follows, and before it."""
    new = {-1: -1} | {place: index for index, place in enumerate(places)}
    return [tokens[place] for place in places], simplified([new[parents[place]] for place in places])


def below(count: int, parents: Items[int], at: int) -> list[int]:
    """The places of all that follows the one at `at`, at once or later."""
    inside = {at}
    for place in range(at + 1, count):
        if parents[place] in inside:
            inside.add(place)
    inside.discard(at)
    return sorted(inside)


def fitting(draft: Draft, start: int, page_tokens: int, pages: int) -> tuple[Draft, int]:
    """The part of a tree that needs at most `pages` pages for its branches, and the pages it needs; `start`: the
    position of the token before it. The branch that begins last is dropped first."""
    while draft.parents and (needed := own_pages(draft.parents, start, page_tokens)):
        if needed <= pages:
            return draft, needed
        last = {row - 1 for row in branches_of(draft.parents)[-1].rows}
        draft = _picked(draft, [place for place in range(len(draft.tokens)) if place not in last])
    return draft, 0
