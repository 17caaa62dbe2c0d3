"""Texts that are in no segment yet: those that this process learns, and those in others' journals.

A text belongs to a namespace, has a number within its process, and only grows. When a namespace is sealed, running
texts are cut: what comes later is another text with a higher number, so that one number separates what is in segments
from what isn't. Knows no files and no threads: the caller holds a lock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.proposer.fast.library.folder import owner_of_space
from services.proposer.fast.library.journal import Origin, Record
from services.proposer.fast.owners import names_to_drop


@dataclass(slots=True, eq=False)
class Text:
    """`written` tokens of it are in the journal, from file number `file` on."""

    space: str
    number: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    written: int = 0
    file: int = 0
    origin: Origin | None = None


# Memory of a text besides its tokens, in tokens: it bounds tiny texts, too.
PRICE = 64


def _first_to_go(spaces: Iterable[str]) -> str:
    """Of the owner with most namespaces, the one without new text for the longest time."""
    [first] = names_to_drop(names := list(spaces), len(names) - 1, owner_of_space)
    return first


class OtherTexts:
    """Texts of another process's journal, within bounds."""

    def __init__(self, max_tokens: int, max_spaces: int) -> None:
        self._max_tokens, self._max_spaces = max_tokens, max_spaces
        self._held = 0
        self.spaces: dict[str, dict[int, Text]] = {}
        # Texts that it took over from others, whose journals need not be read for them.
        self.origins: set[Origin] = set()

    def read(self, records: Iterable[Record]) -> None:
        for record in records:
            text = self.spaces.get(record.space, {}).get(record.text)
            if text is None:
                text = self._begin(record)
            before = len(text.tokens)
            # A record that starts further on comes after a gap, and is ignored.
            if not record.at and not before:
                text.tokens = record.tokens
            elif record.at <= before:
                text.tokens.extend(record.tokens[before - record.at :])
            self._held += len(text.tokens) - before
            while len(self.spaces) > self._max_spaces or (self._held > self._max_tokens and len(self.spaces) > 1):
                self._drop(_first_to_go(self.spaces))

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
    """What this process learns, within bounds of namespaces and tokens."""

    def __init__(self, max_tokens: int, max_spaces: int) -> None:
        self._max_tokens, self._max_spaces = max_tokens, max_spaces
        self._next = 1
        # The namespace without new text for the longest time is first.
        self.spaces: dict[str, dict[int, Text]] = {}
        self._open: dict[tuple[str, int], Text] = {}
        self._unwritten: dict[Text, None] = {}
        # In all, also those that are becoming a segment.
        self.tokens = 0
        self._texts = 0
        # Tokens that there was no room for.
        self.dropped = 0

    def learn(self, space: str, text_id: int, tokens: Sequence[int]) -> None:
        """ValueError, OverflowError: those are no token ids."""
        if min(tokens) < 0:
            raise ValueError("token ids are not negative")
        text = self._open.get((space, text_id))
        if not self._has_room(len(tokens), text is None):
            # The rest of the text would come after a gap.
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
        """A text of a dead process. It is taken even if there is no room: the caller seals then."""
        mine = self._begin(text.space)
        mine.tokens, mine.origin = text.tokens, (owner, text.number)
        self.tokens += len(text.tokens)
        self._unwritten[mine] = None

    def cut(self, space: str) -> tuple[list[Text], int]:
        """The texts of a namespace, to become a segment, and the number below which all of them are."""
        for key in [key for key in self._open if key[0] == space]:
            del self._open[key]
        return list(self.spaces.pop(space, {}).values()), self._next

    def gone(self, texts: Iterable[Text]) -> None:
        """They are in a segment, or dropped."""
        for text in texts:
            self.tokens -= len(text.tokens)
            self._texts -= 1
            self._unwritten.pop(text, None)

    def unwritten(self) -> list[Text]:
        """Texts to be written, each from `written` on. Those that grow from now on are unwritten again."""
        found, self._unwritten = list(self._unwritten), {}
        return found

    def not_written(self, texts: Iterable[Text]) -> None:
        """Writing failed: they come first the next time."""
        self._unwritten = dict.fromkeys(texts) | self._unwritten

    def unwritten_tokens(self) -> int:
        return sum(len(text.tokens) - text.written for text in self._unwritten)

    def texts(self) -> list[Text]:
        """Those that are not becoming a segment."""
        found: list[Text] = []
        for texts in self.spaces.values():
            found += texts.values()
        return found

    def to_seal(self) -> list[str]:
        """When half of the room is taken: namespaces to seal, the largest first, until a quarter is taken."""
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
            forgotten, _ = self.cut(_first_to_go(self.spaces))
            self.dropped += sum(len(one.tokens) for one in forgotten)
            self.gone(forgotten)
        return text
