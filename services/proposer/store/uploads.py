"""Corpora that are being uploaded: their parts are in memory until the last one has come. Knows no files."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.api.messages import CorpusCard
from services.api.names import is_name
from services.proposer.store.files import StoredFile, owner_of_space
from services.proposer.store.policy import Bounds

_MOST_TEXTS = 1_000_000


class CorpusRefused(ValueError):
    """Why a corpus can't be taken, in words. `reason` is invalid where it never can, overloaded where others have to be
    removed first, or to be ready."""

    def __init__(self, message: str, reason: str = "invalid") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, eq=False)
class Upload:
    space: str
    name: str
    touched: float
    parts: int = 0
    tokens: int = 0
    texts: list[array[int]] = field(default_factory=list)
    complete: bool = False


class Uploads:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._uploads: dict[tuple[str, str], Upload] = {}

    def add(self, space: str, name: str, part: int, texts: Sequence[Sequence[int]], now: float) -> Upload:
        """CorpusRefused: nothing has changed."""
        if not is_name(name):
            raise CorpusRefused("a corpus has a name of 1 to 64 letters, digits, dots, dashes or underscores")
        upload = self._uploads.get((space, name))
        if upload is not None and upload.complete:
            raise CorpusRefused(f"corpus {name} is being written; try again when it is ready")
        # Part 0 starts again.
        if part == 0:
            upload = Upload(space, name, now)
        if upload is None or upload.parts != part:
            there = "none" if upload is None else f"{upload.parts}"
            raise CorpusRefused(f"part {part} of corpus {name} came, where {there} were there before")
        added = [self._text(text) for text in texts]
        tokens = sum(map(len, added))
        if upload.tokens + tokens > self._bounds.corpus_tokens or len(upload.texts) + len(added) > _MOST_TEXTS:
            self._uploads.pop((space, name), None)
            raise CorpusRefused(f"a corpus has at most {self._bounds.corpus_tokens} tokens and {_MOST_TEXTS} texts")
        others = {key: one.tokens for key, one in self._uploads.items() if key != (space, name)}
        own = sum(size for (one, _), size in others.items() if owner_of_space(one) == owner_of_space(space))
        more, most = upload.tokens + tokens, self._bounds.corpus_tokens
        if own + more > most or sum(others.values()) + more > 2 * most:
            raise CorpusRefused("too many corpora are being uploaded; try again when one is ready", "overloaded")
        upload.texts += [text for text in added if text]
        upload.tokens, upload.parts, upload.touched = upload.tokens + tokens, part + 1, now
        self._uploads[space, name] = upload
        return upload

    def _text(self, text: Sequence[int]) -> array[int]:
        try:
            found = array("i", text)
        except (OverflowError, TypeError):
            found = array("i", [-1])
        if found and min(found) < 0:
            raise CorpusRefused("texts are token ids: numbers from 0 to 2147483647")
        return found

    def complete(self) -> list[Upload]:
        return [upload for upload in self._uploads.values() if upload.complete]

    def remove(self, space: str, name: str) -> Upload | None:
        return self._uploads.pop((space, name), None)

    def done(self, upload: Upload) -> None:
        """Unless another upload has taken its name."""
        if self._uploads.get((upload.space, upload.name)) is upload:
            del self._uploads[upload.space, upload.name]

    def drop_old(self, now: float) -> None:
        for key, upload in list(self._uploads.items()):
            if not upload.complete and now - upload.touched > self._bounds.upload_seconds:
                del self._uploads[key]

    def spaces(self) -> set[str]:
        return {space for space, _ in self._uploads}

    def names(self, space: str) -> set[str]:
        return {name for one, name in self._uploads if one == space}

    def cards(self, space: str, files: list[StoredFile], progress: dict[tuple[str, str], float]) -> list[CorpusCard]:
        """Of a namespace, by name: an upload hides the corpus that it replaces, and so does one that is being built."""
        found: dict[str, CorpusCard] = {}
        for each in sorted(files, key=lambda each: _SHOWN.index(each.role)):
            if each.corpus:
                found[each.corpus] = _card(each, progress.get((space, each.corpus), 0.0))
        for (one, name), upload in self._uploads.items():
            if one == space:
                state = "building" if upload.complete else "receiving"
                found[name] = CorpusCard(name=name, state=state, texts=len(upload.texts), tokens=upload.tokens)
        return [found[name] for name in sorted(found)]


# The last one is the state of a corpus.
_SHOWN = ("learned", "ready", "failed", "source")


def _card(each: StoredFile, progress: float) -> CorpusCard:
    if each.role == "failed":
        return CorpusCard(name=each.corpus, state="failed", message=each.message)
    state, progress = ("ready", 1.0) if each.role == "ready" else ("building", progress)
    return CorpusCard(name=each.corpus, state=state, texts=each.texts, tokens=each.tokens, progress=progress)
