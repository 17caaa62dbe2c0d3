"""Which segments are merged, and which are evicted: decided without touching a file."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from services.proposer.names import names_to_drop
from services.proposer.store.files import StoredFile, learned, owner_of_space, total_bytes, total_tokens

# Segments are in one tier when the larger has less than this many times the tokens; this many of a tier are merged.
_TIER = 4
_FIRST_TIER = 1024  # tokens


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a library, in all unless a comment says otherwise."""

    max_bytes: int = 1 << 30
    max_namespaces: int = 1024
    max_tokens: int = 100_000_000  # of a namespace's segments
    max_segments: int = 8  # of a namespace
    unsealed_bytes: int = 64 << 20  # of text in no segment yet
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
        """In no segment yet: half of them are `unsealed_bytes`, or a quarter of all, at four bytes each. Then some
        become segments."""
        return min(self.unsealed_bytes, self.max_bytes // 4) // 2


def merged(files: list[StoredFile], file: str, tokens: int, size: int) -> StoredFile:
    weight = max(1, total_tokens(files))
    return msgspec.structs.replace(
        files[0],
        file=file,
        tokens=tokens,
        texts=sum(each.texts for each in files),
        bytes=size,
        born=sum(each.born * each.tokens for each in files) / weight,
    )


def to_merge(segments: list[StoredFile], bounds: Bounds) -> list[StoredFile]:
    """Four of a tier; or, with too many segments, the two smallest. The result is never larger than allowed."""
    by_size = sorted(segments, key=lambda each: each.tokens)
    tiers: dict[int, list[StoredFile]] = {}
    for each in by_size:
        tiers.setdefault(_tier(each.tokens), []).append(each)
    for tier in sorted(tiers):
        some = _that_fit(tiers[tier], bounds.largest_segment)
        if len(some) >= _TIER:
            return some
    if len(by_size) > bounds.max_segments:
        return _that_fit(by_size[:2], bounds.largest_segment) if len(by_size) > 1 else []
    return []


def too_much(segments: list[StoredFile], bounds: Bounds) -> list[StoredFile]:
    """What is evicted from one namespace when nothing can be merged: the oldest."""
    left = sorted(segments, key=_age)
    gone = []
    while left and (
        total_tokens(left) > bounds.max_tokens
        or (len(left) > bounds.max_segments and not to_merge(left, bounds))
    ):  # fmt: skip
        gone.append(left.pop(0))
    return gone


def _age(file: StoredFile) -> tuple[float, str]:
    return file.born, file.space


def namespaces_to_drop(spaces: dict[str, list[StoredFile]], most: int) -> list[str]:
    """Until `most` are left: again and again that of the owner with most namespaces in which nothing was learned for
    the longest time. Namespaces with corpora stay."""
    by_age = sorted(spaces, key=lambda name: max(map(_age, spaces[name])))
    return names_to_drop(by_age, most, owner_of_space, lambda name: spaces[name] == learned(spaces[name]))


def to_make_room(spaces: dict[str, list[StoredFile]], too_many: int) -> list[StoredFile]:
    """Segments to evict until `too_many` bytes are gone: the oldest of those owners that hold more than an equal share
    of what is to be left. Corpora stay."""
    held: dict[str, int] = {}
    for name, files in spaces.items():
        held[owner_of_space(name)] = held.get(owner_of_space(name), 0) + total_bytes(files)
    order = sorted((each for files in spaces.values() for each in learned(files)), key=_age)
    left = sum(held.values()) - too_many
    gone: list[StoredFile] = []
    while too_many > 0 and order:
        large = {owner for owner, size in held.items() if size > left // max(1, len(held))}
        at = next((at for at, each in enumerate(order) if owner_of_space(each.space) in large), 0)
        each = order.pop(at)
        held[owner_of_space(each.space)] -= each.bytes
        too_many -= each.bytes
        gone.append(each)
    return gone


def to_seal(sizes: dict[str, int], most: int) -> list[str]:
    """When half of the room for text in no segment is taken: namespaces to seal, the largest first, until a quarter
    is."""
    left = sum(sizes.values())
    found: list[str] = []
    if left > most // 2:
        for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if left <= most // 4:
                break
            left -= sizes[name]
            found.append(name)
    return found


def _tier(tokens: int) -> int:
    tier = 0
    while tokens > _FIRST_TIER:
        tokens //= _TIER
        tier += 1
    return tier


def _that_fit(by_size: list[StoredFile], tokens: int) -> list[StoredFile]:
    some: list[StoredFile] = []
    for each in by_size:
        if each.tokens > tokens:
            break
        tokens -= each.tokens
        some.append(each)
    return some if len(some) > 1 else []
