"""Pages of other workers as messages, and the checks of what comes in. Functions of values alone."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.codec import RawFrame
from services.api.messages import FetchPages, LentPage
from services.worker.cache.keys import KEY_BYTES

NAME_BYTES = KEY_BYTES
# Names of one text: as many pages as the longest context has, and no list that fills memory.
MOST_NAMES = 1 << 17


def joined(names: Sequence[bytes]) -> bytes:
    return b"".join(names)


def names_in(message: FetchPages) -> list[bytes]:
    """Raises ValueError."""
    whole, rest = divmod(len(message.names), NAME_BYTES)
    if rest or not 0 < whole <= MOST_NAMES:
        raise ValueError(f"{len(message.names)} bytes of names")
    return [message.names[at : at + NAME_BYTES] for at in range(0, len(message.names), NAME_BYTES)]


def refusal(message: FetchPages, layout: str, secret: str) -> str:
    """Why nothing can be lent to this worker; "": nothing speaks against it."""
    if message.layout != layout:
        return "its pages have another layout: another model, dtype, executor or page size"
    if message.secret != secret:
        return "its pages are named with another secret: it is of another mesh, or has other keys"
    return ""


def lent_page(index: int, name: bytes, frames: Sequence[bytes]) -> LentPage:
    return LentPage(index=index, name=name, frames=[RawFrame(frame) for frame in frames])


def frames_in(page: LentPage, names: Sequence[bytes], expected: int, sizes: Sequence[int]) -> list[bytes]:
    """Of the page that is expected next. Raises ValueError for anything else."""
    if page.index != expected or not 0 <= page.index < len(names):
        raise ValueError(f"page {page.index} came, {expected} of {len(names)} was expected")
    if page.name != names[page.index]:
        raise ValueError(f"page {page.index} has another name")
    if [len(frame.data) for frame in page.frames] != [*sizes]:
        raise ValueError(f"page {page.index} has frames of other sizes")
    return [bytes(frame.data) for frame in page.frames]
