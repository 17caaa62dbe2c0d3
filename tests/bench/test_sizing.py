from __future__ import annotations

import argparse
import math

import pytest

pytest.importorskip("torch")

from bench import sizing
from bench.gpu.in_process import shapes_of
from bench.running_mesh import ROLES


@pytest.mark.parametrize(("name", "billions"), [("135m", 0.135), ("1b", 1.07), ("3b", 2.97)])
def test_a_shape_has_the_weights_of_its_name(name: str, billions: float) -> None:
    weights = sum(math.prod(shape) for _, shape in shapes_of(sizing.SHAPES[name]))
    assert weights / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.slow
def test_a_row_tells_memory_speed_and_the_first_token_of_each_size() -> None:
    parser = argparse.ArgumentParser()
    sizing.flags(parser)
    figures = sizing.measure(parser.parse_args(["--shapes=toy", "--tokens=4", "--rounds=1"]))
    toy = figures["shapes"]["toy"]
    for at in ("at_rest_mb", "under_load_mb"):
        assert set(toy[at]) == {"up", *ROLES, "all"}
        assert 0 < toy[at]["worker"] < 4096
    assert set(toy["tokens_per_s"]) == {"1", "16"}
    assert toy["first_token_ms"] > 0
