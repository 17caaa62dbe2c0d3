"""Which segments and corpora a namespace has: one small file, replaced as a whole, and checked when it is read.

Its text stands there twice, each with a check of its own: one flipped bit is no loss.
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
    # When what is in it was learned, on the average.
    born: float
    # Tokens accepted from it, as of then; it decays.
    use: float = 0.0
    used_at: float = 0.0


class CorpusEntry(msgspec.Struct):
    """`ready` is what there is, `source` the texts of what is to replace it, or `message` why that can't be built."""

    ready: SegmentEntry | None = None
    source: SegmentEntry | None = None
    message: str = ""


class Manifest(msgspec.Struct):
    segments: list[SegmentEntry] = []
    corpora: dict[str, CorpusEntry] = {}
    # Of each process that has a journal: its texts with lower numbers are in segments, or gone.
    covered: dict[str, int] = {}
    # When somebody last looked at it, or added to it.
    used_at: float = 0.0

    def entries(self) -> list[SegmentEntry]:
        corpora = [entry for corpus in self.corpora.values() for entry in (corpus.ready, corpus.source) if entry]
        return [*self.segments, *corpora]

    def files(self) -> set[str]:
        return {entry.file for entry in self.entries()}

    def readable(self) -> list[SegmentEntry]:
        """Those whose files are segments."""
        return [*self.segments, *(corpus.ready for corpus in self.corpora.values() if corpus.ready)]

    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries())

    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.segments)


class ManifestDamaged(Exception):
    """Nobody knows what it said."""


def encode(manifest: Manifest) -> bytes:
    text = msgspec.json.encode(manifest)
    return (_check(text) + b" " + text + b"\n") * 2


def decode(data: bytes) -> Manifest:
    """ManifestDamaged when neither of both is what was written."""
    half = len(data) // 2
    # The end of a line may be what has flipped; and a file that was cut has the first line still.
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
