"""Bodies of messages to bytes and back, through an explicit table of kinds. Knows no envelopes and no sockets.

Rule 1: only a kind in the table is decoded, straight into its struct; there is no generic decoding.
Rule 2: a struct may hold nothing whose depth the type does not bound (Any, Raw, ext, recursive types), so
        hostile nesting fails at the type, and ext types never reach a hook.
Rule 3: a body larger than `max_body` is refused before it is looked at. An element takes at least a byte,
        so this bounds every array, too.

Large buffers do not travel in the body: a field of type `RawFrame` becomes an index there, and its bytes a raw
frame behind the bundle (a tensor is dtype, shape and a RawFrame).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from mesh.errors import Malformed, TooLarge, UnknownKind
from mesh.transport import Frame

MAX_BODY = 4 * 1024 * 1024
# Containers within containers, as types: what we send needs four.
MAX_DEPTH = 16


class RawFrame:
    """A field that travels as a frame of its own, uncopied where the transport can."""

    __slots__ = ("data",)

    def __init__(self, data: Frame) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawFrame) and bytes(self.data) == bytes(other.data)

    __hash__ = None  # type: ignore[assignment]


class Codec:
    """A table of kinds. For one thread."""

    def __init__(self, kinds: Mapping[str, type[msgspec.Struct]], max_body: int = MAX_BODY) -> None:
        self.max_body = max_body
        self.kinds = dict(kinds)
        self._kind_of = {struct: kind for kind, struct in self.kinds.items()}
        if len(self._kind_of) != len(self.kinds):
            raise ValueError("a message type has two kinds")
        for kind, struct in self.kinds.items():
            _check_bounded(kind, struct)
        self._outgoing: list[Frame] = []
        self._incoming: Sequence[Frame] = ()
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._buffer_to_index).encode
        self._decode = {
            kind: msgspec.msgpack.Decoder(struct, dec_hook=self._index_to_buffer).decode
            for kind, struct in self.kinds.items()
        }

    def kind_of(self, message_type: type[Any]) -> str:
        """The kind of a message type. Raises UnknownKind."""
        try:
            return self._kind_of[message_type]
        except KeyError:
            raise UnknownKind(f"{message_type.__name__} has no kind in the codec's table") from None

    def known(self, kind: str) -> str:
        """The kind, or "other" for one not in the table: what metrics may say of bytes from outside."""
        return kind if kind in self.kinds else "other"

    def encode(self, message: Any) -> tuple[str, bytes, Sequence[Frame]]:
        """(kind, body, raw frames). Raises UnknownKind or TooLarge."""
        kind = self._kind_of.get(type(message))
        if kind is None:
            raise UnknownKind(f"{type(message).__name__} has no kind in the codec's table")
        body = self._encode(message)
        if len(body) > self.max_body:
            self._outgoing = []
            raise TooLarge(f"{kind}: {len(body)} bytes, at most {self.max_body} are sent")
        if not self._outgoing:
            return kind, body, ()
        raw, self._outgoing = self._outgoing, []
        return kind, body, raw

    def decode(self, kind: str, body: bytes, raw: Sequence[Frame] = ()) -> Any:
        """The message. Raises UnknownKind, TooLarge or Malformed; nothing else, whatever the bytes are."""
        decode = self._decode.get(kind)
        if decode is None:
            raise UnknownKind(f"unknown kind {kind[:40]!r}")
        if len(body) > self.max_body:
            raise TooLarge(f"{kind}: {len(body)} bytes, at most {self.max_body} are taken")
        self._incoming = raw
        try:
            return decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            raise Malformed(f"{kind}: {str(error)[:200]}") from None
        finally:
            self._incoming = ()

    def _buffer_to_index(self, value: Any) -> int:
        if not isinstance(value, RawFrame):
            raise NotImplementedError(f"{type(value).__name__} cannot be sent")
        self._outgoing.append(value.data)
        return len(self._outgoing) - 1

    def _index_to_buffer(self, wanted: type[Any], value: Any) -> RawFrame:
        if wanted is not RawFrame or type(value) is not int or not 0 <= value < len(self._incoming):
            raise ValueError("no such raw frame")
        return RawFrame(self._incoming[value])


def _check_bounded(kind: str, struct: type[msgspec.Struct]) -> None:
    """Rule 2, once at start-up."""

    def visit(node: inspect.Type, above: tuple[type, ...]) -> None:
        if isinstance(node, inspect.AnyType | inspect.RawType | inspect.ExtType):
            raise TypeError(f"{kind}: a field of type {type(node).__name__} has no bound")
        if isinstance(node, inspect.CustomType) and node.cls is not RawFrame:
            raise TypeError(f"{kind}: {node.cls.__name__} cannot be sent")
        if len(above) > MAX_DEPTH:
            raise TypeError(f"{kind}: nested deeper than {MAX_DEPTH}")
        if isinstance(node, inspect.StructType):
            if node.cls in above:
                raise TypeError(f"{kind}: {node.cls.__name__} contains itself")
            for field in node.fields:
                visit(field.type, (*above, node.cls))
            return
        for child in _children(node):
            visit(child, (*above, type(node)))

    visit(inspect.type_info(struct), ())


def _children(node: inspect.Type) -> list[inspect.Type]:
    if isinstance(node, inspect.UnionType):
        return list(node.types)
    if isinstance(node, inspect.DictType):
        return [node.key_type, node.value_type]
    if isinstance(node, inspect.TupleType):
        return list(node.item_types)
    if isinstance(node, inspect.CollectionType):
        return [node.item_type]
    if isinstance(node, inspect.TypedDictType | inspect.NamedTupleType | inspect.DataclassType):
        return [field.type for field in node.fields]
    return []
