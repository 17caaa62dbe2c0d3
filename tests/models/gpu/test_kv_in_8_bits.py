"""Keys and values in 8 bits: the GPU executor computes what plain torch computes with the same rounding; it is refused
where the pages can't be kept so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernels import interpreter
from models.batch import Stretch
from models.choose import ExecutorChoice, check_kv_dtype
from models.config import read_network
from models.executor import Options
from models.plain import PlainExecutor
from models.sources import ModelError
from tests.models.gpu.interpreted import on_cpu, save

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity

NAME = "norms of heads, a window in one layer"


@pytest.mark.skipif(not interpreter.in_use(), reason="tests/gpu has the same for a GPU")
def test_both_executors_round_keys_and_values_alike(tmp_path: Path) -> None:
    save(NAME, tmp_path)
    text = parity.random_tokens(12, 1)
    found = {}
    for kv in ("fp8", ""):
        made = [parity.load(tmp_path, make, strict=False, kv_dtype=kv) for make in (on_cpu, PlainExecutor)]
        for executor in made:
            parity.run(executor, [Stretch(text[:9], 0, [3], 9)])
        # The prompt's keys and values are read from pages.
        found[kv] = [parity.run(executor, [Stretch(text[9:], 9, [3], 0)]) for executor in made]
        copied = made[0]
        copied.copy_page(3, 5)
        copied.move([(3 * parity.PAGE_TOKENS + 11, 5 * parity.PAGE_TOKENS + 10)])
        kept = [pages[:, :, 5] for pages in copied._pages._kept]
        assert all(each.dtype == (torch.uint8 if kv else torch.float32) for each in kept)
    parity.assert_close(*found["fp8"], "8 bits")
    changed = (found["fp8"][1] - found[""][1]).abs().max() / found[""][1].abs().max()
    assert 1e-3 < changed < 0.3


def test_a_page_takes_a_quarter_of_float32(tmp_path: Path) -> None:
    save(NAME, tmp_path)
    network = read_network(tmp_path)
    eight, whole = (Options("float32", 1, 16, 32, kv_dtype=kv) for kv in ("fp8", ""))
    for executor in (PlainExecutor, type(parity.load(tmp_path, on_cpu))):
        assert 4 * executor.page_bytes(network, eight) == executor.page_bytes(network, whole)


def test_pages_that_cannot_be_kept_so_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latent").mkdir()
    save(NAME, tmp_path)
    save("latent attention, experts in groups", tmp_path / "latent")
    grouped, latent = read_network(tmp_path), read_network(tmp_path / "latent")
    plain = ExecutorChoice("plain", PlainExecutor, "")
    check_kv_dtype(plain, grouped, "fp8")
    check_kv_dtype(plain, latent, "")
    for choice, network, said in (
        (ExecutorChoice("compiled", None, ""), grouped, "compiled loops"),
        (plain, latent, "latents are kept"),
    ):
        with pytest.raises(ModelError, match=said):
            check_kv_dtype(choice, network, "fp8")
