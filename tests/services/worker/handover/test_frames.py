"""What comes from another worker is checked before it is written into pages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mesh.codec import RawFrame
from services.api.messages import FetchPages
from services.runtime.process import mesh_codec
from services.worker.handover.frames import MOST_NAMES, NAME_BYTES, frames_in, joined, lent_page, names_in, refusal

NAMES = [bytes([index]) * NAME_BYTES for index in range(3)]
SIZES = (4, 2)
PAGE = lent_page(1, NAMES[1], [b"abcd", b"ef"])


def message(**more: Any) -> FetchPages:
    return FetchPages(**{"request_id": "r", "names": joined(NAMES), "layout": "l", "secret": "s", **more})


def test_a_page_travels_as_raw_frames() -> None:
    codec = mesh_codec()
    kind, body, raw = codec.encode(PAGE)
    assert raw == [b"abcd", b"ef"] and b"abcd" not in body
    assert frames_in(codec.decode(kind, body, raw), NAMES, 1, SIZES) == [b"abcd", b"ef"]


def test_names_come_back_as_they_were() -> None:
    assert names_in(message()) == NAMES


@pytest.mark.parametrize("names", [b"", b"x", joined(NAMES)[:-1], bytes(NAME_BYTES * (MOST_NAMES + 1))])
def test_a_list_of_names_that_cannot_be_one_is_refused(names: bytes) -> None:
    with pytest.raises(ValueError, match="bytes of names"):
        names_in(message(names=names))


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
def test_a_page_that_was_not_asked_for_is_refused(more: dict[str, Any], expected: int) -> None:
    with pytest.raises(ValueError, match="page"):
        frames_in(msgspec.structs.replace(PAGE, **more), NAMES, expected, SIZES)


def test_workers_of_another_layout_or_secret_get_nothing() -> None:
    assert refusal(message(), "l", "s") == ""
    assert "layout" in refusal(message(), "other", "s")
    assert "secret" in refusal(message(), "l", "other")
