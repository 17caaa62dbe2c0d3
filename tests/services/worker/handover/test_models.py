"""Pages of real models: another worker goes on with them as if it had computed them, and so does its drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from driving import request
from tiny_folder import write_tiny_model
from two_workers import split

from models.batch import Stretch
from models.executor import PageTensor
from services.api.settings import Settings
from services.worker.loading import load_runner
from services.worker.running import page_memory
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.page_memory import TorchPages
from services.worker.running.torch_model import TorchModel

TEXT = [5 + k % 90 for k in range(70)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


def loaded(folder: Path, **more: Any) -> TorchModel:
    given = {"dtype": "float32", "executor": "compiled", "threads": 1, "page_tokens": 16, "kv_cache_mb": 1}
    return load_torch_model(folder, Wanted(**{**given, **more}))


def last_logits(model: TorchModel, start: int, pages: list[int]) -> torch.Tensor:
    rows = Stretch(TEXT[start:], start, pages, len(TEXT) - start - 1)
    return model.forward([rows]).logits.clone()


@pytest.mark.parametrize("executor", ["compiled", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_goes_on_with_pages_of_another_one(executor: str, dtype: str, folder: Path) -> None:
    one, other = (loaded(folder, executor=executor, dtype=dtype) for _ in range(2))
    expected = last_logits(one, 0, [0, 1, 2, 3, 4])
    source, target = one.page_memory(), other.page_memory()
    assert source.layout == target.layout
    for page in range(4):
        target.write(7 - page, *source.read([page]))
    assert torch.equal(last_logits(other, 64, [7, 6, 5, 4, 9]), expected)


def test_a_layout_has_another_name_where_pages_have_other_bytes(folder: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=3)
    models = [loaded(folder), loaded(folder, dtype="bfloat16"), loaded(folder, page_tokens=32), loaded(other)]
    models += [loaded(folder, executor="plain")]
    assert len({model.page_memory().layout for model in models}) == len(models)


def test_pages_keep_their_bytes_in_frames_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def layers(seed: int) -> list[torch.Tensor]:
        source = torch.Generator().manual_seed(seed)
        whole = torch.randint(0, 256, (3, 2, 6, 4), generator=source).to(torch.uint8)
        return [
            torch.randn(6, 3, 5, generator=source),
            # As on a GPU: the page isn't the first axis in memory, and numbers have 8 bits.
            whole.movedim(2, 0).view(torch.float8_e4m3fn),
            torch.randn(6, 7, generator=source).bfloat16(),
        ]

    for size, frames in ((1, 3), (90, 2), (1 << 20, 1)):
        monkeypatch.setattr(page_memory, "FRAME_BYTES", size)
        ours, theirs = layers(1), layers(2)
        untouched = [layer[5].clone() for layer in theirs]
        one, other = (TorchPages([*map(PageTensor, each)], "m") for each in (ours, theirs))
        read, again = one.read([2, 2])
        assert read == again
        assert tuple(map(len, read)) == one.frame_bytes == other.frame_bytes and len(read) == frames
        other.write(4, read)
        for mine, other_layer, rest in zip(ours, theirs, untouched, strict=True):
            assert _bytes(other_layer[4]) == _bytes(mine[2]) and _bytes(other_layer[5]) == _bytes(rest)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


async def test_what_a_drafter_keeps_in_pages_travels_with_them(folder: Path, tmp_path: Path) -> None:
    """The model drafts for itself: with its own keys and values of the prompt it is never wrong."""
    given: dict[str, Any] = {
        "engine": "torch", "model": str(folder), "executor": "compiled", "dtype": "float32", "draft_dtype": "float32",
        "draft_model": str(folder), "method": "draft_model", "num_speculative_tokens": 4, "page_tokens": 16,
        "kv_cache_mb": 4, "threads": 1, "max_step_tokens": 32,
    }  # fmt: skip
    async with split(tmp_path, start=False) as mesh:
        for name in ("prefill", "decode"):
            runner = load_runner(Settings.for_tests(**given))
            await mesh.start(name, name, runner, **given)
        drafted = await mesh.ask(request(TEXT, max_tokens=40, ignore_eos=True))
        assert mesh.decode.counts.fetched_pages == 4
        stats = drafted.end.speculation
        assert stats.drafted == stats.accepted > 20
        plain = await mesh.ask(request(TEXT, max_tokens=40, ignore_eos=True, method="naive"), pages_from="")
        assert drafted.ids == plain.ids
        for worker in mesh.workers.values():
            await worker.until_idle()
