"""Which segments are merged, and which are evicted: decided from manifests alone, without touching a file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.proposer.fast.library.folder import owner_of_space
from services.proposer.fast.library.manifest import Manifest, SegmentEntry
from services.proposer.fast.owners import above_share, names_to_drop

# Segments are in one tier when the larger has less than this many times the tokens; this many of a tier are merged.
_TIER = 4
_FIRST_TIER = 1024  # tokens
# In this time the use of a segment counts half.
HALF_LIFE = 24 * 3600.0
# What a namespace costs besides its segments.
SPACE_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a library, in all unless a comment says otherwise."""

    max_bytes: int = 1 << 30
    max_namespaces: int = 1024
    max_tokens: int = 100_000_000  # of a namespace's segments
    max_segments: int = 8  # of a namespace
    journal_bytes: int = 64 << 20
    recent_tokens: int = 1_000_000  # that are given back to be replayed
    corpus_tokens: int = 32_000_000
    max_corpora: int = 64  # of a namespace
    max_corpora_namespaces: int = 64  # of an owner
    upload_seconds: float = 600.0  # without another part

    @property
    def largest_segment(self) -> int:
        """Small enough that an evicted one is a small part; large enough that eight hold two thirds of all: any two
        that can't be merged have more than this together."""
        return max(1, self.max_tokens // 6)

    @property
    def corpora_bytes(self) -> int:
        """Of all owners: learned text has the rest."""
        return self.max_bytes // 2

    @property
    def owner_corpora_bytes(self) -> int:
        return self.max_bytes // 4

    @property
    def learning_tokens(self) -> int:
        """In memory, in no segment yet: twice what fits into journals, at four bytes each."""
        return self.journal_bytes // 2


def use_now(entry: SegmentEntry, now: float) -> float:
    return float(entry.use * 0.5 ** (max(0.0, now - entry.used_at) / HALF_LIFE))


def add_use(entry: SegmentEntry, tokens: float, now: float) -> None:
    entry.use, entry.used_at = use_now(entry, now) + tokens, now


def merged_entry(entries: list[SegmentEntry], file: str, tokens: int, size: int, now: float) -> SegmentEntry:
    weight = max(1, sum(entry.tokens for entry in entries))
    return SegmentEntry(
        file=file,
        tokens=tokens,
        texts=sum(entry.texts for entry in entries),
        bytes=size,
        born=sum(entry.born * entry.tokens for entry in entries) / weight,
        use=sum(use_now(entry, now) for entry in entries),
        used_at=now,
    )


def to_merge(manifest: Manifest, bounds: Bounds) -> list[SegmentEntry]:
    """Four of a tier; or, with too many segments, the two smallest. The result is never larger than allowed."""
    by_size = sorted(manifest.segments, key=lambda entry: entry.tokens)
    tiers: dict[int, list[SegmentEntry]] = {}
    for entry in by_size:
        tiers.setdefault(_tier(entry.tokens), []).append(entry)
    for tier in sorted(tiers):
        some = _that_fit(tiers[tier], bounds.largest_segment)
        if len(some) >= _TIER:
            return some
    if len(by_size) > bounds.max_segments:
        return _that_fit(by_size[:2], bounds.largest_segment) if len(by_size) > 1 else []
    return []


def too_much(manifest: Manifest, bounds: Bounds, now: float) -> list[SegmentEntry]:
    """What is evicted from one namespace when nothing can be merged."""
    left = by_worth(manifest.segments, now)
    gone = []
    while left and (
        sum(entry.tokens for entry in left) > bounds.max_tokens
        or (len(left) > bounds.max_segments and not to_merge(Manifest(segments=left), bounds))
    ):
        gone.append(left.pop(0))
    return gone


def by_worth(entries: Iterable[SegmentEntry], now: float) -> list[SegmentEntry]:
    """Least used first, of equally used ones the oldest. The newest is last: there was no time to use it."""
    found = sorted(entries, key=lambda entry: worth(entry, now))
    newest = max(found, key=lambda entry: entry.born, default=None)
    if newest is not None:
        found.remove(newest)
        found.append(newest)
    return found


def worth(entry: SegmentEntry, now: float) -> tuple[int, float]:
    """Use counts by powers of two, so that a little more use is no more than age."""
    return int(math.log2(1 + use_now(entry, now))), entry.born


def namespaces_to_drop(manifests: dict[str, Manifest], most: int) -> list[str]:
    """Until `most` are left: again and again the least recently used one of the owner with most namespaces. Namespaces
    with corpora stay."""
    by_use = sorted(manifests, key=lambda name: manifests[name].used_at)
    return names_to_drop(by_use, most, owner_of_space, lambda name: not manifests[name].corpora)


def to_make_room(manifests: dict[str, Manifest], too_many: int, now: float) -> list[tuple[str, SegmentEntry]]:
    """Segments to evict until `too_many` bytes are gone: the least used of those owners that hold more than an equal
    share of what is to be left. Corpora stay."""
    order: list[tuple[bool, tuple[int, float], str, SegmentEntry]] = []
    held: dict[str, int] = {}
    for name, manifest in manifests.items():
        entries = by_worth(manifest.segments, now)
        order += [(entry is entries[-1], worth(entry, now), name, entry) for entry in entries]
        owner = owner_of_space(name)
        held[owner] = held.get(owner, 0) + manifest.bytes()
    order.sort(key=lambda one: one[:3])
    left = sum(held.values()) - too_many
    gone: list[tuple[str, SegmentEntry]] = []
    while too_many > 0 and order:
        large = above_share(held, left)
        at = next((at for at, one in enumerate(order) if owner_of_space(one[2]) in large), 0)
        _, _, name, entry = order.pop(at)
        held[owner_of_space(name)] -= entry.bytes
        too_many -= entry.bytes
        gone.append((name, entry))
    return gone


def _tier(tokens: int) -> int:
    tier = 0
    while tokens > _FIRST_TIER:
        tokens //= _TIER
        tier += 1
    return tier


def _that_fit(by_size: list[SegmentEntry], tokens: int) -> list[SegmentEntry]:
    some: list[SegmentEntry] = []
    for entry in by_size:
        if entry.tokens > tokens:
            break
        tokens -= entry.tokens
        some.append(entry)
    return some if len(some) > 1 else []
