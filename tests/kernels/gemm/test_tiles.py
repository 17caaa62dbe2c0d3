"""Block sizes from a table: measured ones are used, others follow the rule, and a tune is run with toy shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernels import interpreter
from kernels.gemm import fused, tiles, tune
from kernels.gemm.tiles import Tile, key
from kernels.launch import architecture
from kernels.testing import assert_close, assert_same_bits, device, random

MEASURED = Tile(block_n=32, block_k=64, stages=2, warps=8)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tiles.json"
    monkeypatch.setattr(tiles, "TABLE", path)
    path.write_text("{}")
    tiles.table.cache_clear()
    return path


def test_a_measured_tile_takes_the_place_of_the_rule_for_its_shape_alone(table: Path) -> None:
    tiles.write(table, {key(90, 4096, 14336, "bfloat16"): MEASURED})
    rule = fused.tile_of(4096, 14336, torch.bfloat16)[0]
    found = fused.tile_of(4096, 14336, torch.bfloat16, 90)[0]
    assert (found["BLOCK_N"], found["BLOCK_K"], found["stages"], found["warps"]) == (32, 64, 2, 8)
    assert found["BLOCK_M"] == rule["BLOCK_M"] and found != rule
    for columns, inputs, dtype, arch in (
        (4096, 14336, torch.bfloat16, 80), (4096, 4096, torch.bfloat16, 90), (4096, 14336, torch.float32, 90),
    ):  # fmt: skip
        assert fused.tile_of(columns, inputs, dtype, arch) == fused.tile_of(columns, inputs, dtype)


def test_with_a_measured_tile_the_product_is_right_and_a_row_has_its_own_bits(table: Path) -> None:
    x, weight = random(70, 320, dtype=torch.bfloat16), random(96, 320, dtype=torch.bfloat16, seed=1) / 18
    by_rule = fused.linear(x, weight, out_dtype=torch.float32)
    tiles.write(table, {key(architecture(x.device), 96, 320, "bfloat16"): MEASURED})
    found = fused.linear(x, weight, out_dtype=torch.float32)
    assert_close(found, x.float() @ weight.float().T, torch.bfloat16)
    assert_same_bits(fused.linear(x[3:4], weight, out_dtype=torch.float32)[0], found[3])
    assert_close(found, by_rule, torch.bfloat16)


def test_a_tile_that_no_kernel_has_is_refused_with_what_to_do(table: Path) -> None:
    table.write_text(json.dumps({"sm_90 bfloat16 1 x 1": {"block_n": 48, "block_k": 64, "stages": 2, "warps": 4}}))
    with pytest.raises(ValueError, match="run make tune-gpu again"):
        tiles.measured(90, 1, 1, "bfloat16")


def test_what_is_shipped_can_be_read() -> None:
    assert isinstance(tiles.table(tiles.TABLE), dict)


@pytest.mark.skipif(not interpreter.in_use(), reason="a device is tuned by make tune-gpu")
def test_a_dry_run_writes_a_right_tile_for_every_shape(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.with_name("made.json")
    tiles.write(out, {key(90, 1, 1, "bfloat16"): MEASURED})
    assert tune.main(["--dry-run", "--out", str(out)]) == 0
    made = json.loads(out.read_text())
    assert set(made) == {key(90, 1, 1, "bfloat16"), *(key(80, *shape, "bfloat16") for shape in tune.TOYS)}
    assert table.read_text() == "{}" and len(capsys.readouterr().out.splitlines()) == 2 * len(tune.TOYS)


def test_a_tile_with_a_wrong_product_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fused.linear

    def wrong(*arguments: torch.Tensor, tile: Tile | None, **options: object) -> torch.Tensor:
        return right(*arguments, **options) + (tile is not None and tile.block_n == 32)

    monkeypatch.setattr(fused, "linear", wrong)
    chosen = tune.tune(*tune.TOYS[0], device(), dry=True)
    assert chosen is not None and chosen.block_n == 64


@pytest.mark.skipif(not interpreter.in_use(), reason="there is a GPU")
def test_times_of_the_interpreter_are_written_into_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tune.main([])
    assert "belong into no table" in capsys.readouterr().err
