"""A small GGUF file whose tensors share their bytes would be written out as gigabytes. It is refused by the tensor's
name before anything is written; so is a file whose folder doesn't fit on the disk."""

from __future__ import annotations

import struct
import sys
from collections import namedtuple
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import gguf_writer as writer

from models import sources
from models.errors import ModelError
from models.sources import ensure_model


def overlapping(tensors: int, values: int) -> bytes:
    """A whole model, and `tensors` more layers whose one tensor lies over the same bytes as all the others'."""
    metadata = writer.tiny_metadata()
    weights = writer.tiny_weights()
    raw = {name: (weight.shape, 0, weight.tobytes()) for name, weight in weights.items()}
    raw |= {f"blk.{9 + number}.ffn_up.weight": ((1, values), 0, b"") for number in range(tensors)}
    made = writer.gguf_bytes(metadata, raw)
    return made + b"\0" * 4 * values


def refusal(path: Path, cache: Path) -> str:
    with pytest.raises(ModelError) as caught:
        ensure_model(str(path), cache)
    made = [each for each in cache.rglob("*") if each.is_file() and each.suffix != ".lock"]
    assert made == []
    return caught.value.what


def test_tensors_that_share_bytes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(overlapping(100, 100_000))
    assert path.stat().st_size < 600_000  # and 20 MB as a folder
    assert "tensor blk.10.ffn_up.weight overlaps blk.9.ffn_up.weight" in refusal(path, tmp_path / "cache")


def test_a_folder_that_does_not_fit_on_the_disk_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Q2_K: 84 bytes become 512, more than any estimate from the file's size without its types.
    path, rows = tmp_path / "two-bits.gguf", 16_384
    raw = {"token_embd.weight": ((rows, 256), 10, b"\0" * 84 * rows)}
    path.write_bytes(writer.gguf_bytes(writer.tiny_metadata(), raw))
    usage = namedtuple("usage", "total used free")
    room = (64 << 20) + 5 * path.stat().st_size
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda _: usage(1 << 40, 0, room))
    assert "MB are needed" in refusal(path, tmp_path / "cache")


def test_a_file_of_holes_is_measured_by_what_it_would_become(tmp_path: Path) -> None:
    path = tmp_path / "holes.gguf"
    raw = {"token_embd.weight": ((1 << 20, 1 << 20), 1, b"")}
    with path.open("wb") as file:
        file.write(writer.gguf_bytes(writer.tiny_metadata(), raw))
        file.truncate(file.tell() + (2 << 40))
    assert "2097" in refusal(path, tmp_path / "cache")  # MB


@pytest.mark.parametrize("shape", [(1, (1 << 20) + 1), ((1 << 20) + 1,), (2, 3, 4)])
def test_shapes_that_no_weight_has_are_refused_by_the_tensors_name(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "shape.gguf"
    count = 1
    for each in shape:
        count *= each
    raw = {"token_embd.weight": (shape, 0, struct.pack("<f", 0.5) * count)}
    path.write_bytes(writer.gguf_bytes(writer.tiny_metadata(), raw))
    assert "tensor token_embd.weight" in refusal(path, tmp_path / "cache")
