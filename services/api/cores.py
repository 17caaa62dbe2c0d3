"""The setting `cores`: which cores a role's process may run on."""

from __future__ import annotations


def cores_of(role: str, setting: str) -> set[int]:
    """The cores `setting` gives a role: "worker=0-5;streamer=6,7". Empty: no bound. Raises ValueError."""
    found: set[int] = set()
    for item in filter(None, (part.strip() for part in setting.split(";"))):
        name, equals, ranges = item.partition("=")
        if not equals or not ranges.strip():
            raise ValueError(f"cores: {item!r} is not role=cores, such as worker=0-5")
        for piece in ranges.split(","):
            first, dash, last = piece.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                raise ValueError(f"cores: {piece.strip()!r} is neither a core nor a range of cores")
            if name.strip() == role:
                found |= set(range(int(first), int(last if dash else first) + 1))
    return found
