"""Every way a call over the mesh can end badly. Knows the reasons on the wire, nothing of sockets.

MeshError
├── Busy                 the mailbox, the outbox or the stream table is full; nothing was done
├── NotRunning           no such actor, or it stopped before it took the mail
├── Draining             the node takes no new work
├── UnknownKind          the receiver has no entry for this kind of message
├── TooLarge             the encoded message exceeds the limit
├── PeerLost             the far node died, restarted or fell silent; what it did is unknown
│   └── NotReached       no connection was made, so it did nothing
├── DeadlineExceeded     the time given to the call has passed
├── NoPeer               nobody plays the wanted role
├── Stale                a newer epoch of this node is known: we are the ghost
├── Malformed            bytes that are no valid message
├── Insecure             an address that would leave this host without keys
└── RemoteError          the handler refused or failed: `reason`, `message`
"""

from __future__ import annotations


class MeshError(Exception):
    """Base of all. `reason` is the word that stands for the error on the wire and in metrics."""

    reason: str = "mesh"


class Busy(MeshError):
    reason = "busy"


class NotRunning(MeshError):
    reason = "not_running"


class Draining(MeshError):
    reason = "draining"


class UnknownKind(MeshError):
    reason = "unknown_kind"


class TooLarge(MeshError):
    reason = "too_large"


class PeerLost(MeshError):
    reason = "peer_lost"


class NotReached(PeerLost):
    pass


class DeadlineExceeded(MeshError):
    reason = "deadline"


class NoPeer(MeshError):
    reason = "no_peer"


class Stale(MeshError):
    reason = "stale"


class Malformed(MeshError):
    reason = "malformed"


class Insecure(MeshError):
    reason = "insecure"


class RemoteError(MeshError):
    """What the far handler said. `reason` is its word, never an exception's text unless it chose so."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Refuse(Exception):
    """Raised by a handler to answer with an error of its own choosing."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


# Only what a far side may say. PeerLost, NoPeer and Insecure are findings of our own.
_BY_REASON: dict[str, type[MeshError]] = {
    kind.reason: kind
    for kind in (Busy, NotRunning, Draining, UnknownKind, TooLarge, DeadlineExceeded, Stale, Malformed)
}


def from_wire(reason: str, message: str) -> MeshError:
    """The exception for an answer that says `reason`."""
    known = _BY_REASON.get(reason)
    return known(message) if known else RemoteError(reason, message)


def to_wire(error: BaseException) -> tuple[str, str]:
    """The (reason, message) to answer with. Of unforeseen errors only the type's name leaves the process."""
    if isinstance(error, Refuse | RemoteError):
        return error.reason, error.message
    if isinstance(error, MeshError):
        return error.reason, str(error)
    return "internal", type(error).__name__
