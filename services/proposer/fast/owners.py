"""The owner of a namespace, and the eviction of namespaces by owner: a caller may make any number of them, and must not
evict another caller's."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

_SLASH = "/"


def owner_of(key: str) -> str:
    """The part of a namespace's name before the slash, without its vocabulary; the whole name where there is none."""
    return key.rpartition("\n")[2].partition(_SLASH)[0]


def names_to_drop(
    names: Sequence[str], most: int, owner: Callable[[str], str], may_go: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """Names to evict until `most` are left, or none can go: each time the first name of the owner with most names."""
    counts = Counter(map(owner, names))
    waiting: dict[str, deque[str]] = {}
    for name in names:
        if may_go(name):
            waiting.setdefault(owner(name), deque()).append(name)
    gone: list[str] = []
    while waiting and len(names) - len(gone) > most:
        largest = max(waiting, key=lambda each: counts[each])
        gone.append(waiting[largest].popleft())
        counts[largest] -= 1
        if not waiting[largest]:
            del waiting[largest]
    return gone


def above_share(held: dict[str, int], most: int) -> set[str]:
    """Owners that hold more than an equal share of `most` bytes."""
    return {owner for owner, size in held.items() if size > most // max(1, len(held))}
