"""What measures attention's choices runs where there is no GPU, and tells one row for each."""

from __future__ import annotations

import json

import pytest

from kernels.paged_attention import fused, tune


def test_a_dry_run_tells_a_row_for_each_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["--dry-run"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["used"] for row in rows] == [True, False]
    assert all(row["us"]["2 at 40, 5"] > 0 for row in rows)


def test_choices_begin_with_the_one_that_is_used_and_have_it_once() -> None:
    used = fused.shape(tune.HEAD_DIM, 4, tune.DTYPE, 90)
    made = tune.choices(used)
    assert made[0] == used and len(made) == len(set(made)) == 5
