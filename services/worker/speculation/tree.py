"""A draft that may be a tree: its tokens, and of each the one it follows (-1: the text). No parents: a chain, each
token follows the one before it. Parents stand before what follows them, and no two tokens that follow one thing are
alike. Pure functions; what a tree is worth is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from models.branches import branches_of, own_pages

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
    """Of each token how many stand if it does."""
    if not parents:
        return list(range(1, count + 1))
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def reach(tokens: Items[int], parents: Items[int]) -> int:
    """How many tokens of it can stand."""
    return max(depths(len(tokens), parents), default=0)


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
    """The tokens from the root on, always the first of those that follow: the likeliest, where they stand in order."""
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


def fitting(
    tokens: list[int], parents: list[int], start: int, page_tokens: int, pages: int
) -> tuple[list[int], list[int], int]:
    """As much of a tree as so many pages for branches allow, and how many it takes; `start`: where the token before
    it stands. The branch that begins last goes first."""
    while parents and (needed := own_pages(parents, start, page_tokens)):
        if needed <= pages:
            return tokens, parents, needed
        last = {row - 1 for row in branches_of(parents)[-1].rows}
        tokens, parents = chosen(tokens, parents, [place for place in range(len(tokens)) if place not in last])
    return tokens, parents, 0
