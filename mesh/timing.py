"""The time limits of the mesh protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Tests shorten them; the order matters: sweep < ping < silence."""

    connect: float = 1.0  # how long a call waits for a connection
    silence: float = 3.0  # with calls open, a peer that sends nothing for this long is lost
    ping: float = 0.5  # with calls open, a dialler sends something at least this often
    credit: float = 0.025  # how long a small credit waits for others
    sweep: float = 0.1  # how often peers are checked
    linger: float = 0.2  # how long sockets go on sending after close
    farewell: float = 0.5  # how long a node that stops waits until its peers have read everything
