"""The manifest of a namespace names its segments and corpora: a small file, replaced as a whole, checked when it is
read.

Its text is written twice, each with a checksum, so that one flipped bit loses nothing.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

# A file of a namespace: who made it, and which it is of theirs.
_FILE = re.compile(r"[0-9a-f]{16}-\d{8}\.(segment|texts)")


class SegmentEntry(msgspec.Struct):
    file: str
    tokens: int
    texts: int
    bytes: int
    # Mean time at which its text was learned.
    born: float
    # Accepted tokens that were drafted from it, decayed up to `used_at`.
    use: float = 0.0
    used_at: float = 0.0


class CorpusEntry(msgspec.Struct):
    """`ready` is the corpus, `source` the texts of one that is to replace it; `message` says why that can't be
    built."""

    ready: SegmentEntry | None = None
    source: SegmentEntry | None = None
    message: str = ""


class Manifest(msgspec.Struct):
    segments: list[SegmentEntry] = []
    corpora: dict[str, CorpusEntry] = {}
    # Of each process with a journal: its texts with lower numbers are in segments, or dropped.
    covered: dict[str, int] = {}
    # When it was last read or added to.
    used_at: float = 0.0

    def entries(self) -> list[SegmentEntry]:
        corpora = [entry for corpus in self.corpora.values() for entry in (corpus.ready, corpus.source) if entry]
        return [*self.segments, *corpora]

    def files(self) -> set[str]:
        return {entry.file for entry in self.entries()}

    def readable(self) -> list[SegmentEntry]:
        """Those whose files are segments."""
        return [*self.segments, *(corpus.ready for corpus in self.corpora.values() if corpus.ready)]

    def corpora_bytes(self) -> int:
        return self.bytes() - sum(entry.bytes for entry in self.segments)

    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries())

    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.segments)


class ManifestDamaged(Exception):
    """Neither copy is intact."""


def encode(manifest: Manifest) -> bytes:
    text = msgspec.json.encode(manifest)
    return (_check(text) + b" " + text + b"\n") * 2


def decode(data: bytes) -> Manifest:
    """ManifestDamaged: neither copy is what was written."""
    half = len(data) // 2
    # The damage may be at the end of the first line; and a file that was cut still has that line.
    for line in (data[:half], data[half:], *data.split(b"\n")):
        check, _, text = line.rstrip(b"\n").partition(b" ")
        if text and check == _check(text):
            try:
                manifest = msgspec.json.decode(text, type=Manifest)
            except msgspec.MsgspecError as error:
                raise ManifestDamaged(str(error)) from None
            if not all(map(_FILE.fullmatch, manifest.files())):
                raise ManifestDamaged("it names a file that none of us makes")
            return manifest
    raise ManifestDamaged("its check doesn't agree")


def _check(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
