"""What the nodes of a split worker say to each other, beside the sums of its ranks: lines of JSON over one TCP
connection a node, which lives as long as both sides do.

    node 0 (the worker)                    node k
        ◀────────────── nonces ──────────────▶
        ◀────────────── Hello ───────────────      what it has: version, model, number of nodes
        ────────────── Refused ──────────────▶     or, when all nodes are there,
        ────────────── Told ─────────────────▶     what its ranks need to know
        ◀────────────── Beat ────────────────▶     now and then; Lost, or an end, is the end of the group

Every line but the nonces is signed, with a key made of both nonces and the mesh's secret, and counted: one of another
connection, direction or place doesn't fit. Without keys the secret is empty, and the signature shows no more than that.
Nothing is encrypted. Every line is bounded in bytes, and every silence in time.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from typing import Annotated, Final, Literal

import msgspec

# Without a line for this long the other side is gone; one is sent each BEAT.
SILENCE: Final = 30.0  # s
BEAT: Final = 5.0  # s
MOST_BYTES: Final = 1 << 16
_NONCE, _MAC = 32, 64  # characters of hex
# It comes to logs: no line of its own begins in it.
Text = Annotated[str, msgspec.Meta(max_length=1000, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]


class LineLost(Exception):
    """The connection has ended, or what came isn't what it should be. Says which."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Of the lines below."""


class Hello(Message, frozen=True):
    version: Text
    nodes: int
    node: int
    ranks: int
    # models/fingerprint.py's: name, config, tensors, values.
    model: tuple[Text, Text, Text, Text]


class Refused(Message, frozen=True):
    why: Text
    # Whether another try may end otherwise.
    passing: bool


class Told(Message, frozen=True):
    """What services/worker/parallel/rank.py's Start has for all ranks."""

    executor: Literal["triton", "compiled", "plain"]
    quantization: Literal["none", "wint8", "wint4"]
    gpu: bool
    ranks: int
    port: int
    generation: Text
    options: dict[Text, Text | int | float | bool]


class Beat(Message, frozen=True):
    pass


class Lost(Message, frozen=True):
    why: Text


Heard = Hello | Refused | Told | Beat | Lost
_decoder: msgspec.json.Decoder[Heard] = msgspec.json.Decoder(Heard)


class Line:
    """`say` and `close` may be called in any thread, `hear` in one."""

    def __init__(self, connection: socket.socket, secret: bytes, first: bool) -> None:
        """`first`: on node 0. Raises LineLost."""
        self._socket, self._lock = connection, threading.Lock()
        self._bytes, self._said, self._heard = b"", 0, 0
        # Why this side has ended it.
        self._closed = ""
        connection.settimeout(SILENCE)
        own = secrets.token_hex(_NONCE // 2).encode()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(own + b"\n")
        except OSError as error:
            raise LineLost(str(error)) from error
        theirs = self._read(_NONCE)
        if len(theirs) != _NONCE:
            raise LineLost("it is no node of a worker")
        self._key = hmac.digest(secret, b"specmesh nodes" + (own + theirs if first else theirs + own), "sha256")
        self._own, self._their = (b"0", b"k") if first else (b"k", b"0")

    def say(self, message: Message) -> None:
        """Raises LineLost."""
        text = msgspec.json.encode(message)
        assert len(text) < MOST_BYTES - _MAC
        with self._lock:
            mac = self._sign(self._own, self._said, text)
            self._said += 1
            try:
                self._socket.sendall(mac + text + b"\n")
            except OSError as error:
                raise LineLost(_told(error)) from error

    def hear(self) -> Heard:
        """The next line. Raises LineLost."""
        line = self._read(MOST_BYTES)
        mac, text = line[:_MAC], line[_MAC:]
        if not hmac.compare_digest(mac, self._sign(self._their, self._heard, text)):
            raise LineLost("it has other keys: give all nodes the same keys_dir, or none")
        self._heard += 1
        try:
            return _decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise LineLost(f"it said what can't be read: {error}") from error

    def close(self, why: str = "it was closed here") -> None:
        """`why` is what the thread that hears is told."""
        self._closed = self._closed or why
        # A thread that hears is woken by it, which a close alone doesn't do.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _sign(self, side: bytes, number: int, text: bytes) -> bytes:
        return hmac.new(self._key, side + number.to_bytes(8, "big") + text, "sha256").hexdigest().encode()

    def _read(self, most: int) -> bytes:
        while b"\n" not in self._bytes:
            if len(self._bytes) > most:
                raise LineLost("it said too much at once")
            try:
                more = self._socket.recv(4096)
            except OSError as error:
                raise LineLost(self._closed or _told(error)) from error
            if not more:
                raise LineLost(self._closed or "it has ended")
            self._bytes += more
        line, _, self._bytes = self._bytes.partition(b"\n")
        return line


def _told(error: OSError) -> str:
    return f"nothing was heard of it for {SILENCE:.0f} s" if isinstance(error, TimeoutError) else str(error)


class Beats:
    """Says on a line that this side lives, until it is closed."""

    def __init__(self, line: Line) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(line,), name="beats", daemon=True).start()

    def _beat(self, line: Line) -> None:
        # Who hears on this line finds out that it is lost.
        with contextlib.suppress(LineLost):
            while not self._ended.wait(BEAT):
                line.say(Beat())

    def close(self) -> None:
        self._ended.set()
