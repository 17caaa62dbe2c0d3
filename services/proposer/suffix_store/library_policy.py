"""Which segments are merged, and which have to go: decided from a manifest alone, without touching a file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.proposer.suffix_store.library_manifest import Manifest, SegmentEntry

# Segments are of one size when the larger has less than so many times the tokens; so many of a size become one.
_TIER = 4
_FIRST_TIER = 1024  # tokens
# Use is forgotten by half in such a time.
HALF_LIFE = 24 * 3600.0
# What a namespace costs besides its segments.
SPACE_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a library: in all, of one namespace, of the texts that are in no segment yet, of corpora."""

    max_bytes: int = 1 << 30
    max_namespaces: int = 1024
    max_tokens: int = 100_000_000  # of a namespace's segments
    max_segments: int = 8  # of a namespace
    journal_bytes: int = 64 << 20
    recent_tokens: int = 1_000_000  # that are given back to be replayed
    corpus_tokens: int = 32_000_000
    max_corpora: int = 64  # of a namespace
    upload_seconds: float = 600.0  # without another part

    @property
    def largest_segment(self) -> int:
        """So that one that goes is a small part, and so that few are enough: two of eight that can't be merged have
        more than this, so eight of them have two thirds of all."""
        return max(1, self.max_tokens // 6)

    @property
    def learning_tokens(self) -> int:
        """In memory, on their way into a segment: twice what fits into journals, at four bytes each."""
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
    """Four of a size; or, when there are too many, the two smallest. Nothing larger than is allowed comes of it."""
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
    """What has to go of one namespace, when nothing can be merged any more."""
    left = by_worth(manifest.segments, now)
    gone = []
    while left and (
        sum(entry.tokens for entry in left) > bounds.max_tokens
        or (len(left) > bounds.max_segments and not to_merge(Manifest(segments=left), bounds))
    ):
        gone.append(left.pop(0))
    return gone


def by_worth(entries: Iterable[SegmentEntry], now: float) -> list[SegmentEntry]:
    """Least used first, of equally used ones the oldest. The newest comes last: nobody had time to use it."""
    found = sorted(entries, key=lambda entry: worth(entry, now))
    newest = max(found, key=lambda entry: entry.born, default=None)
    if newest is not None:
        found.remove(newest)
        found.append(newest)
    return found


def worth(entry: SegmentEntry, now: float) -> tuple[int, float]:
    """Twice as often used is more; a little more often is the same."""
    return int(math.log2(1 + use_now(entry, now))), entry.born


def to_make_room(manifests: dict[str, Manifest], too_many: int, now: float) -> list[tuple[str, SegmentEntry]]:
    """Of all namespaces, until so many bytes are gone. Corpora stay: somebody wants just those."""
    order: list[tuple[bool, tuple[int, float], str, SegmentEntry]] = []
    for name, manifest in manifests.items():
        entries = by_worth(manifest.segments, now)
        order += [(entry is entries[-1], worth(entry, now), name, entry) for entry in entries]
    gone = []
    for _, _, name, entry in sorted(order, key=lambda one: one[:3]):
        if too_many <= 0:
            break
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
