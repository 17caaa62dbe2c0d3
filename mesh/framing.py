"""Messages on a stream of bytes: how many frames, how long each of them is, and then they, one behind the other.

    u16 frames │ u16 where │ u32 length, for each │ the frames

`where` is the processor that the sender runs on, plus 1; 0 when it doesn't say.

Numbers are little-endian. Knows no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mesh.errors import Malformed
from mesh.transport import Frame, Limits

WORD = 4
# Taken from a socket at once. More than twice of it would be fresh pages for each message.
PIECE = 64 * 1024
# How a message of one frame begins, and one of two.
_ONE, _TWO = struct.Struct("<HHI"), struct.Struct("<HHII")


def framed(frames: Sequence[Frame], processor: int = -1) -> bytes:
    # Most are like this, and somebody waits for them.
    count = len(frames)
    if count == 1 and type(frame := frames[0]) is bytes:
        return _ONE.pack(1, processor + 1, len(frame)) + frame
    if count == 2 and type(frame := frames[0]) is bytes and type(second := frames[1]) is bytes:
        return b"".join((_TWO.pack(2, processor + 1, len(frame), len(second)), frame, second))
    # A view of wider items has fewer of them than bytes.
    lengths = [len(frame) if type(frame) is bytes else memoryview(frame).nbytes for frame in frames]
    return b"".join((struct.pack(f"<HH{count}I", count, processor + 1, *lengths), *frames))


class Reassembly:
    """What comes in pieces, as the messages that it is. Holds no more than one message and a piece."""

    def __init__(self, limits: Limits) -> None:
        """A message may be as long as one frame elsewhere."""
        self._most_frames = limits.frames + 1
        self._most_bytes = limits.frame_bytes
        # Of the sender of the last message; -1: it didn't say.
        self.processor = -1
        self._held = bytearray()
        # Before there are so many, nothing is complete.
        self._wanted = WORD

    def feed(self, piece: bytes) -> list[list[bytes]]:
        """The messages that are complete now. Raises Malformed: nothing that follows can be understood."""
        if self._held:
            self._held += piece
            if len(self._held) < self._wanted:
                return []
            piece = bytes(self._held)
            self._held.clear()
        size = len(piece)
        if _ONE.size <= size <= self._most_bytes:
            count, where, length = _ONE.unpack_from(piece)
            if count == 1 and length == size - _ONE.size:
                # One message of one frame and nothing else, as most pieces are.
                self.processor = where - 1
                return [[piece[_ONE.size :]]]
        messages, at = [], 0
        while at < size and (found := self._first(piece, at)) is not None:
            message, at = found
            messages.append(message)
        if at < size:
            self._held += memoryview(piece)[at:]
        return messages

    def _first(self, piece: bytes, at: int) -> tuple[list[bytes], int] | None:
        """The message that begins there, and where it ends."""
        self._wanted = WORD
        if len(piece) - at < WORD:
            return None
        count, where = struct.unpack_from("<HH", piece, at)
        if count > self._most_frames:
            raise Malformed(f"a message of {count} frames")
        self._wanted += count * WORD
        if len(piece) - at < self._wanted:
            return None
        lengths = struct.unpack_from(f"<{count}I", piece, at + WORD)
        at_frame = at + self._wanted
        self._wanted += sum(lengths)
        if self._wanted > self._most_bytes:
            raise Malformed(f"a message of {self._wanted} bytes")
        if len(piece) - at < self._wanted:
            return None
        self.processor = where - 1
        message = []
        for length in lengths:
            message.append(piece[at_frame : at_frame + length])
            at_frame += length
        return message, at_frame
