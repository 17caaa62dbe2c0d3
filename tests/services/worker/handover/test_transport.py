"""What comes from another worker is checked before it is written into pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mesh.codec import RawFrame
from services.api.messages import FetchPages
from services.runtime.process import mesh_codec
from services.worker.cache.keys import KEY_BYTES
from services.worker.handover.fetch import Fetch
from services.worker.handover.lend import MOST_NAMES, names_in, refusal
from services.worker.handover.transport import Frames, HandoverCounts, lent_page

NAMES = [bytes([index]) * KEY_BYTES for index in range(3)]
PAGE = lent_page(1, NAMES[1], [b"abcd", b"ef"])


class Taking(Fetch):
    """A fetch that expects a page."""

    def __init__(self, taken: int) -> None:
        self._names, self.taken, self.came = NAMES, taken, list[tuple[bytes, list[bytes]]]()

    async def land(self, name: bytes, frames: Sequence[Any], used: Any = None) -> None:
        self.came.append((name, list(frames)))


async def taken(page: Any, expected: int) -> list[tuple[bytes, list[bytes]]]:
    fetch = Taking(expected)
    async with asyncio.TaskGroup() as tasks:
        await Frames((4, 2), HandoverCounts()).receiver(fetch, tasks)(page)
    return fetch.came


def message(**more: Any) -> FetchPages:
    return FetchPages(**{"request_id": "r", "names": b"".join(NAMES), "layout": "l", "secret": "s", **more})


async def test_a_page_travels_as_raw_frames() -> None:
    codec = mesh_codec()
    kind, body, raw = codec.encode(PAGE)
    assert raw == [b"abcd", b"ef"] and b"abcd" not in body
    assert await taken(codec.decode(kind, body, raw), 1) == [(NAMES[1], [b"abcd", b"ef"])]


def test_names_come_back_as_they_were() -> None:
    assert names_in(message()) == NAMES


@pytest.mark.parametrize("names", [b"", b"x", b"".join(NAMES)[:-1], bytes(KEY_BYTES * (MOST_NAMES + 1))])
def test_a_list_of_names_that_cannot_be_one_is_refused(names: bytes) -> None:
    assert "bytes of names" in refusal(message(names=names), "l", "s")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"index": 2}, 1),
        ({"index": -1}, -1),
        ({"index": 3}, 3),
        ({"name": NAMES[0]}, 1),
        ({"name": b""}, 1),
        ({"frames": []}, 1),
        ({"frames": [RawFrame(b"abcd")]}, 1),
        ({"frames": [RawFrame(b"abc"), RawFrame(b"efg")]}, 1),
        ({"frames": [RawFrame(b"abcd"), RawFrame(b"ef"), RawFrame(b"")]}, 1),
    ],
)
async def test_a_page_that_was_not_asked_for_is_refused(more: dict[str, Any], expected: int) -> None:
    with pytest.raises(ExceptionGroup) as refused:
        await taken(msgspec.structs.replace(PAGE, **more), expected)
    assert isinstance(error := refused.value.exceptions[0], ValueError) and "page" in str(error)


def test_workers_of_another_layout_or_secret_get_nothing() -> None:
    assert refusal(message(), "l", "s") == ""
    assert "layout" in refusal(message(), "other", "s")
    assert "secret" in refusal(message(), "l", "other")
