"""The files of a library: made, named in the database, opened. A file counts once the database names it."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from services.proposer.segments.segment import Segment, SegmentDamaged, merge
from services.proposer.store.database import Database, Outdated, StoredPiece
from services.proposer.store.files import Role, StoredFile
from services.proposer.store.folder import LibraryFolder
from services.proposer.store.state import Space, StoreState
from services.proposer.store.steps import Stopped

log = logging.getLogger(__name__)

# Told the number of tokens done.
Progress = Callable[[int], None]


class Shelf:
    """`stopped`: the library is being closed; then `build` and `merged` raise Stopped."""

    def __init__(
        self, folder: LibraryFolder, database: Database, state: StoreState, stopped: Callable[[], bool]
    ) -> None:
        self._folder, self._database, self._state, self._stopped = folder, database, state, stopped

    def look(self) -> None:
        """What has changed in the database, by whomever."""
        with self._database.lock:
            files = self._database.look()
            if files is not None:
                with self._state.lock:
                    self._state.see(files)

    def open_missing(self) -> None:
        """Opens segments that were asked for."""
        with self._state.lock:
            missing = [file for space in self._state.spaces.values() for file in space.missing()]
        for file in missing:
            segment = self.opened(file)
            if segment is not None:
                with self._state.lock:
                    self._state.has_opened(segment)

    def opened(self, file: StoredFile) -> Segment | None:
        """None when it is gone, or damaged: then it is removed from the database. OSError: it may work later."""
        try:
            return Segment.open(self._folder.segments / file.file, self._folder.vocabulary, file.space)
        except (SegmentDamaged, FileNotFoundError) as error:
            self.lost(file, error)
            return None

    def lost(self, file: StoredFile, error: Exception) -> None:
        failed = [self.file(file.space, "failed", file.corpus, message="its file was damaged")]
        # Another process may have merged or removed it.
        with suppress(Outdated):
            self.commit(failed if file.corpus else [], [file])
            log.error("a file of namespace %s is lost: %s", file.space, error)
            with self._state.lock:
                self._state.counts.damaged += 1

    def forget_released(self) -> None:
        with self._state.lock:
            released, self._state.released = self._state.released, []
        released.clear()

    def commit(
        self,
        add: Sequence[StoredFile],
        remove: Sequence[StoredFile],
        sealed: tuple[str, Sequence[StoredPiece]] | None = None,
        made: Sequence[Segment] = (),
    ) -> None:
        """Segments made are open from now on. After an error there is no file of `add`."""
        try:
            self._database.change(add, remove, sealed=sealed)
        except Exception:
            for each in add:
                (self._folder.segments / each.file).unlink(missing_ok=True)
            raise
        self.look()
        with self._state.lock:
            for segment in made:
                self._state.has_opened(segment)

    def file(
        self, space: str, role: Role, corpus: str = "", segment: Segment | None = None, message: str = ""
    ) -> StoredFile:
        name, now = segment.path.name if segment else self._folder.new_name(role), self._state.now()
        tokens, texts, size = (segment.tokens, segment.texts, segment.held_bytes()) if segment else (0, 0, 0)
        return StoredFile(name, space, role, corpus, tokens, texts, size, now, message)

    def build(
        self, texts: Sequence[array[int]], most: int, space: str, role: Role, progress: Progress = lambda tokens: None
    ) -> list[Segment]:
        """Segments within the limit of tokens; longer texts are cut. If one can't be made, all are deleted."""
        made: list[Segment] = []
        try:
            for some in portions(texts, most):
                self._go_on()
                path = self._folder.segments / self._folder.new_name(role)
                made.append(Segment.build(some, path, self._folder.vocabulary, space))
                progress(sum(segment.tokens for segment in made))
        except Exception:
            unlink(made)
            raise
        return made

    def merged(self, segments: Sequence[Segment], role: Role, progress: Progress = lambda tokens: None) -> Segment:
        def go_on(tokens: int, of: int) -> None:
            self._go_on()
            progress(tokens)

        return merge(segments, self._folder.segments / self._folder.new_name(role), go_on)

    def _go_on(self) -> None:
        if self._stopped():
            raise Stopped

    def files(self, space: str) -> list[StoredFile]:
        with self._state.lock:
            return self._state.spaces.get(space, Space()).files


def unlink(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.path.unlink(missing_ok=True)


def portions(texts: Sequence[array[int]], most: int) -> Iterator[list[array[int]]]:
    """Of at most `most` tokens each; longer texts are cut. Of no text there is one portion."""
    portion: list[array[int]] = []
    room = most
    for text in texts:
        begin = 0
        while begin < len(text):
            # A text that fits into the next one isn't cut.
            if room < len(text) - begin <= most:
                room = 0
            if not room:
                yield portion
                portion, room = [], most
            some = text[begin : begin + room]
            portion.append(some)
            begin, room = begin + len(some), room - len(some)
    if portion or not texts:
        yield portion
