"""Texts that lie in no segment yet: those this process learns, and those that journals tell of.

A text belongs to a namespace and has a number within its process. It only grows. When a namespace is sealed, texts
that go on are cut there: what comes later is another text with a higher number, so that one number says what is in
segments and what isn't. Knows no files and no threads: whoever calls holds a lock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.proposer.suffix_store.journal import Origin, Record


@dataclass(slots=True, eq=False)
class Text:
    """`written` tokens of it are in the journal, from file number `file` on."""

    space: str
    number: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    written: int = 0
    file: int = 0
    origin: Origin | None = None


# Of a text, besides its tokens, in tokens: so many tiny ones take no more memory than is allowed.
PRICE = 64


class Told:
    """What one process's journal tells, as far as there is room: namespaces of which it told long ago go first."""

    def __init__(self, max_tokens: int, max_spaces: int) -> None:
        self._max_tokens, self._max_spaces = max_tokens, max_spaces
        self._held = 0
        self.spaces: dict[str, dict[int, Text]] = {}
        # Texts that this process took over from others: theirs need not be read.
        self.origins: set[Origin] = set()

    def hear(self, records: Iterable[Record]) -> None:
        for record in records:
            text = self.spaces.get(record.space, {}).get(record.text)
            if text is None:
                text = self._begin(record)
            before = len(text.tokens)
            # What begins further behind comes after a hole: nobody knows what stood there.
            if not record.at and not before:
                text.tokens = record.tokens
            elif record.at <= before:
                text.tokens.extend(record.tokens[before - record.at :])
            self._held += len(text.tokens) - before
            while len(self.spaces) > self._max_spaces or (self._held > self._max_tokens and len(self.spaces) > 1):
                self._drop(next(iter(self.spaces)))

    def covered(self, space: str, below: int) -> None:
        """Texts with lower numbers are in segments."""
        texts = self.spaces.get(space, {})
        for number in [number for number in texts if number < below]:
            self._held -= len(texts.pop(number).tokens) + PRICE

    def _begin(self, record: Record) -> Text:
        text = Text(record.space, record.text, origin=record.origin)
        if record.origin is not None:
            self.origins.add(record.origin)
        texts = self.spaces.pop(record.space, {})
        self.spaces[record.space] = texts
        texts[record.text] = text
        self._held += PRICE
        return text

    def _drop(self, space: str) -> None:
        self._held -= sum(len(text.tokens) + PRICE for text in self.spaces.pop(space).values())


class Learning:
    """What this process learns, of at most so many namespaces and tokens."""

    def __init__(self, max_tokens: int, max_spaces: int) -> None:
        self._max_tokens, self._max_spaces = max_tokens, max_spaces
        self._next = 1
        # The namespace that had no new text for the longest time comes first.
        self.spaces: dict[str, dict[int, Text]] = {}
        self._open: dict[tuple[str, int], Text] = {}
        self._unwritten: dict[Text, None] = {}
        # In all, also those that are becoming a segment.
        self.tokens = 0
        self._texts = 0
        # Tokens nobody had room for.
        self.dropped = 0

    def learn(self, space: str, text_id: int, tokens: Sequence[int]) -> None:
        """ValueError, OverflowError: those are no token ids."""
        if min(tokens) < 0:
            raise ValueError("token ids are not negative")
        text = self._open.get((space, text_id))
        if not self._has_room(len(tokens), text is None):
            # The rest of that text would stand behind a hole.
            self._open.pop((space, text_id), None)
            self.dropped += len(tokens)
            return
        if text is None:
            text = self._open[space, text_id] = self._begin(space)
        text.tokens.extend(tokens)
        self.tokens += len(tokens)
        self._unwritten[text] = None

    def end(self, space: str, text_id: int) -> None:
        self._open.pop((space, text_id), None)

    def take_over(self, text: Text, owner: str) -> None:
        """Another process's, which is gone. It was on disk and stays: whoever calls seals, when it is too much."""
        mine = self._begin(text.space)
        mine.tokens, mine.origin = text.tokens, (owner, text.number)
        self.tokens += len(text.tokens)
        self._unwritten[mine] = None

    def cut(self, space: str) -> tuple[list[Text], int]:
        """What there is of a namespace, to become a segment, and the number below which all of it lies."""
        for key in [key for key in self._open if key[0] == space]:
            del self._open[key]
        return list(self.spaces.pop(space, {}).values()), self._next

    def gone(self, texts: Iterable[Text]) -> None:
        """They are in a segment, or given up."""
        for text in texts:
            self.tokens -= len(text.tokens)
            self._texts -= 1
            self._unwritten.pop(text, None)

    def unwritten(self) -> list[Text]:
        """Each of them is to be written from `written` on; what is learned from now on is unwritten again."""
        found, self._unwritten = list(self._unwritten), {}
        return found

    def not_written(self, texts: Iterable[Text]) -> None:
        """It could not be. They come first the next time."""
        self._unwritten = dict.fromkeys(texts) | self._unwritten

    def unwritten_tokens(self) -> int:
        return sum(len(text.tokens) - text.written for text in self._unwritten)

    def texts(self) -> list[Text]:
        """Those that are not becoming a segment. Quick: others wait for the lock."""
        found: list[Text] = []
        for texts in self.spaces.values():
            found += texts.values()
        return found

    def to_seal(self) -> list[str]:
        """When half of the room is taken: namespaces, the largest first, until a quarter is."""
        held = self.tokens + PRICE * self._texts
        if held <= self._max_tokens // 2:
            return []
        sizes = {
            space: sum(len(text.tokens) + PRICE for text in texts.values()) for space, texts in self.spaces.items()
        }
        found = []
        for space in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if held <= self._max_tokens // 4:
                break
            held -= sizes[space]
            found.append(space)
        return found

    def _has_room(self, tokens: int, is_new: bool) -> bool:
        return self.tokens + tokens + PRICE * (self._texts + is_new) <= self._max_tokens

    def _begin(self, space: str) -> Text:
        text = Text(space, self._next)
        self._next += 1
        self._texts += 1
        texts = self.spaces.pop(space, {})
        self.spaces[space] = texts
        texts[text.number] = text
        if len(self.spaces) > self._max_spaces:
            oldest = next(iter(self.spaces))
            forgotten, _ = self.cut(oldest)
            self.dropped += sum(len(one.tokens) for one in forgotten)
            self.gone(forgotten)
        return text
