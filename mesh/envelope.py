"""Records of the mesh protocol and the bundles they travel in (docs/protocol.md). Knows no sockets, no actors.

A bundle is one transport message: frame 0 is `[version, epoch, to_epoch, [record, ...]]` as msgpack, then the
raw frames of its records, in their order. Everything one side has for the other at the end of a loop tick is
one bundle. A record is `[op, ...]`; op says what it is and who may send it:

    dialler -> acceptor   Hello Tell Ask Open Acks Cancel Farewell
    acceptor -> dialler   Welcome Reply Failure Opened Item End Gone Farewell

Bodies are opaque here: bytes with the name of their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from mesh.errors import Malformed
from mesh.transport import Frame

VERSION = 1
MAX_RECORDS = 4096
# A bundle is closed when it holds this much; a single larger record still goes, alone.
BUNDLE_BYTES = 256 * 1024
BUNDLE_RECORDS = 512


class Record(msgspec.Struct, array_like=True, gc=False):
    """Base of all records. `raw` holds the frames that follow, never part of frame 0."""

    raw: ClassVar[Sequence[Frame]] = ()


class Hello(Record, tag=1):
    """Opens a session or keeps it alive."""

    name: str
    epoch: int
    flags: int = 0


class Tell(Record, tag=2):
    id: int
    actor: str
    kind: str
    body: bytes
    trace: str = ""
    frames: int = 0


class Ask(Record, tag=3):
    id: int
    actor: str
    kind: str
    deadline_ms: int
    body: bytes
    trace: str = ""
    frames: int = 0


class Open(Record, tag=4):
    """Starts a stream. At most `window` bytes of items may be on their way or unread."""

    id: int
    actor: str
    kind: str
    deadline_ms: int
    window: int
    body: bytes
    trace: str = ""
    frames: int = 0


class Acks(Record, tag=5):
    """Per stream three numbers: id, the last item received in order, bytes read so far. All cumulative."""

    numbers: list[int]


class Cancel(Record, tag=6):
    ids: list[int]


class Welcome(Record, tag=11):
    """Answers Hello. Another `session` than before: the acceptor has forgotten what was open."""

    name: str
    epoch: int
    session: int


class Reply(Record, tag=12):
    id: int
    kind: str
    body: bytes
    frames: int = 0


class Failure(Record, tag=13):
    """The bad end of an ask."""

    id: int
    reason: str
    message: str


class Opened(Record, tag=14):
    ids: list[int]


class Item(Record, tag=15):
    id: int
    seq: int
    kind: str
    body: bytes
    frames: int = 0


class End(Record, tag=16):
    """The end of a stream, with a sequence number like an item. `reason` empty: the good one."""

    id: int
    seq: int
    reason: str = ""
    message: str = ""


class Gone(Record, tag=17):
    """These calls are not running here (any more); answers Cancel, and what comes again after its end."""

    ids: list[int]


class Farewell(Record, tag=20):
    """The sender leaves. Answered by Farewell, after which everything before is known to have arrived."""

    reason: str = ""


# A record with raw frames carries them in its __dict__; it looks the same on the wire.
class TellWithFrames(Tell, tag=2, dict=True, gc=True):
    pass


class AskWithFrames(Ask, tag=3, dict=True, gc=True):
    pass


class OpenWithFrames(Open, tag=4, dict=True, gc=True):
    pass


class ReplyWithFrames(Reply, tag=12, dict=True, gc=True):
    pass


class ItemWithFrames(Item, tag=15, dict=True, gc=True):
    pass


# Flags of Hello.
RESUME = 1  # the connection was lost: send again what is not acknowledged
BLOCKING = 2  # reads only while it waits for an answer: do not wait for its Farewell

ToAcceptor = Hello | Tell | Ask | Open | Acks | Cancel | Farewell
ToDialler = Welcome | Reply | Failure | Opened | Item | End | Gone | Farewell


class AcceptorBundle(msgspec.Struct, array_like=True, gc=False):
    """What an acceptor reads."""

    version: int
    epoch: int
    to_epoch: int
    records: list[ToAcceptor]


class DiallerBundle(msgspec.Struct, array_like=True, gc=False):
    """What a dialler reads."""

    version: int
    epoch: int
    to_epoch: int
    records: list[ToDialler]


_encode = msgspec.msgpack.Encoder().encode
_Bundle = TypeVar("_Bundle", AcceptorBundle, DiallerBundle)


def with_frames(record: Record, raw: Sequence[Frame]) -> Record:
    """Attach raw frames to a record of one of the *WithFrames classes."""
    record.__dict__["raw"] = raw
    return record


def encode_bundle(epoch: int, to_epoch: int, records: Sequence[Record]) -> list[Frame]:
    frames: list[Frame] = [_encode((VERSION, epoch, to_epoch, records))]
    for record in records:
        if record.raw:
            frames.extend(record.raw)
    return frames


def _decoder(kind: type[_Bundle]) -> Callable[[Sequence[bytes]], _Bundle]:
    """It raises Malformed, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decoded(frames: Sequence[bytes]) -> _Bundle:
        if not frames:
            raise Malformed("no frames")
        try:
            bundle = decode(frames[0])
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            raise Malformed(str(error)[:200]) from None
        if bundle.version != VERSION:
            raise Malformed(f"version {bundle.version}, expected {VERSION}")
        if len(bundle.records) > MAX_RECORDS:
            raise Malformed(f"{len(bundle.records)} records")
        return bundle

    return decoded


decode_for_acceptor = _decoder(AcceptorBundle)
decode_for_dialler = _decoder(DiallerBundle)


def raw_frames(records: Sequence[Any], frames: Sequence[bytes]) -> dict[int, Sequence[bytes]]:
    """Which raw frames belong to which record, by position. Raises Malformed when the counts disagree."""
    given: dict[int, Sequence[bytes]] = {}
    at = 1
    for position, record in enumerate(records):
        count = getattr(record, "frames", 0)
        if count:
            if not 0 < count <= len(frames) - at:
                raise Malformed("raw frames missing")
            given[position] = frames[at : at + count]
            at += count
    if at != len(frames):
        raise Malformed("raw frames left over")
    return given
