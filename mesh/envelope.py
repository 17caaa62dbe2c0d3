"""The records of the mesh protocol and the bundles that carry them (docs/internals/mesh.md). Knows neither sockets nor
actors.

A bundle is one transport message. Frame 0 is `[version, epoch, to_epoch, [record, ...]]` as msgpack; the raw frames of
its records follow in order. Everything one side has to send at the end of a loop tick leaves as one bundle. A record
is `[op, ...]`:

    dialler -> acceptor   Hello Ask Open Credit Cancel Farewell
    acceptor -> dialler   Welcome Reply Failure Item End Farewell

Bodies are opaque here: bytes and the name of their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from mesh.errors import Malformed
from mesh.transport import Frame

VERSION = 5
MAX_RECORDS = 4096
# A bundle is closed at this size; a single larger record travels alone.
BUNDLE_BYTES = 256 * 1024
BUNDLE_RECORDS = 512


class MeshRecord(msgspec.Struct, array_like=True, gc=False):
    """Base of all records. `frames`, where there is one: how many raw frames belong to it."""


class Hello(MeshRecord, tag=1):
    """Opens a session or keeps it alive."""

    name: str
    epoch: int


class AskRecord(MeshRecord, tag=3):
    id: int
    actor: str
    kind: str
    deadline_ms: int
    body: bytes
    frames: int = 0


class Open(MeshRecord, tag=4):
    """Starts a stream. At most `window` bytes of items may be sent and not yet read."""

    id: int
    actor: str
    kind: str
    deadline_ms: int
    window: int
    body: bytes
    frames: int = 0


class Credit(MeshRecord, tag=5):
    """Two numbers per stream: its id and the bytes read so far."""

    numbers: list[int]


class Cancel(MeshRecord, tag=6):
    ids: list[int]


class Welcome(MeshRecord, tag=11):
    """Answers Hello. A `session` other than before: the acceptor has forgotten what was open."""

    name: str
    epoch: int
    session: int


class Reply(MeshRecord, tag=12):
    id: int
    kind: str
    body: bytes
    frames: int = 0


class Failure(MeshRecord, tag=13):
    """An ask that failed."""

    id: int
    reason: str
    message: str


class Item(MeshRecord, tag=15):
    id: int
    seq: int
    kind: str
    body: bytes
    frames: int = 0


class End(MeshRecord, tag=16):
    """The end of a stream; it takes the sequence number after the last item. An empty `reason`: no error."""

    id: int
    seq: int
    reason: str = ""
    message: str = ""


class Farewell(MeshRecord, tag=20):
    """The sender leaves; answered by Farewell. With reason `stale`: `epoch` is the newest one known of the receiver."""

    reason: str = ""
    epoch: int = 0


ToAcceptor = Hello | AskRecord | Open | Credit | Cancel | Farewell
ToDialler = Welcome | Reply | Failure | Item | End | Farewell


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


def encode_bundle(epoch: int, to_epoch: int, records: Sequence[MeshRecord], raw: Sequence[Frame] = ()) -> list[Frame]:
    """`raw`: the frames of all records, in their order."""
    return [_encode((VERSION, epoch, to_epoch, records)), *raw]


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
