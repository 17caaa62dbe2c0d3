"""What the database says of a file: learned text or a corpus of a namespace. On disk a namespace is a *space*: a hash.

What is read from a disk is checked against these types as if a stranger had written it.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.proposer.names import owner_of

SpaceName = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
# A segment of learned text; the segment of a corpus; texts of a corpus that is to be built; and in place of a file:
# a corpus can't be built.
Role = Literal["learned", "ready", "source", "failed"]


class StoredFile(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    file: Annotated[str, Meta(pattern=r"^[0-9a-f]{24}\.(learned|ready|source|failed)$")]
    space: SpaceName
    role: Role
    corpus: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")]
    tokens: _Count
    texts: _Count
    bytes: _Count
    # Mean time at which its text was learned.
    born: _Number
    # Why a corpus has failed.
    message: Annotated[str, Meta(max_length=200)] = ""


def learned(files: list[StoredFile]) -> list[StoredFile]:
    return [each for each in files if each.role == "learned"]


def total_bytes(files: list[StoredFile]) -> int:
    return sum(each.bytes for each in files)


def total_tokens(files: list[StoredFile]) -> int:
    return sum(each.tokens for each in files)


@functools.lru_cache(4096)
def space_of(namespace: str) -> str:
    """A hash of its owner, then of its name. Names may be secrets."""
    return _hash(owner_of(namespace)) + _hash(namespace)


def owner_of_space(space: str) -> str:
    return space[: len(space) // 2]


def _hash(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
